//! Reads of leaves, listings and subtrees, and waiting for changes.

use std::time::Duration;

use tokio::time::timeout;

use super::answer::{JSON, Response, TEXT};
use super::query::Query;
use super::refusal::Refusal;
use super::render::Etag;
use super::state::State;
use super::tree::Tree;

/// The value of `alt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Text,
}

impl Format {
    /// The requested format, if any. Values other than `json` and `text` are refused; the real server's
    /// response to them is not known.
    pub(super) fn from_query(query: &Query) -> Result<Option<Self>, Refusal> {
        match query.value("alt") {
            None => Ok(None),
            Some("json") => Ok(Some(Self::Json)),
            Some("text") => Ok(Some(Self::Text)),
            Some(_) => Err(Refusal::Query("The parameter alt must be json or text.")),
        }
    }
}

/// The response for an existing node.
pub(super) async fn read(state: &State, node: &str, query: &Query) -> Result<Response, Refusal> {
    let form = Format::from_query(query)?;
    let waits = query.flag("wait_for_change");
    if state.tree().is_directory(node) && !query.flag("recursive") {
        // The emulator refuses both for a plain listing, and Google's document the latter.
        return match (form, waits) {
            (None, false) => Ok(listing(&state.tree(), node)),
            (Some(_), _) => Err(Refusal::Query("A listing has no alt; ask for it with recursive=true.")),
            (None, true) => Err(Refusal::Query("A listing cannot be waited for; ask with recursive=true.")),
        };
    }
    if waits { change(state, node, query, form).await } else { render(&state.tree(), node, form) }
}

/// Waits until the node's etag differs from the client's, or until `timeout_sec` has passed, which is also
/// answered with 200.
async fn change(state: &State, node: &str, query: &Query, form: Option<Format>) -> Result<Response, Refusal> {
    let limit = seconds(query)?;
    let current = || render(&state.tree(), node, form);
    let etag = |answer: &Response| answer.etag.map(|etag| etag.to_string());
    let known = match query.value("last_etag") {
        Some(last) => Some(last.to_owned()),
        None => etag(&current()?),
    };
    // A change after this line is noticed, and so is one before it.
    let mut changes = state.changes.subscribe();
    let another = async {
        loop {
            let answer = current()?;
            if etag(&answer) != known || changes.changed().await.is_err() {
                return Ok(answer);
            }
        }
    };
    match limit {
        None => another.await,
        Some(limit) => timeout(limit, another).await.unwrap_or_else(|_| current()),
    }
}

fn seconds(query: &Query) -> Result<Option<Duration>, Refusal> {
    let Some(seconds) = query.value("timeout_sec") else { return Ok(None) };
    let seconds: u32 = seconds.parse().map_err(|_| Refusal::Query("timeout_sec must be a number of seconds."))?;
    Ok(Some(Duration::from_secs(seconds.into())))
}

fn listing(tree: &Tree, directory: &str) -> Response {
    let listing = tree.listing(directory);
    let etag = Etag::new(&listing);
    Response::value(TEXT, listing, etag)
}

/// The current response for the node. Its etag does not depend on the format.
fn render(tree: &Tree, node: &str, form: Option<Format>) -> Result<Response, Refusal> {
    if tree.is_directory(node) {
        let json = tree.json(node).to_string();
        let etag = Etag::new(&json);
        return Ok(match form {
            Some(Format::Text) => Response::value(TEXT, tree.lines(node), etag),
            Some(Format::Json) | None => Response::value(JSON, json, etag),
        });
    }
    let leaf = tree.leaf(node).ok_or(Refusal::Missing)?;
    let etag = Etag::new(&leaf.value);
    let form = form.unwrap_or(if leaf.is_json() { Format::Json } else { Format::Text });
    Ok(match form {
        Format::Json => Response::value(JSON, leaf.json().to_string(), etag),
        Format::Text => Response::value(TEXT, leaf.text(), etag),
    })
}
