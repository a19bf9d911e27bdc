//! The trees before v1, which required no header and contained the same secrets: how SSRF worked in 2018.
//!
//! Their paths are known from the tests of Google's k8s-metadata-proxy. The mock serves its tree under them;
//! the details of their responses are not reproduced.

use std::borrow::Cow;

use super::place::Place;
use super::query::Query;
use super::rows::DISABLE_LEGACY_ENDPOINTS;
use super::tree::{SERVICE_ACCOUNTS, Tree};

/// Whether a path belongs to a legacy tree.
pub(super) fn is_legacy(path: &str) -> bool {
    ["/0.1", "/computeMetadata/v1beta1"]
        .iter()
        .any(|tree| path.strip_prefix(tree).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Whether the legacy trees are served.
pub(super) fn is_on(tree: &Tree) -> bool {
    tree.value(DISABLE_LEGACY_ENDPOINTS).eq_ignore_ascii_case("false")
}

/// Resolves a path of a legacy tree.
pub(super) fn place<'a>(path: &'a str, query: &Query) -> Place<'a> {
    if path == "/0.1/" {
        return Place::Listing("meta-data/\n");
    }
    if let Some(node) = path.strip_prefix("/computeMetadata/v1beta1/") {
        return Place::Node(token_for_acquire(Cow::Borrowed(node)));
    }
    match path.strip_prefix("/0.1/meta-data/") {
        Some("auth-token") => {
            let account = query.value("service_account").unwrap_or("default");
            Place::Node(Cow::Owned(format!("{SERVICE_ACCOUNTS}{account}/token")))
        }
        Some(child) => Place::Node(token_for_acquire(Cow::Owned(format!("instance/{child}")))),
        None if ["/0.1", "/0.1/meta-data", "/computeMetadata/v1beta1"].contains(&path) => Place::WithoutSlash,
        None => Place::Nowhere,
    }
}

/// Replaces `acquire`, the former name of the token.
fn token_for_acquire(node: Cow<'_, str>) -> Cow<'_, str> {
    match node.strip_suffix("/acquire") {
        Some(account) if account.starts_with(SERVICE_ACCOUNTS) => Cow::Owned(format!("{account}/token")),
        _ => node,
    }
}
