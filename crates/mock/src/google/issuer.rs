//! [`Issuer`]: signs service account tokens as an API server does, for tests and demos without one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::{Value, json};

use super::{Jwks, Workload};

/// Published keys, which are worthless outside a fake Google. ring cannot generate RSA keys.
const KEYS: [&[u8]; 2] = [include_bytes!("keys/issuer-1.der"), include_bytes!("keys/issuer-2.der")];

/// An API server's signing key, and the `iss` of its tokens.
#[derive(Debug)]
pub struct Issuer {
    url: String,
    key: RsaKeyPair,
    serial: AtomicU64,
}

/// A pod, as described in a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// The pod's service account.
    pub workload: Workload,
    pub name: String,
    pub uid: String,
}

impl Issuer {
    /// An issuer with the same key as all others made by this function.
    pub fn new(url: &str) -> Self {
        Self::with_key(url, KEYS[0])
    }

    /// An issuer with another key, as after a rotation.
    pub fn rotated(url: &str) -> Self {
        Self::with_key(url, KEYS[1])
    }

    fn with_key(url: &str, key: &[u8]) -> Self {
        let key = RsaKeyPair::from_der(key).expect("the file has a key of 2048 bits");
        Self { url: url.to_owned(), key, serial: AtomicU64::new(0) }
    }

    /// The `iss` of the issuer's tokens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The issuer's public key.
    pub fn jwks(&self) -> Jwks {
        Jwks::parse(&self.jwks_json()).expect("what is written here can be read")
    }

    /// The issuer's public key, in the format of `/openid/v1/jwks`.
    pub fn jwks_json(&self) -> String {
        let PublicKeyComponents::<Vec<u8>> { n, e } = self.key.public().into();
        let [modulus, exponent] = [n, e].map(|digits| URL_SAFE_NO_PAD.encode(digits));
        let key = json!({
            "use": "sig", "kty": "RSA", "alg": "RS256", "kid": self.kid(), "n": modulus, "e": exponent,
        });
        json!({ "keys": [key] }).to_string()
    }

    /// A token bound to a pod, as returned by `TokenRequest`. `issued` is in seconds since 1970.
    pub fn token(&self, pod: &Pod, audience: &str, issued: u64, life: Duration) -> String {
        self.sign(&self.claims(pod, audience, issued, life))
    }

    /// The claims of [`Issuer::token`], so that a test can change them.
    pub(super) fn claims(&self, pod: &Pod, audience: &str, issued: u64, life: Duration) -> Value {
        let Pod { workload: Workload { namespace, service_account }, name, uid } = pod;
        let serial = self.serial.fetch_add(1, Relaxed) + 1;
        json!({
            "aud": [audience],
            "exp": issued + life.as_secs(),
            "iat": issued,
            "iss": self.url,
            "jti": format!("00000000-0000-4000-8000-{serial:012}"),
            "kubernetes.io": {
                "namespace": namespace,
                "node": { "name": "node-1", "uid": "11111111-1111-4111-8111-111111111111" },
                "pod": { "name": name, "uid": uid },
                "serviceaccount": { "name": service_account, "uid": format!("uid-of-{namespace}-{service_account}") },
            },
            "nbf": issued,
            "sub": format!("system:serviceaccount:{namespace}:{service_account}"),
        })
    }

    /// Signs any claims.
    pub(super) fn sign(&self, claims: &Value) -> String {
        self.sign_with_header(&json!({ "alg": "RS256", "kid": self.kid() }), claims)
    }

    /// Signs any header and claims, always with RS256, regardless of the header.
    pub(super) fn sign_with_header(&self, header: &Value, claims: &Value) -> String {
        let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let content = format!("{header}.{claims}");
        let mut signature = vec![0; self.key.public().modulus_len()];
        let signed = self.key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), content.as_bytes(), &mut signature);
        signed.expect("the signature has the length of the key");
        format!("{content}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// The key ID, a hash of the key as in Kubernetes.
    fn kid(&self) -> String {
        URL_SAFE_NO_PAD.encode(digest(&SHA256, self.key.public().as_ref()))
    }
}
