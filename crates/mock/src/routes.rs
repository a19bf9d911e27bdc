//! Maps requests to responses: paths, access checks and methods.

use std::borrow::Cow;

use http::{Method, StatusCode};

use super::answer::{HTML, Response, TEXT};
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

/// The host to redirect a request without `Host` to, which only HTTP/1.0 may send.
const OWN_HOST: &str = "169.254.169.254";

/// The response. Only requests that wait for a change take time.
pub(super) async fn answer(state: &State, request: &Request) -> Response {
    routed(state, request).await.unwrap_or_else(|refusal| refusal.answer(request.path()))
}

async fn routed(state: &State, request: &Request) -> Result<Response, Refusal> {
    let path = single_slashes(request.path());
    let query = Query::parse(request.query());
    let place = if legacy::is_legacy(&path) {
        if !legacy::is_on(&state.tree()) {
            return Err(Refusal::Missing);
        }
        legacy::place(&path, &query)
    } else {
        admit(request, &path)?;
        Place::from_path(&path)
    };
    match place {
        Place::Node(node) => self::node(state, request, &node, &query).await,
        _ if !is_read(&request.method) => Err(Refusal::Method),
        Place::Listing(text) => Ok(Response::ok(TEXT, text.to_owned())),
        Place::WithoutSlash => Ok(redirect(request)),
        Place::Nowhere => Err(Refusal::Missing),
    }
}

/// Checks the headers. `/` requires no flavor, because Go's and gsutil's libraries only look for the response
/// header there. A request that came through a proxy is refused everywhere.
fn admit(request: &Request, path: &str) -> Result<(), Refusal> {
    if request.is_forwarded {
        return Err(Refusal::Forwarded);
    }
    if path != "/" && !request.has_flavor {
        return Err(Refusal::Flavor);
    }
    Ok(())
}

async fn node(state: &State, request: &Request, node: &str, query: &Query) -> Result<Response, Refusal> {
    let found = Resource::at(&state.tree(), node)?;
    let method = &request.method;
    match found {
        Resource::Leaf(Kind::Token) if is_read(method) => account::token(state, node, query, None),
        Resource::Leaf(Kind::Token) if method == Method::POST => {
            account::token(state, node, query, Some(&request.body))
        }
        Resource::Leaf(Kind::Identity) if is_read(method) || method == Method::POST => {
            account::identity(state, node, query)
        }
        _ if method == Method::PUT => guest::write(state, node, &request.body),
        _ if !is_read(method) => Err(Refusal::Method),
        Resource::Leaf(_) | Resource::Directory => read::read(state, node, query).await,
        Resource::WithoutSlash => Ok(redirect(request)),
        Resource::Nothing => Err(Refusal::Missing),
    }
}

/// The resource at a node.
enum Resource {
    Leaf(Kind),
    Directory,
    WithoutSlash,
    Nothing,
}

impl Resource {
    /// Finds the resource. Disabled directories are refused, whatever they contain.
    fn at(tree: &Tree, node: &str) -> Result<Self, Refusal> {
        if node.starts_with(GUEST_ATTRIBUTES) && !guest::is_enabled(tree) {
            return Err(Refusal::GuestAttributesDisabled);
        }
        if node.starts_with(WORKLOAD_CERTIFICATES_DIRECTORY) && tree.leaf(WORKLOAD_CERTIFICATES).is_none() {
            return Err(Refusal::NotConfigured);
        }
        Ok(match tree.leaf(node) {
            Some(leaf) => Self::Leaf(leaf.kind),
            None if tree.is_directory(node) => Self::Directory,
            None if tree.is_directory(&format!("{node}/")) => Self::WithoutSlash,
            None => Self::Nothing,
        })
    }
}

/// Redirects to the same path with a slash, with the client's host name and the query (traces of 2017, in
/// `gce_metadata_server`'s third issue and gax-dotnet#410). The body is the new path.
fn redirect(request: &Request) -> Response {
    let host = request.host.as_deref().unwrap_or(OWN_HOST);
    let path = format!("{}/", request.path());
    let query = request.query();
    let mark = if query.is_empty() { "" } else { "?" };
    let location = format!("http://{host}{path}{mark}{query}");
    Response { location: Some(location), ..Response::new(StatusCode::MOVED_PERMANENTLY, HTML, path + "\n") }
}

/// Merges slashes, as the emulator does. Escapes and dots are not decoded.
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
