//! The warm start: what every pod will ask for first is fetched before the proxy says that it is ready, and kept fresh.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tokio::time::sleep;

use crate::admin::Readiness;
use crate::layers::leaves::{Leaf, Leaves};
use crate::layers::token_cache::{Store, Tokens};
use crate::reply::Body;
use crate::tokens::{NoToken, TokenKey, TokenSource};
use crate::upstream::Forward;

/// The leaves are fetched again this often. They do not change while a machine runs, as far as is known.
const AGAIN: Duration = Duration::from_secs(10 * 60);

/// Between two rounds of a warm start, at first and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// What a warm start fills.
#[derive(Debug)]
pub struct WarmStart<T> {
    /// Asks the metadata server.
    pub forward: Forward,
    /// Values that do not change.
    pub leaves: Arc<Leaves>,
    /// Is told the default account's e-mail.
    pub store: Arc<Store>,
    /// Fetches the default account's token.
    pub tokens: Tokens<T>,
}

impl<T: TokenSource> WarmStart<T> {
    /// Fetches everything, tells readiness, and goes on for as long as it is polled.
    pub async fn run(self, readiness: Readiness) {
        let mut pending: Vec<Leaf> = Leaf::all().collect();
        let mut has_token = false;
        let mut pause = BACK_OFF.0;
        loop {
            pending = self.fetch(pending).await;
            has_token = has_token || self.has_token().await;
            if pending.is_empty() && has_token {
                break;
            }
            sleep(pause).await;
            pause = (pause * 2).min(BACK_OFF.1);
        }
        readiness.warm();
        tracing::info!("cache warmed up: the default token and common values are cached");
        loop {
            sleep(AGAIN).await;
            self.fetch(Leaf::all().collect()).await;
        }
    }

    /// Fetches these leaves; returns those on which the server had no word yet.
    async fn fetch(&self, leaves: Vec<Leaf>) -> Vec<Leaf> {
        let mut without = Vec::new();
        for leaf in leaves {
            let Some((status, headers, body)) = self.ask(leaf).await else {
                without.push(leaf);
                continue;
            };
            if let Some(value) = self.leaves.keep(leaf, status, headers, &body)
                && leaf == Leaf::DefaultEmail
                && let Ok(email) = std::str::from_utf8(&value)
            {
                self.store.know_default_email(email);
            }
        }
        without
    }

    /// The server's word on a leaf. A machine without a service account has no e-mail: that is a word too.
    async fn ask(&self, leaf: Leaf) -> Option<(StatusCode, HeaderMap, Bytes)> {
        let (head, body) = self.forward.ask(&leaf.request()).await.ok()?.into_parts();
        match body {
            Body::Whole(body) if is_word_on(leaf, head.status) => Some((head.status, head.headers, body)),
            _ => None,
        }
    }

    async fn has_token(&self) -> bool {
        match self.tokens.warm(TokenKey::default_account()).await {
            Ok(()) => true,
            // A machine without a service account.
            Err(NoToken::Refused(refused)) => refused.status == StatusCode::NOT_FOUND,
            Err(NoToken::Failed(_) | NoToken::Overloaded(_)) => false,
        }
    }
}

/// Whether an answer is the server's word: the value, or that there is none where there may be none. Anything else is a
/// server that is not itself yet, or is not the metadata server.
fn is_word_on(leaf: Leaf, status: StatusCode) -> bool {
    let may_be_missing =
        matches!(leaf, Leaf::UniverseDomain | Leaf::DefaultEmail | Leaf::DefaultAccount | Leaf::Accounts);
    status == StatusCode::OK || (status == StatusCode::NOT_FOUND && may_be_missing)
}
