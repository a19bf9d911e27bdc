//! From a request to an answer: what a path means, who may ask, and what the methods do.

use std::borrow::Cow;

use http::{Method, StatusCode};

use super::answer::{Answer, HTML, TEXT};
use super::guest::{self, GUEST_ATTRIBUTES};
use super::head::Request;
use super::kind::Kind;
use super::place::Place;
use super::query::Query;
use super::refusal::Refusal;
use super::rows::WORKLOAD_CERTIFICATES;
use super::state::State;
use super::tree::Tree;
use super::{account, legacy, read};

/// Its directory answers 412 while workload certificates are not configured (the guest agent's source).
const WORKLOAD_CERTIFICATES_DIRECTORY: &str = "instance/gce-workload-certificates/";

/// Where a request without `Host`, which only HTTP/1.0 may send, is redirected to.
const OWN_HOST: &str = "169.254.169.254";

/// The answer, after however long it takes: only a request that waits for a change takes any time.
pub(super) async fn answer(state: &State, request: &Request) -> Answer {
    routed(state, request).await.unwrap_or_else(|refusal| refusal.answer(request.path()))
}

async fn routed(state: &State, request: &Request) -> Result<Answer, Refusal> {
    let path = single_slashes(request.path());
    let query = Query::parse(request.query());
    let place = if legacy::is_legacy(&path) {
        if !legacy::is_on(&state.tree()) {
            return Err(Refusal::Missing);
        }
        legacy::place(&path, &query)
    } else {
        admit(request, &path)?;
        Place::of(&path)
    };
    match place {
        Place::Node(node) => self::node(state, request, &node, &query).await,
        _ if !is_read(&request.method) => Err(Refusal::Method),
        Place::Listing(text) => Ok(Answer::ok(TEXT, text.to_owned())),
        Place::WithoutSlash => Ok(redirect(request)),
        Place::Nowhere => Err(Refusal::Missing),
    }
}

/// Everything needs the header but `/`, where Go's and gsutil's libraries look for the answer's header only. A request
/// that came through a proxy is refused even there.
fn admit(request: &Request, path: &str) -> Result<(), Refusal> {
    if request.is_forwarded {
        return Err(Refusal::Forwarded);
    }
    if path != "/" && !request.has_flavor {
        return Err(Refusal::Flavor);
    }
    Ok(())
}

async fn node(state: &State, request: &Request, node: &str, query: &Query<'_>) -> Result<Answer, Refusal> {
    let found = Found::at(&state.tree(), node)?;
    let method = &request.method;
    match found {
        Found::Leaf(Kind::Token) if is_read(method) => account::token(state, node, query, None),
        Found::Leaf(Kind::Token) if method == Method::POST => account::token(state, node, query, Some(&request.body)),
        Found::Leaf(Kind::Identity) if is_read(method) || method == Method::POST => {
            account::identity(state, node, query)
        }
        _ if is_write(method) => guest::write(state, node, method, &request.body),
        _ if !is_read(method) => Err(Refusal::Method),
        Found::Leaf(_) | Found::Directory => read::read(state, node, query).await,
        Found::WithoutSlash => Ok(redirect(request)),
        Found::Nothing => Err(Refusal::Missing),
    }
}

/// What is at a node.
enum Found {
    Leaf(Kind),
    Directory,
    WithoutSlash,
    Nothing,
}

impl Found {
    /// Looks; directories that are switched off are refused whatever is in them.
    fn at(tree: &Tree, node: &str) -> Result<Self, Refusal> {
        if node.starts_with(GUEST_ATTRIBUTES) && !guest::is_enabled(tree) {
            return Err(Refusal::GuestAttributesDisabled);
        }
        if node.starts_with(WORKLOAD_CERTIFICATES_DIRECTORY) && tree.leaf(WORKLOAD_CERTIFICATES).is_none() {
            return Err(Refusal::NotConfigured);
        }
        Ok(match tree.leaf(node) {
            Some(leaf) => Self::Leaf(leaf.kind),
            None if (node.is_empty() || node.ends_with('/')) && tree.is_directory(node) => Self::Directory,
            None if tree.is_directory(&format!("{node}/")) => Self::WithoutSlash,
            None => Self::Nothing,
        })
    }
}

/// To the same path with a slash, by the name that the client used, with the query kept (traces of 2017, in
/// `gce_metadata_server`'s third issue and gax-dotnet#410). The body is the new path.
fn redirect(request: &Request) -> Answer {
    let host = request.host.as_deref().unwrap_or(OWN_HOST);
    let path = format!("{}/", request.path());
    let query = request.query();
    let mark = if query.is_empty() { "" } else { "?" };
    let location = format!("http://{host}{path}{mark}{query}");
    Answer { location: Some(location), ..Answer::new(StatusCode::MOVED_PERMANENTLY, HTML, path + "\n") }
}

/// The emulator takes two slashes for one. Escapes and dots, on the other hand, are no names of anything.
fn single_slashes(path: &str) -> Cow<'_, str> {
    if !path.contains("//") {
        return Cow::Borrowed(path);
    }
    let mut single = String::with_capacity(path.len());
    for letter in path.chars() {
        if letter != '/' || !single.ends_with('/') {
            single.push(letter);
        }
    }
    Cow::Owned(single)
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn is_write(method: &Method) -> bool {
    matches!(*method, Method::PUT | Method::DELETE)
}
