use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::*;
use crate::switch::is_full_size;

/// A leaf for team-0/app-0 and its authority, as openssl writes them.
const CHAIN: &str = include_str!("chain.pem");

const NAME: &str = "spiffe://agents.global.org-1.system.id.goog/ns/team-0/sa/app-0";

/// By openssl.
const FINGERPRINT: &str = "sLUYWJJyjzGxLaYWAvlR4Ky7nDxFe0CPhBkhKVAt8Vo";

fn body(chain: &str) -> String {
    json!({ "certificate_chain": chain }).to_string()
}

fn read(chain: &str) -> Result<BoundTo, NotBound> {
    BoundTo::parse(body(chain).as_bytes())
}

fn pem(der: &[u8]) -> String {
    format!("{BEGIN}\n{}\n{END}\n", STANDARD.encode(der))
}

fn leaf() -> Vec<u8> {
    CertificateDer::from_pem_slice(CHAIN.as_bytes()).expect("a certificate").to_vec()
}

/// The leaf with another name of the same length. Its signature is wrong, and nobody looks.
fn with_name(name: &str) -> String {
    assert_eq!(name.len(), NAME.len(), "{name}");
    let mut der = leaf();
    let at = der.windows(NAME.len()).position(|part| part == NAME.as_bytes()).expect("its name");
    der[at..at + NAME.len()].copy_from_slice(name.as_bytes());
    pem(&der)
}

#[test]
fn a_chain_names_the_account_and_the_certificate() {
    let bound_to = read(CHAIN).expect("a chain");
    assert!(bound_to.is_of("team-0", "app-0"));
    assert!(!bound_to.is_of("team-0", "app-1") && !bound_to.is_of("team-1", "app-0"));
    assert_eq!(bound_to.fingerprint.to_string(), FINGERPRINT);
    let windows = CHAIN.replace('\n', "\r\n");
    assert_eq!(read(&windows).as_ref(), Ok(&bound_to));
    assert_eq!(read(&pem(&leaf())), Ok(bound_to), "one line, and no authority");
}

#[test]
fn another_certificate_has_another_fingerprint() {
    let other = read(&with_name(&NAME.replace("app-0", "app-1"))).expect("a chain");
    assert!(other.is_of("team-0", "app-1") && other.fingerprint.to_string() != FINGERPRINT);
}

#[test]
fn any_other_form_is_refused() {
    let mut bodies = vec![
        String::new(),
        "{}".to_owned(),
        "null".to_owned(),
        json!([CHAIN]).to_string(),
        json!({ "certificate_chain": [CHAIN] }).to_string(),
        json!({ "certificate_chain": CHAIN, "more": 1 }).to_string(),
        body(CHAIN) + "x",
        body(&CHAIN.repeat(20)),
    ];
    let twice = body(CHAIN);
    bodies.push(format!("{},{}", &twice[..twice.len() - 1], &twice[1..]));
    for body in bodies {
        assert_eq!(BoundTo::parse(body.as_bytes()), Err(NotBound::Form), "{body:.80}");
    }
    assert_eq!(BoundTo::parse(b"{\"certificate_chain\":\"\xff\"}"), Err(NotBound::Form));
}

#[test]
fn only_certificates_are_in_a_chain_and_only_a_few() {
    let one = pem(&leaf());
    assert!(read(&one.repeat(MAX_CERTIFICATES)).is_ok());
    for chain in [
        "",
        "\n",
        BEGIN,
        &format!("{one}x"),
        &format!("# leaf\n{one}"),
        &one[..one.len() - 8],
        &one.replace(END, ""),
        &one.replace("CERTIFICATE", "PRIVATE KEY"),
        &format!("{one}-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
        &one.replacen('A', "-", 1),
        &one.repeat(MAX_CERTIFICATES + 1),
    ] {
        assert_eq!(read(chain), Err(NotBound::Pem), "{chain:.120}");
    }
}

#[test]
fn every_certificate_must_be_one() {
    let one = pem(&leaf());
    let short = leaf();
    for bad in [pem(b""), pem(b"\x30\x00"), pem(&short[..short.len() - 1]), pem(&[&leaf()[..], b"\0"].concat())] {
        assert_eq!(read(&bad), Err(NotBound::Certificate));
        assert_eq!(read(&format!("{one}{bad}")), Err(NotBound::Certificate), "also after the leaf");
    }
}

#[test]
fn the_leaf_must_have_one_name_of_google() {
    let (_, authority) = CHAIN.split_at(CHAIN.rfind(BEGIN).expect("two certificates"));
    assert_eq!(read(authority), Err(NotBound::Name), "without a name");
    for name in [
        "spiffe://agents.global.org-1.system.id.example/ns/team-0/sa/a0",
        "spiffe://agents.global.org-1.system.id.goog/ns/team-0/sa/app/0",
        "spiffe://agents.global.org-1.system.id.goog/ns/team/0/sa/app-0",
        "spiffe://agents.global.org-1.system.id.goog/ns/team-0/sa/APP-0",
        "spiffe://agents.global.org-1.system.id.goog/ns/sa/sa/sa/sa/sa/",
        "spiffe://agents.global.org-1.system.id.goog/ns/team-0/as/app-0",
        "spiffe://agents.global.org-1.system.id.goog?ns/team-0/sa/app-0",
        "SPIFFE://agents.global.org-1.system.id.goog/ns/team-0/sa/app-0",
        "spiffe://agents.global.org-1@system.id.goog/ns/team-0/sa/app-0",
        "spiffe://agents.global.org-1.system.id.goog/ns/team-0/sa/app 0",
        "https://agents.global.org-1.system.id.goog/ns/team-00/sa/app-0",
    ] {
        assert_eq!(read(&with_name(name)), Err(NotBound::Name), "{name}");
    }
    for name in
        ["spiffe://shop.svc.id.goog/ns/a/sa/a", "spiffe://agents-nonprod.global.proj-1.system.id.goog/ns/a/sa/a"]
    {
        let padded = name.to_owned() + &"0".repeat(NAME.len() - name.len());
        assert!(read(&with_name(&padded)).is_ok(), "{padded}");
    }
}

/// A strict reader, written otherwise: by pki-types, and by the bytes of the name. `None` if it is not sure.
fn strictly(body: &[u8]) -> Option<(Vec<u8>, String)> {
    let Ok(Value::Object(fields)) = serde_json::from_slice(body) else { return None };
    let Some(Value::String(chain)) = fields.get("certificate_chain").filter(|_| fields.len() == 1) else { return None };
    let sections: Result<Vec<CertificateDer<'_>>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
    let leaf = sections.ok()?.first()?.to_vec();
    let at = leaf.windows(9).position(|part| part == b"spiffe://")?;
    // The tag of a URI, and its length in one byte.
    let name = leaf.get(at..at + usize::from(*leaf.get(at.checked_sub(1)?)?))?;
    let name = std::str::from_utf8(name).ok().filter(|_| leaf[at - 2] == 0x86)?;
    Some((leaf.clone(), name.to_owned()))
}

/// A body that is nearly good: pieces of it repeated, cut out, replaced.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let whole = select(vec![
        body(CHAIN),
        body(&pem(&leaf())),
        body(&with_name(&NAME.replace("app-0", "app-1"))),
        body(&CHAIN.replace('\n', "\r\n")),
        json!([CHAIN]).to_string(),
    ]);
    let piece = select(vec![
        &b""[..],
        b"\"",
        b"\\n",
        b"\\u000a",
        b"\\n\\n",
        b"=",
        b"A",
        b"-----BEGIN CERTIFICATE-----",
        b"-----END CERTIFICATE-----\\n",
        b"\xff",
        b"}",
        b"{\"certificate_chain\":\"",
        b",\"certificate_chain\":\"",
        b"\0",
    ]);
    let change = (any::<prop::sample::Index>(), 0..4_usize, piece, prop::option::of(any::<u8>()));
    (whole, vec(change, 0..4)).prop_map(|(whole, changes)| {
        let mut body = whole.into_bytes();
        for (at, cut, piece, byte) in changes {
            let at = at.index(body.len() + 1);
            let end = (at + cut).min(body.len());
            body.splice(at..end, piece.iter().copied().chain(byte));
        }
        body
    })
}

fn agree(body: &[u8]) {
    let Ok(bound_to) = BoundTo::parse(body) else { return };
    let (leaf, name) = strictly(body).unwrap_or_else(|| panic!("not so strict: {}", String::from_utf8_lossy(body)));
    assert_eq!(bound_to.fingerprint, Fingerprint(Sha256::digest(leaf).into()));
    assert!(name.ends_with(&format!("/ns/{}/sa/{}", bound_to.namespace, bound_to.account)), "{name}");
}

proptest! {
    #[test]
    fn what_is_accepted_reads_the_same_to_a_strict_reader(body in mutated()) {
        agree(&body);
    }

    #[test]
    fn any_bytes_are_read_or_refused(body in vec(any::<u8>(), 0..200)) {
        assert!(BoundTo::parse(&body).is_err());
    }
}

/// Memory is judged with a million, by itself:
/// `METADATA_PROXY_FULL_SIZE=1 cargo test --release -p gce-metadata-protocol --lib -- --nocapture many_mutated`.
#[test]
fn many_mutated_bodies_take_bounded_memory() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    let (mutated, mut runner) = (mutated(), TestRunner::deterministic());
    let (mut accepted, mut first) = (0, 0);
    let bodies = if is_full_size() { 1_000_000 } else { 5_000 };
    for number in 0..bodies {
        let body = mutated.new_tree(&mut runner).expect("a body").current();
        accepted += u32::from(BoundTo::parse(&body).is_ok());
        agree(&body);
        if number == 10_000 {
            first = peak();
        }
    }
    println!("{bodies} bodies, {accepted} accepted; resident peak {} KiB, {first} KiB after the first 10000", peak());
    assert!(accepted > bodies / 10, "{accepted} of {bodies}");
    assert!(!is_full_size() || peak() <= first + 1024);
}
