//! Guest attributes: the part of the tree that the machine itself can write.

use super::answer::{Response, TEXT};
use super::refusal::Refusal;
use super::rows::ENABLE_GUEST_ATTRIBUTES;
use super::state::State;
use super::tree::Tree;

/// Their directory, relative to the API version.
pub(super) const GUEST_ATTRIBUTES: &str = "instance/guest-attributes/";

/// Whether guests may read and write them. As on the real server, an attribute of the instance enables this.
pub(super) fn is_enabled(tree: &Tree) -> bool {
    tree.value(ENABLE_GUEST_ATTRIBUTES).eq_ignore_ascii_case("true")
}

/// Writes one. Only `NAMESPACE/KEY` can be written.
pub(super) fn write(state: &State, node: &str, body: &[u8]) -> Result<Response, Refusal> {
    let attribute = node.strip_prefix(GUEST_ATTRIBUTES).and_then(|attribute| attribute.split_once('/'));
    let Some((namespace, key)) = attribute else { return Err(Refusal::Method) };
    if namespace.is_empty() || key.is_empty() || key.contains('/') {
        return Err(Refusal::Missing);
    }
    state.change(|tree| tree.set(node, &String::from_utf8_lossy(body)));
    Ok(Response::ok(TEXT, String::new()))
}
