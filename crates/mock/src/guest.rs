//! Guest attributes: the part of the tree that the machine itself can write.

use http::{Method, StatusCode};

use super::answer::{Response, TEXT};
use super::refusal::Refusal;
use super::rows::ENABLE_GUEST_ATTRIBUTES;
use super::state::State;
use super::tree::Tree;

/// Their directory, relative to the API version.
pub(super) const GUEST_ATTRIBUTES: &str = "instance/guest-attributes/";

/// Maximum number of attributes.
const MAX_ATTRIBUTES: usize = 1000;

/// Whether guests may read and write them. As on the real server, an attribute of the instance enables this.
pub(super) fn is_enabled(tree: &Tree) -> bool {
    tree.value(ENABLE_GUEST_ATTRIBUTES).eq_ignore_ascii_case("true")
}

/// Writes or deletes one. Only `NAMESPACE/KEY` can be written.
pub(super) fn write(state: &State, node: &str, method: &Method, body: &[u8]) -> Result<Response, Refusal> {
    let attribute = node.strip_prefix(GUEST_ATTRIBUTES).and_then(|attribute| attribute.split_once('/'));
    let Some((namespace, key)) = attribute else { return Err(Refusal::Method) };
    if namespace.is_empty() || key.is_empty() || key.contains('/') {
        return Err(Refusal::Missing);
    }
    if *method == Method::DELETE {
        let removed = state.change(|tree| tree.remove(node));
        return if removed { Ok(done()) } else { Err(Refusal::Missing) };
    }
    let value = String::from_utf8_lossy(body);
    state.change(|tree| {
        let is_full = tree.below(GUEST_ATTRIBUTES).count() > MAX_ATTRIBUTES;
        if is_full && tree.leaf(node).is_none() {
            return Err(Refusal::GuestAttributesFull);
        }
        tree.set(node, &value);
        Ok(done())
    })
}

fn done() -> Response {
    Response::new(StatusCode::OK, TEXT, String::new())
}
