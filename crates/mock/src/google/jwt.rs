//! Service account tokens: [`Jwks`] verifies their signatures, and [`Claims`] are their contents.

use std::collections::HashMap;
use std::fmt::Display;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rsa::PublicKeyComponents;
use ring::signature::RSA_PKCS1_2048_8192_SHA256;
use serde::Deserialize;

use super::answer::Refusal;
use super::{Pool, Workload};

/// Maximum lifetime of a token that Google accepts, in seconds (its document on workload identity federation).
const MAX_LIFE_SECONDS: u64 = 24 * 60 * 60;

/// Maximum time by which a clock may be behind the issuer's, in seconds.
const SKEW_SECONDS: u64 = 60;

/// Public keys that sign service account tokens, by their `kid`. Only keys for RS256.
#[derive(Debug, Clone, Default)]
pub struct Jwks(HashMap<String, PublicKeyComponents<Vec<u8>>>);

/// A key set in JSON.
#[derive(Deserialize)]
struct Written {
    keys: Vec<WrittenKey>,
}

#[derive(Deserialize)]
struct WrittenKey {
    kty: String,
    alg: Option<String>,
    #[serde(default)]
    kid: String,
    #[serde(default)]
    n: Number,
    #[serde(default)]
    e: Number,
}

impl Jwks {
    /// Parses the response of an API server's `/openid/v1/jwks`. Keys that are not for RS256 are left out.
    pub fn parse(json: &str) -> Result<Self, serde_json::Error> {
        let written: Written = serde_json::from_str(json)?;
        let is_rs256 = |key: &WrittenKey| key.kty == "RSA" && key.alg.as_deref().is_none_or(|alg| alg == "RS256");
        let keys = written.keys.into_iter().filter(is_rs256);
        Ok(Self(keys.map(|key| (key.kid, PublicKeyComponents { n: key.n.0, e: key.e.0 })).collect()))
    }

    /// The claims of a token, if one of the keys signed it.
    fn verify(&self, token: &str) -> Result<Claims, Refusal> {
        let malformed = || Refusal::grant("Unable to parse the ID Token.");
        let (signed, signature) = token.rsplit_once('.').ok_or_else(malformed)?;
        let (header, claims) = signed.split_once('.').ok_or_else(malformed)?;
        let header: Header = part(header).ok_or_else(malformed)?;
        let claims = part(claims).ok_or_else(malformed)?;
        if header.alg != "RS256" {
            return refused(format_args!("The algorithm {} of the ID Token is not supported.", header.alg));
        }
        let Some(key) = header.kid.as_ref().and_then(|kid| self.0.get(kid)) else {
            return refused("The ID Token is signed by a key that the issuer does not have.");
        };
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| malformed())?;
        let verified = key.verify(&RSA_PKCS1_2048_8192_SHA256, signed.as_bytes(), &signature);
        verified.map(|()| claims).map_err(|_| Refusal::grant("Invalid signature of the ID Token."))
    }
}

/// Refuses a token. Google's wording is used where it is known.
fn refused<T>(why: impl Display) -> Result<T, Refusal> {
    Err(Refusal::grant(why.to_string()))
}

/// Big-endian bytes without leading zeros, in base64url.
#[derive(Default, Deserialize)]
#[serde(try_from = "String")]
struct Number(Vec<u8>);

impl TryFrom<String> for Number {
    type Error = base64::DecodeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let digits = URL_SAFE_NO_PAD.decode(text.trim_end_matches('='))?;
        let zeros = digits.iter().take_while(|digit| **digit == 0).count();
        Ok(Self(digits[zeros..].to_vec()))
    }
}

fn part<T: for<'a> Deserialize<'a>>(text: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
}

/// The claims of a service account token. Times are in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Claims {
    iss: String,
    sub: String,
    aud: Audiences,
    exp: u64,
    iat: u64,
    nbf: Option<u64>,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<Kubernetes>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Kubernetes {
    namespace: String,
    pod: Option<Object>,
    serviceaccount: Object,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Object {
    name: String,
    uid: String,
}

/// The caller that a service account token identifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) workload: Workload,
    pub(super) pod_uid: String,
}

/// A service account token that a pool accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verified {
    pub(super) caller: Caller,
    /// Expiry of the token, in seconds since 1970.
    pub(super) exp: u64,
}

impl Claims {
    /// The claims of a token, without any check. `None` if it is not a token.
    pub(super) fn unverified(token: &str) -> Option<Self> {
        part(token.split('.').nth(1)?)
    }

    /// The caller, if the token is bound to a pod.
    pub(super) fn caller(&self) -> Option<Caller> {
        let Kubernetes { namespace, pod, serviceaccount } = self.kubernetes.as_ref()?;
        let workload = Workload::new(namespace, &serviceaccount.name);
        Some(Caller { workload, pod_uid: pod.as_ref()?.uid.clone() })
    }

    /// Checks everything except the signature. `now` is in seconds since 1970.
    fn check(&self, pool: &Pool, now: u64) -> Result<Verified, Refusal> {
        let Self { iss, sub, aud, exp, iat, nbf, kubernetes } = self;
        let audiences = match aud {
            Audiences::One(one) => std::slice::from_ref(one),
            Audiences::Several(several) => several,
        };
        if *iss != pool.issuer {
            return refused(format_args!("The issuer in ID Token {iss} does not match the expected ones."));
        }
        if !audiences.iter().any(|audience| pool.token_audiences.contains(audience)) {
            return refused(format_args!(
                "The audience in ID Token {audiences:?} does not match the expected audience."
            ));
        }
        if *exp <= now {
            return refused(format_args!("ID Token issued at {iat} is stale to sign-in."));
        }
        if nbf.unwrap_or(*iat).max(*iat) > now + SKEW_SECONDS {
            return refused(format_args!("ID Token issued at {iat} is not valid yet."));
        }
        if exp.saturating_sub(*iat) > MAX_LIFE_SECONDS {
            return refused(format_args!("ID Token issued at {iat} is valid for more than 24 hours."));
        }
        let unbound = || refused("The ID Token is not bound to a pod.");
        let Some(Kubernetes { namespace, pod: Some(pod), serviceaccount }) = kubernetes else { return unbound() };
        if [&pod.name, &pod.uid, &serviceaccount.uid].iter().any(|text| text.is_empty()) {
            return unbound();
        }
        if *sub != format!("system:serviceaccount:{namespace}:{}", serviceaccount.name) {
            return refused(format_args!("The subject {sub} is not the ID Token's service account."));
        }
        let workload = Workload::new(namespace, &serviceaccount.name);
        Ok(Verified { caller: Caller { workload, pod_uid: pod.uid.clone() }, exp: *exp })
    }
}

/// Verifies a service account token for a pool. `now` is in seconds since 1970.
pub(super) fn verify(token: &str, keys: &Jwks, pool: &Pool, now: u64) -> Result<Verified, Refusal> {
    keys.verify(token)?.check(pool, now)
}
