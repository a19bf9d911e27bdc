//! The body of a POST for a token. What is accepted must have one reading.
#![no_main]

use http::Request as HttpRequest;
use libfuzzer_sys::fuzz_target;
use protocol::metadata::certificate::{MAX_BODY_BYTES, MAX_CERTIFICATES};
use protocol::metadata::host::AllowedHosts;
use protocol::metadata::{Request, RequestError};

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

fuzz_target!(|body: &[u8]| {
    let head = HttpRequest::post(TOKEN).header("Host", "metadata").header("Metadata-Flavor", "Google");
    let (head, ()) = head.body(()).expect("a request").into_parts();
    let request = match Request::parse_posted(head, body, None, &AllowedHosts::default()) {
        Ok(request) => request,
        Err(RequestError::BoundToken(_)) => return,
        Err(error) => panic!("only the body is wrong: {error}"),
    };
    let bound_to = request.bound_to.expect("a POST for a token");
    assert_eq!(bound_to.fingerprint.to_string().len(), 43);
    assert!(!bound_to.is_of("", ""));
    assert!(body.len() <= MAX_BODY_BYTES);
    // As a lenient reader has it.
    let value: serde_json::Value = serde_json::from_slice(body).expect("JSON");
    let fields = value.as_object().expect("an object");
    let chain = fields["certificate_chain"].as_str().expect("a text");
    let begins = chain.matches("-----BEGIN").count();
    assert!(fields.len() == 1 && (1..=MAX_CERTIFICATES).contains(&begins));
    assert!(chain.starts_with(['\r', '\n', '-']) && chain.matches("-----").count() == 4 * begins);
});
