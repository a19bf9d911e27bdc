//! Service account tokens: [`Jwks`] verifies their signatures, and [`Claims`] are their contents.

use std::collections::HashMap;
use std::fmt::Display;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rsa::PublicKeyComponents;
use ring::signature::RSA_PKCS1_2048_8192_SHA256;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::answer::Refusal;
use super::{Pool, Workload};

/// Maximum lifetime of a token that Google accepts, in seconds (its document on workload identity federation).
const MAX_LIFE_SECONDS: u64 = 24 * 60 * 60;

/// Maximum time by which a clock may be behind the issuer's, in seconds.
const SKEW_SECONDS: u64 = 60;

/// Public keys that sign service account tokens, by their `kid`. They are for RS256.
#[derive(Debug, Clone, Default)]
pub struct Jwks(HashMap<String, PublicKeyComponents<Vec<u8>>>);

/// A key set in JSON.
#[derive(Deserialize)]
struct Written {
    keys: Vec<WrittenKey>,
}

#[derive(Deserialize)]
struct WrittenKey {
    kid: String,
    #[serde(deserialize_with = "base64url")]
    n: Vec<u8>,
    #[serde(deserialize_with = "base64url")]
    e: Vec<u8>,
}

fn base64url<'de, D: Deserializer<'de>>(text: D) -> Result<Vec<u8>, D::Error> {
    URL_SAFE_NO_PAD.decode(String::deserialize(text)?).map_err(D::Error::custom)
}

impl Jwks {
    /// Parses the response of an API server's `/openid/v1/jwks`. All its keys must be RSA keys.
    pub fn parse(json: &str) -> Result<Self, serde_json::Error> {
        let written: Written = serde_json::from_str(json)?;
        let key = |WrittenKey { kid, n, e }| (kid, PublicKeyComponents { n, e });
        Ok(Self(written.keys.into_iter().map(key).collect()))
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
    aud: Vec<String>,
    exp: u64,
    iat: u64,
    nbf: u64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<Kubernetes>,
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
        Some(Caller { workload, pod_uid: pod.as_ref()?.uid.clone(), exp: self.exp })
    }

    /// The caller, after a check of everything except the signature. `now` is in seconds since 1970.
    fn check(&self, pool: &Pool, now: u64) -> Result<Caller, Refusal> {
        let Self { iss, sub, aud, exp, iat, nbf, .. } = self;
        if *iss != pool.issuer {
            return refused(format_args!("The issuer in ID Token {iss} does not match the expected ones."));
        }
        if !aud.iter().any(|audience| pool.token_audiences.contains(audience)) {
            return refused(format_args!("The audience in ID Token {aud:?} does not match the expected audience."));
        }
        if *exp <= now {
            return refused(format_args!("ID Token issued at {iat} is stale to sign-in."));
        }
        if *nbf.max(iat) > now + SKEW_SECONDS {
            return refused(format_args!("ID Token issued at {iat} is not valid yet."));
        }
        if exp.saturating_sub(*iat) > MAX_LIFE_SECONDS {
            return refused(format_args!("ID Token issued at {iat} is valid for more than 24 hours."));
        }
        let Some(caller) = self.caller() else { return refused("The ID Token is not bound to a pod.") };
        let Workload { namespace, service_account } = &caller.workload;
        if *sub != format!("system:serviceaccount:{namespace}:{service_account}") {
            return refused(format_args!("The subject {sub} is not the ID Token's service account."));
        }
        Ok(caller)
    }
}

/// The caller, if a pool accepts its service account token. `now` is in seconds since 1970.
pub(super) fn verify(token: &str, keys: &Jwks, pool: &Pool, now: u64) -> Result<Caller, Refusal> {
    keys.verify(token)?.check(pool, now)
}
