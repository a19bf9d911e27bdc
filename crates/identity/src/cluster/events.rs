//! [`Events`]: the API server's events about pods, one after the other.

use bytes::{Buf, Bytes};
use http::StatusCode;
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

use super::MAX_SILENCE;
use super::error::{RequestError, root_cause};
use super::hints::Hint;
use super::object::{ListMetadata, PodObject, Refusal};
use super::prune::{Pruner, Shape};

/// An event of a watch of pods.
#[derive(Debug)]
pub enum Event {
    /// A pod was added or modified, or is in the list at the beginning.
    Applied(PodObject),
    /// A pod is gone.
    Deleted(PodObject),
    /// No change up to this version.
    Bookmark {
        version: String,
        /// Whether the list at the beginning is complete.
        ends_list: bool,
    },
}

#[derive(Deserialize)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
enum Line {
    Added(PodObject),
    Modified(PodObject),
    Deleted(PodObject),
    Bookmark(Bookmark),
    Error(Refusal),
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: ListMetadata,
}

/// The events of a watch.
pub struct Events {
    incoming: Incoming,
    pruner: Pruner,
    hint: Hint,
}

impl Events {
    pub(super) fn new(body: Body, hint: Hint) -> Self {
        Self { incoming: Incoming::new(body), pruner: Pruner::new(Shape::Event), hint }
    }

    /// The next event. `None` after the API server has ended the watch, as it does every few minutes.
    ///
    /// Fails if nothing is received for [`MAX_SILENCE`].
    pub async fn next(&mut self) -> Result<Option<Event>, RequestError> {
        loop {
            if self.incoming.chunk.is_empty() && !self.incoming.receive().await? {
                // A line without its newline is not an event.
                return Ok(None);
            }
            let (read, is_whole) = self.pruner.read_line(&self.incoming.chunk);
            self.incoming.chunk.advance(read);
            if self.pruner.kept().len() > Shape::Event.max() {
                return Err(RequestError::Invalid(too_large(self.pruner.kept())));
            }
            if is_whole {
                let event = self.event();
                self.pruner.clear();
                return event.map(Some);
            }
        }
    }

    fn event(&self) -> Result<Event, RequestError> {
        match serde_json::from_slice(self.pruner.kept()).map_err(invalid)? {
            Line::Added(pod) | Line::Modified(pod) => Ok(Event::Applied(pod)),
            Line::Deleted(pod) => Ok(Event::Deleted(pod)),
            Line::Bookmark(Bookmark { metadata }) => {
                let ends_list = metadata.annotations.is_some_and(|it| it.initial_events_end.is_some());
                Ok(Event::Bookmark { version: metadata.resource_version, ends_list })
            }
            Line::Error(refusal) => Err(refused(&refusal, self.hint)),
        }
    }
}

/// Reads an object, and keeps as much of it as [`Shape::max`] allows.
pub(super) async fn read<T: DeserializeOwned>(body: Body, shape: Shape) -> Result<T, RequestError> {
    let mut incoming = Incoming::new(body);
    let mut pruner = Pruner::new(shape);
    while incoming.receive().await? {
        pruner.read_line(&std::mem::take(&mut incoming.chunk));
        if pruner.kept().len() > shape.max() {
            return Err(RequestError::Invalid(format!("an answer of more than {} bytes", shape.max())));
        }
    }
    serde_json::from_slice(pruner.kept()).map_err(invalid)
}

/// Reads a whole response of at most `max` bytes, into memory that is wiped.
pub(super) async fn read_whole(body: Body, max: usize) -> Result<Zeroizing<Vec<u8>>, RequestError> {
    let mut incoming = Incoming::new(body);
    // It never grows: that would leave a copy behind which is not wiped.
    let mut whole = Zeroizing::new(Vec::with_capacity(max));
    while incoming.receive().await? {
        let chunk = std::mem::take(&mut incoming.chunk);
        if whole.len() + chunk.len() > max {
            return Err(RequestError::Invalid(format!("an answer of more than {max} bytes")));
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole)
}

/// Received bytes that are not read yet.
pub(super) struct Incoming {
    body: Body,
    chunk: Bytes,
}

impl Incoming {
    fn new(body: Body) -> Self {
        Self { body, chunk: Bytes::new() }
    }

    /// Receives the next bytes. Returns whether there are any before the end.
    async fn receive(&mut self) -> Result<bool, RequestError> {
        let deadline = Instant::now() + MAX_SILENCE;
        loop {
            match timeout_at(deadline, self.body.frame()).await {
                Err(_) => return Err(RequestError::Silent(MAX_SILENCE)),
                Ok(None) => return Ok(false),
                Ok(Some(Err(error))) => {
                    return Err(RequestError::Lost(root_cause(&error).to_string()));
                }
                Ok(Some(Ok(frame))) => {
                    if let Ok(chunk) = frame.into_data()
                        && !chunk.is_empty()
                    {
                        self.chunk = chunk;
                        return Ok(true);
                    }
                }
            }
        }
    }
}

/// Maximum number of bytes read of a refusal.
const MAX_REFUSAL_BYTES: usize = 16 << 10;

/// Reads the API server's error message for a response with this status, truncated if incomplete.
pub(super) async fn read_refusal(status: StatusCode, body: Body, hint: Hint) -> RequestError {
    let mut incoming = Incoming::new(body);
    let mut text = Vec::new();
    while text.len() < MAX_REFUSAL_BYTES && matches!(incoming.receive().await, Ok(true)) {
        text.extend_from_slice(&std::mem::take(&mut incoming.chunk));
    }
    let mut refusal: Refusal = serde_json::from_slice(&text).unwrap_or_default();
    // Not from the API server, but from something in front of it.
    if refusal.message.is_empty() {
        let text = String::from_utf8_lossy(&text);
        refusal.message = text.chars().filter(|char| !char.is_control()).take(200).collect();
    }
    refusal.code = status.as_u16();
    refused(&refusal, hint)
}

fn refused(refusal: &Refusal, hint: Hint) -> RequestError {
    match StatusCode::from_u16(refusal.code) {
        Ok(StatusCode::GONE) => RequestError::Expired(refusal.message.clone()),
        Ok(status) => {
            let (message, hint) = (refusal.message.clone(), hint.of(status));
            RequestError::Refused { status, message, hint, retry_after: None }
        }
        Err(_) => RequestError::Invalid(format!("an error without a status: {}", refusal.message)),
    }
}

/// Describes an event that is too large. The API server writes the names of an object first.
fn too_large(kept: &[u8]) -> String {
    let beginning = String::from_utf8_lossy(&kept[..kept.len().min(300)]);
    format!("an event of more than {} bytes, which begins with {beginning}", Shape::Event.max())
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn invalid(error: serde_json::Error) -> RequestError {
    RequestError::Invalid(error.to_string())
}
