use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

use super::*;
use crate::failure::{ExchangeFailure, Failure, TokenFailure, Withheld};
use crate::layers::latency::Instruments;
use crate::tokens::Refused;
use protocol::metadata::path::PathError;
use protocol::metadata::{CallingPod, Malformed, Missing, RequestError, Unidentified};
use telemetry::Registry;
use telemetry::latency::Latency;

fn body_of(response: Response<Body>) -> String {
    let body: UnsyncBoxBody<_, _> = response.into_body().boxed_unsync();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let bytes = runtime.block_on(body.collect()).expect("a whole body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[test]
fn each_error_has_its_status() {
    let of_request = |error: RequestError| Error::from(error);
    for (error, status) in [
        (of_request(Malformed::Body.into()), 400),
        (of_request(RequestError::TargetTooLong { bytes: 2, limit: 1 }), 414),
        (of_request(RequestError::Method(http::Method::POST)), 405),
        (of_request(RequestError::Flavor), 403),
        (of_request(RequestError::Forwarded(header::FORWARDED)), 403),
        (of_request(PathError::EncodedSeparator.into()), 403),
        (of_request(PathError::NeedlessEscape('-').into()), 404),
        (Error::Panicked, 500),
        (Failure::CutShort.into(), 503),
    ] {
        assert_eq!(answer(&error).status(), status, "{error}");
    }
}

#[test]
fn only_what_clients_repeat_is_said_to_be_worth_another_try() {
    let calling = CallingPod {
        namespace: "shop".into(),
        service_account: "checkout".into(),
        name: "checkout-7d9c".into(),
        uid: String::new(),
        evidence: "kernel",
    };
    let errors = [
        RequestError::Flavor.into(),
        Error::from(RequestError::from(PathError::NeedlessEscape('-'))),
        Error::Unidentified(Unidentified { addr: [10, 8, 0, 5].into(), why: Missing::Claim }),
        Error::Outdated,
        Error::NoAccount(Arc::new(calling)),
        AccountError::Unknown("the account is not known yet".into()).into(),
        AccountError::Changed("the account has changed".into()).into(),
        AccountError::Deleted("the account was deleted".into()).into(),
        Error::IncludesAccounts,
        Error::TooLarge(1),
        Error::Overloaded(Overload::InFlight),
        Error::Overloaded(Overload::HangingGaveWay),
        Error::Draining,
        Error::Panicked,
        Failure::Closed.into(),
        Error::Token(Arc::new(TokenFailure::Expired)),
    ];
    for error in errors {
        let (status, text) = (error.status(), error.to_string());
        let is_repeated = status == StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(text.ends_with("; try again in a second."), is_repeated, "{status}: {text}");
    }
}

#[test]
fn a_refusal_is_a_warning_if_the_proxy_or_the_cluster_is_to_blame() {
    let unidentified = Unidentified { addr: [10, 8, 0, 5].into(), why: Missing::Claim };
    for (error, is_warning) in [
        (unidentified.into(), true),
        (AccountError::Unknown("the account is not known yet".into()).into(), true),
        (AccountError::Changed("the account has changed".into()).into(), false),
        (AccountError::Deleted("the account was deleted".into()).into(), false),
        (AccountError::Malformed("no e-mail".into()).into(), false),
        (Error::Outdated, false),
    ] {
        assert_eq!(is_trouble(&error), is_warning, "{error}");
    }
}

#[test]
fn what_a_pod_alone_is_to_blame_for_is_listed_and_does_not_count_against_the_objective() {
    let instruments = Instruments { latency: Latency::new(&Registry::default()), talkers: Arc::default() };
    let timeline = Timeline::new(instruments, ([10, 8, 0, 5], 1).into());
    let rescuer = Rescuer { notes: Notes::default(), on_overload: OnOverload::default(), timeline };
    for (overload, outcome) in [
        (Overload::Tokens, RequestOutcome::Refused),
        (Overload::Certificates, RequestOutcome::Refused),
        (Overload::TokenRoom, RequestOutcome::Shed),
        (Overload::InFlight, RequestOutcome::Shed),
    ] {
        let error = Error::Overloaded(overload);
        assert_eq!((error.outcome(), error.status()), (outcome, StatusCode::SERVICE_UNAVAILABLE), "{overload}");
        rescuer.note(&error);
    }
    let listed = rescuer.notes.refusals.last();
    assert_eq!(listed.iter().map(|refusal| (refusal.reason, refusal.count)).collect::<Vec<_>>(), [("tokens", 2)]);
}

#[test]
fn an_error_response_has_the_proxys_headers_and_one_line_of_text() {
    let response = answer(&RequestError::Method(http::Method::POST).into());
    assert_eq!(response.headers()["metadata-flavor"], "Google");
    assert_eq!(response.headers()["server"], "gce-metadata-proxy");
    assert_eq!(response.headers()["content-type"], "text/plain; charset=utf-8");
    assert_eq!(response.headers()["allow"], "GET, HEAD");
    assert_eq!(body_of(response), "Refused: the method POST is not allowed; use GET or HEAD.\n");
}

#[test]
fn an_unavailable_upstream_sets_retry_after() {
    let response = answer(&Failure::CutShort.into());
    assert_eq!(response.headers()["retry-after"], "1");
    assert!(body_of(response).starts_with("The metadata server is not available: "));
}

#[test]
fn a_step_of_an_exchange_sets_retry_after_for_as_long_as_it_rests_and_says_the_same() {
    for (millis, seconds, said) in
        [(0, "1", "a second"), (700, "1", "a second"), (6_001, "7", "7 s"), (90_000, "90", "90 s")]
    {
        let failure = ExchangeFailure::Kubernetes("no".to_owned());
        let failure = TokenFailure::Exchange(failure, Duration::from_millis(millis));
        let response = answer(&Error::Token(Arc::new(failure)));
        assert_eq!(response.headers()["retry-after"], seconds);
        let text = body_of(response);
        assert!(text.ends_with(&format!("; try again in {said}.\n")), "{text}");
    }
}

#[test]
fn what_google_refuses_is_passed_on_and_counts_by_whom_it_affects() {
    let mut headers = http::HeaderMap::new();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("7"));
    for (why, outcome) in [
        (Withheld::Untrusted, RequestOutcome::Failed),
        (Withheld::Quota, RequestOutcome::Failed),
        (Withheld::Account, RequestOutcome::Refused),
        (Withheld::Project, RequestOutcome::Refused),
        (Withheld::Pace, RequestOutcome::Refused),
    ] {
        let refused = Refused::copied(StatusCode::SERVICE_UNAVAILABLE, &headers, b"Google's sentence\nand a hint\n");
        let error = Error::Withheld(why, Arc::new(refused.withholding(why)));
        assert_eq!((error.outcome(), error.said().as_deref()), (outcome, Some("Google's sentence")), "{why:?}");
        let response = answer(&error);
        assert_eq!((response.status().as_u16(), response.headers()["retry-after"].as_bytes()), (503, &b"7"[..]));
        assert_eq!(body_of(response), "Google's sentence\nand a hint\n");
    }
}
