use bytes::Bytes;
use http_body::Body;
use http_body_util::{Empty, Full};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

const ID: &str = "/computeMetadata/v1/instance/id";

fn parse<B: Body>(request: http::Request<B>) -> Result<Box<Request>, RequestError> {
    let (head, body) = request.into_parts();
    Request::parse(head, !body.is_end_stream(), None, &AllowedHosts::default())
}

fn get(target: &str, headers: &[(&str, &str)]) -> Result<Box<Request>, RequestError> {
    let request =
        headers.iter().fold(http::Request::get(target), |request, (name, value)| request.header(*name, *value));
    parse(request.body(Empty::<Bytes>::new()).expect("a request"))
}

const HOST: (&str, &str) = ("host", "169.254.169.254");
const FLAVOR: (&str, &str) = ("metadata-flavor", "Google");

#[test]
fn a_valid_request_is_parsed() {
    let request = get("/computeMetadata//v1/instance/id?alt=json", &[HOST, FLAVOR]).expect("a good request");
    assert_eq!((request.method, request.endpoint), (Method::Get, Endpoint::Leaf));
    assert_eq!(request.path.as_str(), ID);
    assert_eq!(request.query.to_string(), "?alt=json");
    assert_eq!(request.host.as_str(), "169.254.169.254");
}

#[test]
fn only_a_ping_needs_no_flavor() {
    assert!(get("/", &[HOST]).is_ok());
    assert!(get("/?", &[HOST]).is_ok());
    assert!(
        matches!(get("/?recursive=true", &[HOST]), Err(RequestError::Flavor)),
        "the proxy would add its own flavor"
    );
    assert!(get("/", &[HOST, ("metadata-flavor", "Not Google")]).is_ok());
    assert!(matches!(get(ID, &[HOST]), Err(RequestError::Flavor)));
    assert!(matches!(get("/computeMetadata/", &[HOST]), Err(RequestError::Flavor)));
}

#[test]
fn forwarded_requests_are_refused_even_at_the_root() {
    assert!(matches!(get("/", &[HOST, ("x-forwarded-for", "")]), Err(RequestError::Forwarded(_))));
    assert!(matches!(get(ID, &[HOST, FLAVOR, ("forwarded", "for=1")]), Err(RequestError::Forwarded(_))));
}

#[test]
fn exactly_one_host_is_required() {
    assert!(matches!(get(ID, &[FLAVOR]), Err(RequestError::Malformed(Malformed::HostCount))));
    assert!(matches!(get(ID, &[FLAVOR, HOST, HOST]), Err(RequestError::Malformed(Malformed::HostCount))));
    assert!(matches!(get(ID, &[FLAVOR, ("host", "evil.example")]), Err(RequestError::Host(_))));
}

#[test]
fn http_1_0_needs_no_host() {
    let old = |headers: &[(&str, &str)]| {
        let request = http::Request::get(ID).version(Version::HTTP_10).header(FLAVOR.0, FLAVOR.1);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        parse(request.body(Empty::<Bytes>::new()).expect("a request"))
    };
    assert_eq!(old(&[]).expect("a good request").host.as_str(), "metadata.google.internal");
    assert!(old(&[HOST]).is_ok());
    assert!(matches!(old(&[("host", "evil.example")]), Err(RequestError::Host(_))));
    assert!(matches!(old(&[HOST, HOST]), Err(RequestError::Malformed(Malformed::HostCount))));
}

#[test]
fn the_authority_of_an_absolute_target_is_checked_too() {
    let absolute = |authority: &str| get(&format!("http://{authority}{ID}"), &[HOST, FLAVOR]);
    let request = absolute("metadata.goog").expect("a name of the server");
    assert_eq!((request.path.as_str(), request.host.as_str()), (ID, "metadata.goog"));
    assert!(matches!(absolute("evil.example"), Err(RequestError::Host(_))));
    assert!(matches!(get("http://metadata/", &[("host", "evil.example")]), Err(RequestError::Host(_))));
    assert!(matches!(get("https://metadata/", &[HOST]), Err(RequestError::Malformed(Malformed::Target))));
}

#[test]
fn a_body_is_refused_and_an_upgrade_ignored() {
    let with_body = http::Request::get("/")
        .header(HOST.0, HOST.1)
        .body(Full::new(Bytes::from_static(b"GET /")))
        .expect("a request");
    assert!(matches!(parse(with_body), Err(RequestError::Malformed(Malformed::Body))));
    assert!(get("/", &[HOST, ("connection", "upgrade"), ("upgrade", "h2c")]).is_ok());
}

#[test]
fn only_a_chunked_body_may_be_known_to_be_empty() {
    let chunked = ("transfer-encoding", "Chunked");
    assert!(get(ID, &[HOST, FLAVOR, chunked]).is_ok());
    for codings in [&[("transfer-encoding", "gzip, chunked")][..], &[chunked, chunked], &[("transfer-encoding", "")]] {
        let read = get(ID, &[&[HOST, FLAVOR], codings].concat());
        assert!(matches!(read, Err(RequestError::Malformed(Malformed::Body))), "{codings:?}");
    }
}

#[test]
fn targets_are_limited_in_length_and_must_be_paths() {
    let long = |bytes: usize| format!("/{}", "a".repeat(bytes - 1));
    assert!(!matches!(get(&long(MAX_TARGET_BYTES), &[HOST, FLAVOR]), Err(RequestError::TargetTooLong { .. })));
    assert!(matches!(get(&long(MAX_TARGET_BYTES + 1), &[HOST, FLAVOR]), Err(RequestError::TargetTooLong { .. })));
    assert!(matches!(get("*", &[HOST, FLAVOR]), Err(RequestError::Malformed(Malformed::Target))));
}

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// The longest accepted target that starts with this prefix and continues with copies of a text.
fn filled(prefix: &str, text: &str) -> String {
    prefix.to_owned() + &text.repeat((MAX_TARGET_BYTES - prefix.len()) / text.len())
}

#[test]
fn a_target_that_grows_upstream_is_refused_with_the_numbers() {
    let refused = get(&filled(&format!("{TOKEN}?audience="), "\u{e9}"), &[HOST, FLAVOR]);
    let Err(RequestError::TargetTooLong { bytes, limit }) = refused else { panic!("{refused:?}") };
    assert!(bytes > 2 * limit && limit == MAX_TARGET_BYTES, "{bytes} bytes, {limit} allowed");
}

#[test]
fn a_long_list_of_scopes_is_accepted_in_every_spelling() {
    for scope in [
        "https://www.googleapis.com/auth/devstorage.read_only,",
        "https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fdevstorage.read_only%2C",
    ] {
        let request = get(&filled(&format!("{TOKEN}?scopes="), scope), &[HOST, FLAVOR]);
        assert!(request.is_ok(), "{scope}: {request:?}");
    }
}

proptest! {
    #[test]
    fn no_upstream_target_exceeds_the_limit(
        path in select(vec![TOKEN, ID, "/x//y/./z", "/0.1/meta-data/%40"]),
        key in select(vec!["audience", "scopes", "last_etag", "%61lt", "unknown"]),
        text in "([a-z/:,@*?=+|{}\"'()^`~]|%[2-7][0-9a-f]|\u{e9}|\u{1f600}){1,6}",
        share in 1_usize..=16,
    ) {
        let mut target = filled(&format!("{path}?{key}="), &text);
        let keep = target.len() * share / 16;
        let at = (0..=keep).rev().find(|at| target.is_char_boundary(*at) && !target[..*at].ends_with('%'));
        target.truncate(at.unwrap_or_default());
        if target.parse::<PathAndQuery>().is_ok() && let Ok(request) = get(&target, &[HOST, FLAVOR]) {
            let sent = format!("{}{}", request.path, request.query);
            prop_assert!(sent.len() <= MAX_TARGET_BYTES, "{} bytes of {}", sent.len(), target);
        }
    }
}

#[test]
fn only_get_and_head_are_allowed() {
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "get"] {
        let request = http::Request::builder().method(method).uri(ID).header(HOST.0, HOST.1).header(FLAVOR.0, FLAVOR.1);
        let read = parse(request.body(Empty::<Bytes>::new()).expect("a request"));
        assert!(matches!(read, Err(RequestError::Method(_))), "{method}");
    }
}

#[test]
fn a_token_requested_by_post_is_not_found_with_the_setting_that_helps() {
    let post = |target: &str| {
        let request = http::Request::post(target).header(HOST.0, HOST.1).header(FLAVOR.0, FLAVOR.1);
        parse(request.body(Empty::<Bytes>::new()).expect("a request"))
    };
    let accounts = "/computeMetadata/v1/instance/service-accounts";
    for target in ["default/token", "default/identity?audience=x", "a@b.c/token?transport=mtls", "default//token"] {
        let refused = post(&format!("{accounts}/{target}"));
        let Err(error @ RequestError::BoundToken(NotBound::Off)) = refused else { panic!("{target}: {refused:?}") };
        assert!(error.to_string().contains("GOOGLE_API_ENABLE_RUNTIME_BOUND_TOKEN=false"), "{error}");
    }
    for target in ["default/email", "default/", "default/token/", ""] {
        assert!(matches!(post(&format!("{accounts}/{target}")), Err(RequestError::Method(_))), "{target}");
    }
}
