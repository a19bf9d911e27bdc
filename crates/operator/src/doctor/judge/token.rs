//! Judges the Kubernetes token's claims, the clocks, and the keys that the API server publishes.

use std::time::{Duration, SystemTime};

use serde::Deserialize;

use super::time;
use crate::doctor::claims::Claims;
use crate::doctor::commands;
use crate::doctor::report::{Finding, Step};
use identity::cluster::{Failure, Public, RequestError};

/// Maximum offset of a clock, in seconds. A larger offset makes tokens that are not valid yet, or have expired.
const MAX_OFFSET: u64 = 60;

/// Minimum lifetime, in seconds. Google's tokens expire with the Kubernetes token, and client libraries replace them five
/// minutes before.
const MIN_LIFE: u64 = 1200;

/// Clock differences at one moment, in whole seconds.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::doctor) struct Clocks {
    /// Offset of this machine's clock from the API server's. Positive if it is ahead.
    pub(in crate::doctor) of_cluster: Option<i64>,
    /// Offset of this machine's clock from Google's. Positive if it is ahead.
    pub(in crate::doctor) of_google: Option<i64>,
}

/// Offset of `here` from `there`, in seconds. Positive if `here` is ahead.
pub(in crate::doctor) fn ahead(here: SystemTime, there: SystemTime) -> i64 {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    match here.duration_since(there) {
        Ok(ahead) => seconds(ahead),
        Err(behind) => -seconds(behind.duration()),
    }
}

/// Judges the token's claims.
pub(in crate::doctor) fn claims(claims: Option<&Claims>, audience: &str) -> Finding {
    let tried = Step::Claims.trying("what that token says");
    let Some(Claims { issuer, audiences, issued, expires, .. }) = claims else {
        return tried.trouble("the token is not a JSON web token, which Google needs").advising(
            "something changes the API server's answers; look at its admission webhooks and authentication proxy",
        );
    };
    if !audiences.iter().any(|listed| listed == audience) {
        let seen = format!("the token is for {}, and not for {audience}, which was asked for", audiences.join(", "));
        return tried.trouble(seen).advising("a webhook of the cluster changes token requests; exclude this one");
    }
    let life = expires.saturating_sub(*issued);
    let shown = time(Duration::from_secs(life));
    if life < MIN_LIFE {
        return tried
            .warning(format!("it lives for {shown} only, and so do all tokens that Google gives for it"))
            .advising("raise --service-account-max-token-expiration of the API server to 1h or more");
    }
    tried.ok(format!("issued by {issuer} for {shown}"))
}

/// Compares the clocks of this machine, the API server and Google. Google's is assumed to be right.
pub(in crate::doctor) fn clock(clocks: Clocks, node: &str) -> Finding {
    let tried = Step::Clock.trying("clocks");
    let is_off = |seconds: i64| seconds.unsigned_abs() > MAX_OFFSET;
    let by = |seconds: i64| {
        let direction = if seconds > 0 { "ahead of" } else { "behind" };
        format!("{} {direction}", time(Duration::from_secs(seconds.unsigned_abs())))
    };
    let set = commands::on_node(node, "chronyc -a makestep || systemctl restart systemd-timesyncd");
    match (clocks.of_google, clocks.of_cluster) {
        (None, None) => tried.not_tried("no server has said what the time is"),
        (Some(of_google), _) if is_off(of_google) => {
            let seen = format!("this machine's clock is {} Google's", by(of_google));
            tried.trouble(seen).advising("set the node's clock, and see why NTP does not").running(set)
        }
        (Some(of_google), Some(of_cluster)) if is_off(of_google - of_cluster) => {
            let seen = format!(
                "the API server's clock is {} Google's, so Google rejects its tokens",
                by(of_google - of_cluster)
            );
            tried
                .trouble(seen)
                .advising(
                    "set the clock of the control plane's machines (chronyc -a makestep), and see why NTP does not",
                )
                .looking("kubectl get nodes --selector=node-role.kubernetes.io/control-plane --output=wide")
        }
        (None, Some(of_cluster)) if is_off(of_cluster) => {
            let seen = format!("this machine's clock is {} the API server's; one of them is wrong", by(of_cluster));
            tried
                .trouble(seen)
                .advising("compare both with a clock that is right; if it is this machine's, set it")
                .running(set)
        }
        _ => tried.ok(format!("they agree to {MAX_OFFSET} s")),
    }
}

/// The discovery document that the API server publishes.
#[derive(Deserialize)]
struct Issuer {
    issuer: String,
}

/// A key set.
#[derive(Deserialize)]
struct Keys {
    keys: Vec<Key>,
}

#[derive(Deserialize)]
struct Key {
    #[serde(default)]
    kid: String,
}

/// Whether a key set has the key that signed a token. `None` if it is not a key set.
pub(in crate::doctor) fn has_key(keys: &[u8], claims: &Claims) -> Option<bool> {
    let Keys { keys } = serde_json::from_slice(keys).ok()?;
    Some(keys.iter().any(|key| key.kid == claims.key))
}

/// The issuer in an `OpenID` discovery document.
pub(in crate::doctor) fn issuer_in(document: &[u8]) -> Option<String> {
    serde_json::from_slice(document).ok().map(|Issuer { issuer }| issuer)
}

/// Compares the issuer and the keys that the API server publishes with those of the token.
pub(in crate::doctor) fn keys(
    claims: Option<&Claims>,
    issuer: &Result<Vec<u8>, RequestError>,
    keys: &Result<Vec<u8>, RequestError>,
) -> Finding {
    let tried = Step::Keys.trying("issuer and keys that the API server publishes");
    let by_hand = |what: Public| format!("kubectl get --raw {}", what.path());
    let (issuer, keys) = match (issuer, keys) {
        (Ok(issuer), Ok(keys)) => (issuer, keys),
        (Err(error), _) | (_, Err(error)) => {
            let is_refused = matches!(error.failure(), Failure::Refused(_));
            let why = if is_refused {
                "this credential may not read them, as nodes may not"
            } else {
                "they could not be read"
            };
            return tried.not_tried(why).saying(error.to_string());
        }
    };
    let Some(published) = issuer_in(issuer) else {
        return tried.warning("what it publishes is not a document of OpenID").looking(by_hand(Public::Issuer));
    };
    let Some(claims) = claims else {
        return tried.ok(format!("the issuer is {published}; there is no token to compare it with"));
    };
    if published != claims.issuer {
        let seen = format!("it publishes the issuer {published}, and its tokens are of {}", claims.issuer);
        return tried
            .warning(seen)
            .advising("the first --service-account-issuer of every API server must be the same")
            .looking(by_hand(Public::Issuer));
    }
    match has_key(keys, claims) {
        Some(true) => tried.ok("they are those of the token"),
        _ => tried.warning(format!("the key {} that signed the token is not among them", claims.key))
            .advising("every API server needs the same --service-account-signing-key-file, and its public part among the keys")
            .looking(by_hand(Public::Keys)),
    }
}
