//! Cache warmup: fetches the default token and common values before the proxy reports readiness, and keeps
//! them fresh.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tokio::time::sleep;

use crate::layers::leaves::{Leaf, Leaves};
use crate::layers::token_cache::{Store, Tokens};
use crate::metadata::CommonPath;
use crate::readiness::Readiness;
use crate::reply::Body;
use crate::shared::Shared;
use crate::tokens::{MetadataServer, NoToken, TokenKey, TokenSource};
use crate::upstream::Forward;

/// Interval to refresh the common values. They are not known to change while a machine runs.
const REFRESH_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// Initial and maximum interval between attempts.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// The warmup of all caches.
#[derive(Debug)]
pub struct WarmStart<T> {
    /// Sends requests to the metadata server.
    pub forward: Forward,
    /// Values that do not change.
    pub leaves: Arc<Leaves>,
    /// Receives the default account's email.
    pub store: Arc<Store>,
    /// Fetches the default account's token.
    pub tokens: Tokens<T>,
}

impl WarmStart<MetadataServer> {
    /// Fills the caches that connections share.
    pub fn new(shared: &Shared) -> Self {
        Self {
            forward: shared.forward.clone(),
            leaves: Arc::clone(&shared.leaves),
            store: Arc::clone(&shared.store),
            tokens: shared.tokens.clone(),
        }
    }
}

impl<T: TokenSource> WarmStart<T> {
    /// Fetches everything, reports readiness, and keeps refreshing while polled.
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
            sleep(REFRESH_INTERVAL).await;
            self.fetch(Leaf::all().collect()).await;
        }
    }

    /// Fetches these leaves. Returns those without an answer yet.
    async fn fetch(&self, leaves: Vec<Leaf>) -> Vec<Leaf> {
        let mut without = Vec::new();
        for leaf in leaves {
            let Some((status, headers, body)) = self.ask(leaf).await else {
                without.push(leaf);
                continue;
            };
            if let Some(value) = self.leaves.keep(leaf, status, headers, &body)
                && leaf.path() == CommonPath::DefaultEmail
                && let Ok(email) = std::str::from_utf8(&value)
            {
                self.store.know_default_email(email);
            }
        }
        without
    }

    /// The server's answer for a leaf. A machine without a service account has no email, which is an answer
    /// too.
    async fn ask(&self, leaf: Leaf) -> Option<(StatusCode, HeaderMap, Bytes)> {
        let (head, body) = self.forward.ask(&leaf.request()).await.ok()?.into_parts();
        match body {
            Body::Whole(body) if is_final(leaf, head.status) => Some((head.status, head.headers, body)),
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

/// Whether a response is final: the value, or its absence where that is valid. Anything else comes from a
/// server that is not ready, or is not the metadata server.
fn is_final(leaf: Leaf, status: StatusCode) -> bool {
    let may_be_missing = match leaf.path() {
        CommonPath::UniverseDomain
        | CommonPath::DefaultToken
        | CommonPath::DefaultEmail
        | CommonPath::DefaultAccount
        | CommonPath::Accounts => true,
        CommonPath::ProjectId
        | CommonPath::NumericProjectId
        | CommonPath::InstanceId
        | CommonPath::Zone
        | CommonPath::Hostname
        | CommonPath::Instance => false,
    };
    status == StatusCode::OK || (status == StatusCode::NOT_FOUND && may_be_missing)
}
