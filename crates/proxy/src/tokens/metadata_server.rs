//! [`MetadataServer`]: fetches tokens from the node's metadata server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use tokio::time::{Instant, sleep, timeout};
use tower::retry::budget::{Budget, TpsBudget};
use zeroize::Zeroizing;

use super::breaker::{Breaker, SHARED_PROBE_INTERVAL};
use super::{Fetched, NoToken, Refused, TokenKey, TokenKind, TokenSource, Urgency, servers_time, wipe};
use crate::failure::{Failure, TokenFailure, UPSTREAM_TIMEOUT};
use crate::reply::Body;
use crate::shares::Client;
use crate::upstream::Forward;
use protocol::metadata::Principal;
use protocol::metadata::identity;
use protocol::metadata::token::AccessToken;
use telemetry::sampled::Sampled;

/// Delay before a retry, in milliseconds. The server answers 503 during a live migration, which is brief.
const RETRY_DELAY_MILLIS: std::ops::Range<u64> = 100..250;

/// Maximum size of a token response, in bytes. Real ones have about 1 KiB.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// Minimum interval between log lines about responses that are not tokens.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The node's own metadata server as a source of tokens.
#[derive(Debug)]
pub struct MetadataServer {
    forward: Forward,
    breaker: Breaker,
    /// Retry budget: at most a fifth of all requests, plus one per second.
    budget: TpsBudget,
    /// Responses that are not tokens. They do not affect the server's health, whose changes are logged.
    not_tokens: Sampled,
}

impl MetadataServer {
    /// Fetches tokens through this service.
    pub fn new(forward: Forward) -> Self {
        Self {
            forward,
            breaker: Breaker::new(SHARED_PROBE_INTERVAL),
            budget: TpsBudget::new(Duration::from_secs(10), 1, 0.2),
            not_tokens: Sampled::new(LOG_INTERVAL),
        }
    }

    async fn ask(&self, key: &TokenKey) -> Result<Response<Bytes>, Failure> {
        let first = self.ask_once(key).await?;
        if first.status() != StatusCode::SERVICE_UNAVAILABLE {
            self.budget.deposit();
            return Ok(first);
        }
        if !self.budget.withdraw() {
            return Ok(first);
        }
        sleep(Duration::from_millis(fastrand::u64(RETRY_DELAY_MILLIS))).await;
        self.ask_once(key).await
    }

    async fn ask_once(&self, key: &TokenKey) -> Result<Response<Bytes>, Failure> {
        let (head, body) = self.forward.ask(&mut key.request()).await?.into_parts();
        match body {
            Body::Whole(body) => Ok(Response::from_parts(head, body)),
            Body::Streamed(body) => match Limited::new(body, MAX_BODY_BYTES).collect().await {
                Ok(body) => Ok(Response::from_parts(head, body.to_bytes())),
                Err(error) => Err(error.downcast().map_or(Failure::TooLarge(MAX_BODY_BYTES), |failure| *failure)),
            },
        }
    }
}

impl TokenSource for MetadataServer {
    fn deadline(&self) -> Duration {
        UPSTREAM_TIMEOUT
    }

    async fn fetch(&self, key: &TokenKey, client: Client, _: Urgency) -> Result<Fetched, NoToken> {
        // The metadata server does not distinguish callers: it returns the node's token to all of them. It binds none.
        if key.principal != Principal::Node || key.bound_to.is_some() {
            return Err(TokenFailure::ForeignPrincipal.into());
        }
        if !self.breaker.lets_through(client, Instant::now()) {
            return Err(TokenFailure::Resting.into());
        }
        // Includes a retry.
        let answer = timeout(UPSTREAM_TIMEOUT, self.ask(key)).await.unwrap_or(Err(Failure::TimedOut(UPSTREAM_TIMEOUT)));
        match answer {
            Ok(response) => {
                self.breaker.succeeded(client);
                let token = read(key.kind, response);
                if let Err(NoToken::Failed(why)) = &token
                    && let Some(count) = self.not_tokens.due(Instant::now())
                {
                    tracing::warn!(
                        count,
                        "the metadata server answers, but {why}; requests without a cached token get 503"
                    );
                }
                token
            }
            Err(failure) => {
                self.breaker.failed(client, Instant::now());
                Err(failure.into())
            }
        }
    }
}

fn read(kind: TokenKind, response: Response<Bytes>) -> Result<Fetched, NoToken> {
    let (head, body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(NoToken::Refused(Arc::new(Refused::copied(head.status, &head.headers, &body))));
    }
    let servers_time = servers_time(&head.headers);
    // Headers share the memory of the body, which cannot be wiped beside them.
    drop(head);
    match kind {
        TokenKind::Access => {
            let parsed = AccessToken::parse(&body);
            wipe(body);
            let (token, expires_in) = parsed.map_err(TokenFailure::from)?;
            Ok(Fetched::Access(token, expires_in))
        }
        TokenKind::Identity => {
            let expires_in = identity::seconds_left(&body, servers_time);
            let jwt = Bytes::from_owner(Zeroizing::new(body.to_vec()));
            wipe(body);
            Ok(Fetched::Identity(jwt, expires_in.map_err(TokenFailure::from)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::room::Room;
    use crate::upstream;
    use base::hook::Hook;
    use protocol::metadata::{Fingerprint, Target, WorkloadId};

    #[test]
    fn the_life_of_an_identity_token_is_measured_by_the_servers_clock() {
        // {"exp":2551340977}, which is 2050-11-06T09:49:37Z
        let jwt = "e30.eyJleHAiOjI1NTEzNDA5Nzd9.c2ln";
        let seconds = |date: &str| {
            let response = Response::builder().header("date", date).body(Bytes::from(jwt)).expect("a response");
            match read(TokenKind::Identity, response) {
                Ok(Fetched::Identity(_, seconds)) => Ok(seconds),
                Ok(other) => panic!("{other:?}"),
                Err(why) => Err(why.to_string()),
            }
        };
        assert_eq!(seconds("Sun, 06 Nov 2050 08:49:37 GMT"), Ok(3600));
        let why = seconds("Sun, 06 Nov 2050 10:49:37 GMT").expect_err("it is over");
        assert!(why.ends_with("its exp is not later than the answer"), "{why}");
    }

    #[tokio::test]
    async fn a_principal_other_than_the_node_gets_no_token_and_none_is_bound() {
        let target = Target::parse("http://127.0.0.1:1").expect("a target");
        let room = Room::new(0, Hook::new(Arc::new(|_| false)));
        let client = upstream::UpstreamClient::new(target, Arc::default(), room, Arc::default());
        let source = MetadataServer::new(Forward::new(client));
        let [mut workload, mut bound] = [(); 2].map(|()| TokenKey::default_account());
        workload.principal = Principal::Workload(WorkloadId(7));
        bound.bound_to = Some(Box::new(Fingerprint::from([0; 32])));
        for key in [workload, bound] {
            let outcome = source.fetch(&key, None, Urgency::Demanded).await;
            assert!(
                matches!(&outcome, Err(NoToken::Failed(why)) if matches!(**why, TokenFailure::ForeignPrincipal)),
                "{key:?}: {outcome:?}"
            );
        }
    }
}
