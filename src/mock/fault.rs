//! [`Fault`]: the ways in which a metadata server fails, and the [`Script`] that says when.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use tokio::sync::watch;

use super::answer::{Answer, HTML_UTF8, JSON};
use super::lock::lock;

/// What goes wrong with an answer. Each breaks one thing and leaves the rest as it is without the fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The usual answer, this much later.
    Delay(Duration),
    /// This status and body, as `text/html; charset=UTF-8`. A number that is no status becomes 500.
    Status(u16, String),
    /// A TCP reset before any byte.
    Reset,
    /// The end of the stream before any byte.
    Close,
    /// The usual head, then this many bytes of the body, then a reset.
    CutBody {
        /// Bytes of the body that are sent.
        after: usize,
    },
    /// As [`Fault::CutBody`], but the stream ends without a reset.
    CutBodyFin {
        /// Bytes of the body that are sent.
        after: usize,
    },
    /// No answer until the client leaves, or the usual one after [`Handle::heal`](super::Handle::heal).
    Hang,
    /// Bytes that are not HTTP, then the end of the stream.
    Garbage,
    /// The usual answer without `Metadata-Flavor`.
    NoFlavor,
    /// A page of HTML with status 200 and `Metadata-Flavor`.
    Html,
    /// The usual head at once, then the body piece by piece.
    SlowBody {
        /// Bytes in a piece, at least 1.
        chunk: usize,
        /// The time before each piece.
        every: Duration,
    },
    /// A 200 of `application/json` whose body is this long.
    HugeBody {
        /// Bytes of the body.
        bytes: usize,
    },
    /// The usual answer in chunked coding instead of with a `Content-Length`.
    Chunked,
    /// As [`Fault::Chunked`], with a `Content-Length` of this many bytes beside it.
    ChunkedAndLength {
        /// What the header says.
        length: usize,
    },
    /// The usual answer, and behind it bytes that nobody asked for: another whole answer, which says `MOCK-STRAY`.
    Stray,
    /// A 200 of `application/json` with this body: for tokens whose `expires_in` is 0, negative, or a string.
    Body(String),
    /// The usual answer, then the end of the stream although nothing announced it.
    CloseAfter,
    /// The usual token, but with this `expires_in`; other answers as usual.
    TokenLife(i64),
}

/// Follows an answer, on [`Fault::Stray`].
pub(super) const STRAY: &[u8] =
    b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Type: application/text\r\nContent-Length: 10\r\n\r\nMOCK-STRAY";

/// Not HTTP, and not the beginning of it: the first bytes of a TLS greeting.
pub(super) const GARBAGE: &[u8] = b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03 this is not HTTP\r\n\r\n";

const HTML_PAGE: &str = "<!DOCTYPE html>\n<html><title>Sign in</title><p>Sign in to use this network.</html>\n";

impl Fault {
    /// The answer that takes the place of the usual one.
    pub(super) fn instead(&self) -> Option<Answer> {
        match self {
            Self::Status(status, body) => {
                let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                Some(Answer::new(status, HTML_UTF8, body.clone()))
            }
            Self::Html => Some(Answer::ok(HTML_UTF8, HTML_PAGE.to_owned())),
            Self::Body(body) => Some(Answer::ok(JSON, body.clone())),
            Self::HugeBody { .. } => Some(Answer::ok(JSON, String::new())),
            _ => None,
        }
    }

    /// Changes the usual answer.
    pub(super) fn alter(&self, answer: &mut Answer) {
        match self {
            Self::NoFlavor => answer.flavor = false,
            Self::TokenLife(seconds) => {
                if let Some(body) = with_life(&answer.body, *seconds) {
                    answer.body = body;
                }
            }
            _ => {}
        }
    }
}

/// A token's body with another `expires_in`; nothing for what is no token.
fn with_life(body: &str, seconds: i64) -> Option<String> {
    let token: Value = serde_json::from_str(body).ok()?;
    let access_token = token.get("access_token")?;
    Some(format!(r#"{{"access_token":{access_token},"expires_in":{seconds},"token_type":"Bearer"}}"#))
}

/// Which requests meet which fault.
#[derive(Debug, Default)]
pub(super) struct Script {
    rules: Mutex<Rules>,
    /// How often it was healed; whoever hangs waits for the next time.
    heals: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Rules {
    /// For how many more requests, and what.
    next: VecDeque<(usize, Fault)>,
    at: Vec<(String, Fault)>,
    every: Option<Fault>,
}

impl Script {
    /// For every request.
    pub(super) fn every(&self, fault: Fault) {
        lock(&self.rules).every = Some(fault);
    }

    /// For every request whose path starts with a prefix.
    pub(super) fn at(&self, prefix: &str, fault: Fault) {
        let mut rules = lock(&self.rules);
        rules.at.retain(|(other, _)| other != prefix);
        rules.at.push((prefix.to_owned(), fault));
        rules.at.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
    }

    /// For the next requests, after those that were announced before.
    pub(super) fn next(&self, requests: usize, fault: Fault) {
        if requests > 0 {
            lock(&self.rules).next.push_back((requests, fault));
        }
    }

    /// For none any more.
    pub(super) fn heal(&self) {
        let mut rules = lock(&self.rules);
        *rules = Rules::default();
        self.heals.send_modify(|heals| *heals += 1);
    }

    /// What this request meets, and the state of [`Script::healed`] at that moment.
    pub(super) fn fault_for(&self, path: &str) -> Option<(Fault, u64)> {
        let mut rules = lock(&self.rules);
        let fault = rules.take(path)?;
        Some((fault, *self.heals.borrow()))
    }

    /// Waits until it was healed after a fault was given out.
    pub(super) async fn healed(&self, since: u64) {
        let healed = self.heals.subscribe().wait_for(|heals| *heals != since).await.is_ok();
        debug_assert!(healed, "the script outlives its sender's receivers");
    }
}

impl Rules {
    fn take(&mut self, path: &str) -> Option<Fault> {
        if let Some((left, fault)) = self.next.front_mut() {
            *left -= 1;
            let (left, fault) = (*left, fault.clone());
            if left == 0 {
                self.next.pop_front();
            }
            return Some(fault);
        }
        let at = self.at.iter().find(|(prefix, _)| path.starts_with(prefix.as_str())).map(|(_, fault)| fault);
        at.or(self.every.as_ref()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(script: &Script, path: &str) -> Option<Fault> {
        script.fault_for(path).map(|(fault, _)| fault)
    }

    #[test]
    fn the_next_come_before_the_longest_prefix_before_all() {
        let script = Script::default();
        script.every(Fault::Hang);
        script.at("/a", Fault::Reset);
        script.at("/a/b", Fault::Close);
        script.next(2, Fault::Garbage);
        script.next(1, Fault::Html);
        let seen: Vec<_> = ["/a/b", "/", "/a/b", "/a/b/c", "/a/c", "/"].map(|path| fault(&script, path)).into();
        let order = [Fault::Garbage, Fault::Garbage, Fault::Html, Fault::Close, Fault::Reset, Fault::Hang];
        assert_eq!(seen, order.map(Some));
        script.heal();
        assert_eq!(fault(&script, "/a/b"), None);
    }

    #[test]
    fn a_prefix_has_one_fault() {
        let script = Script::default();
        script.at("/a", Fault::Reset);
        script.at("/a", Fault::Close);
        assert_eq!(fault(&script, "/a"), Some(Fault::Close));
    }

    #[tokio::test]
    async fn a_heal_between_the_fault_and_the_wait_is_not_missed() {
        let script = Script::default();
        script.every(Fault::Hang);
        let (_, since) = script.fault_for("/").expect("a fault");
        script.heal();
        script.healed(since).await;
    }

    #[test]
    fn only_tokens_get_another_life() {
        let token = r#"{"access_token":"t","expires_in":3599,"token_type":"Bearer"}"#;
        let negative = r#"{"access_token":"t","expires_in":-1,"token_type":"Bearer"}"#;
        assert_eq!(with_life(token, -1).as_deref(), Some(negative));
        assert_eq!(with_life("mock-project", 0), None);
        assert_eq!(with_life("[1]", 0), None);
    }
}
