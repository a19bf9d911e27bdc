//! [`Authority`]: a certificate authority for one fake Google, created at its start.
//!
//! The certificates are encoded here: the code for the few fields is smaller than the crates that rcgen would add.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{Error, ServerConfig};

use super::clock::{Clock, utc_time};
use super::der;

/// Validity of a certificate after and before its creation, in seconds. The latter is for clients whose clocks are
/// behind.
const LIFE_SECONDS: u64 = 365 * 24 * 60 * 60;
const BEFORE_SECONDS: u64 = 60 * 60;

const ECDSA_WITH_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1d, 14];
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 15];
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 17];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 35];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 37];
const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];

const AUTHORITY_NAME: &str = "Fake Google test authority";
const SERVER_NAME: &str = "Fake Google";

/// A certificate authority. Clones are the same authority. Pass it to [`Settings`](super::Settings) again to
/// restart a fake Google that clients still trust.
#[derive(Clone)]
pub struct Authority(Arc<Pair>);

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

/// A key with its certificate.
struct Pair {
    key: Key,
    certificate: Vec<u8>,
}

struct Key {
    pkcs8: Vec<u8>,
    pair: EcdsaKeyPair,
    random: SystemRandom,
}

impl Authority {
    /// A new authority with its own key.
    ///
    /// # Panics
    ///
    /// If the system has no random numbers.
    #[expect(clippy::new_without_default, reason = "two of them are never equal")]
    pub fn new() -> Self {
        let key = Key::new();
        let constraints = der::sequence(&[der::yes()]);
        let extensions = [
            extension(BASIC_CONSTRAINTS, true, &constraints),
            // keyCertSign.
            extension(KEY_USAGE, true, &der::bits(2, &[0b0000_0100])),
            extension(SUBJECT_KEY_ID, false, &der::octets(&key.id())),
        ];
        let certificate = certificate(&key, AUTHORITY_NAME, &key, &extensions.concat());
        Self(Arc::new(Pair { key, certificate }))
    }

    /// The authority's certificate, in PEM.
    pub fn pem(&self) -> String {
        pem(&self.0.certificate)
    }

    /// A chain in PEM as a pod with an agent certificate has it: of a new key, with this SPIFFE ID.
    pub fn agent_chain(&self, name: &str) -> String {
        let (signer, key) = (&self.0.key, Key::new());
        let extensions = [
            extension(KEY_USAGE, true, &der::bits(7, &[0b1000_0000])),
            extension(SUBJECT_ALT_NAME, true, &der::sequence(&[der::implicit(6, name.as_bytes())])),
        ];
        pem(&certificate(signer, "", &key, &extensions.concat())) + &self.pem()
    }

    /// A TLS configuration for a server with these names and addresses, with HTTP/1.1 in ALPN.
    pub(super) fn server(&self, names: &[&str]) -> Result<ServerConfig, Error> {
        let Pair { key: signer, certificate: root } = &*self.0;
        let key = Key::new();
        let names: Vec<_> = names.iter().map(|name| alt_name(name)).collect();
        let extensions = [
            // digitalSignature.
            extension(KEY_USAGE, true, &der::bits(7, &[0b1000_0000])),
            extension(EXTENDED_KEY_USAGE, false, &der::sequence(&[der::object_id(SERVER_AUTH)])),
            extension(SUBJECT_ALT_NAME, false, &der::sequence(&[names.concat()])),
            extension(SUBJECT_KEY_ID, false, &der::octets(&key.id())),
            extension(AUTHORITY_KEY_ID, false, &der::sequence(&[der::implicit(0, &signer.id())])),
        ];
        let leaf = certificate(signer, SERVER_NAME, &key, &extensions.concat());
        let chain = [leaf, root.clone()].map(CertificateDer::from).to_vec();
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, PrivatePkcs8KeyDer::from(key.pkcs8).into())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl Key {
    fn new() -> Self {
        const RANDOM: &str = "the system has random numbers";
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect(RANDOM);
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).expect("ring reads what it wrote");
        Self { pkcs8: pkcs8.as_ref().to_vec(), pair, random }
    }

    fn public(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    /// The key identifier in certificates (RFC 7093, section 2).
    fn id(&self) -> Vec<u8> {
        digest(&SHA256, self.public()).as_ref()[..20].to_vec()
    }

    fn sign(&self, content: &[u8]) -> Vec<u8> {
        self.pair.sign(&self.random, content).expect("the system has random numbers").as_ref().to_vec()
    }

    /// A positive number of 16 bytes, for a certificate.
    fn serial(&self) -> Vec<u8> {
        let mut serial = [0; 16];
        self.random.fill(&mut serial).expect("the system has random numbers");
        serial[0] = serial[0] & 0x3f | 0x40;
        der::integer(&serial)
    }
}

fn pem(certificate: &[u8]) -> String {
    let text = STANDARD.encode(certificate);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// An X.509 certificate of version 3 for a key.
fn certificate(signer: &Key, subject: &str, key: &Key, extensions: &[u8]) -> Vec<u8> {
    let now = Clock::new().now();
    let algorithm = der::sequence(&[der::object_id(ECDSA_WITH_SHA256)]);
    let [from, until] = [now.saturating_sub(BEFORE_SECONDS), now + LIFE_SECONDS].map(|at| der::time(&utc_time(at)));
    let key_type = der::sequence(&[der::object_id(EC_PUBLIC_KEY), der::object_id(P256)]);
    let content = der::sequence(&[
        der::explicit(0, &der::integer(&[2])),
        signer.serial(),
        algorithm.clone(),
        name(AUTHORITY_NAME),
        der::sequence(&[from, until]),
        name(subject),
        der::sequence(&[key_type, der::bits(0, key.public())]),
        der::explicit(3, &der::sequence(&[extensions.to_vec()])),
    ]);
    let signature = der::bits(0, &signer.sign(&content));
    der::sequence(&[content, algorithm, signature])
}

fn name(common: &str) -> Vec<u8> {
    let attribute = der::sequence(&[der::object_id(COMMON_NAME), der::text(common)]);
    der::sequence(&[der::set(&attribute)])
}

fn extension(id: &[u8], is_critical: bool, content: &[u8]) -> Vec<u8> {
    let critical = if is_critical { der::yes() } else { Vec::new() };
    der::sequence(&[der::object_id(id), critical, der::octets(content)])
}

fn alt_name(name: &str) -> Vec<u8> {
    match name.parse() {
        Ok(IpAddr::V4(addr)) => der::implicit(7, &addr.octets()),
        Ok(IpAddr::V6(addr)) => der::implicit(7, &addr.octets()),
        Err(_) => der::implicit(2, name.as_bytes()),
    }
}
