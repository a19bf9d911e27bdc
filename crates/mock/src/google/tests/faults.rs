//! Faults, and the journal.

use super::*;
use tokio::time::Instant;

#[tokio::test]
async fn statuses_have_googles_form() {
    let world = World::new().await;
    world.google.bind(checkout(), EMAIL);
    let bearer = world.federated(&checkout()).await;
    let ask = json!({ "scope": ["a"] });
    for (status, name) in [(403, "PERMISSION_DENIED"), (404, "NOT_FOUND"), (500, "INTERNAL"), (503, "UNAVAILABLE")] {
        world.google.fault_next(1, Endpoint::AccessToken, Fault::status(status));
        let reply = world.iam(EMAIL, "generateAccessToken", &bearer, &ask).await;
        assert_eq!((reply.api_error().0, reply.api_error().1), (status, name));
    }
    world.google.fault_next(1, Endpoint::IdToken, Fault::status(403));
    let reply = world.iam(EMAIL, "generateIdToken", &bearer, &json!({ "audience": "x" })).await;
    assert!(reply.api_error().2.contains("iam.serviceAccounts.getOpenIdToken"), "{}", reply.body);
    world.google.fault_next(1, Endpoint::Sts, Fault::quota(Duration::from_secs(7)));
    let reply = world.exchange("", &json!({})).await;
    assert_eq!((reply.api_error().0, reply.api_error().1), (429, "RESOURCE_EXHAUSTED"));
    assert_eq!(reply.headers["retry-after"], "7");
    world.google.fault_next(1, Endpoint::Sts, Fault::status(502));
    let reply = world.exchange("", &json!({})).await;
    assert_eq!((reply.status, reply.headers["content-type"].as_bytes()), (502, &b"text/html; charset=UTF-8"[..]));
    let (error, description) = ("invalid_target".to_owned(), "d".to_owned());
    world.google.fault_next(1, Endpoint::Sts, Fault::Oauth { error, description });
    let reply = world.exchange("", &json!({})).await;
    assert_eq!((reply.error(), &reply.body["error_description"]), ((400, "invalid_target"), &json!("d")));
    world.google.fault_next(1, Endpoint::Sts, Fault::Body("[1]".into()));
    let reply = world.exchange("", &json!({})).await;
    assert_eq!((reply.status, reply.body), (200, json!([1])));
}

#[tokio::test]
async fn a_fault_of_one_workload_leaves_others_alone() {
    let world = World::new().await;
    let job = Workload::new("shop", "job");
    world.google.bind(checkout(), EMAIL);
    world.google.bind(job.clone(), EMAIL);
    let [mine, other] = [world.federated(&checkout()).await, world.federated(&job).await];
    world.google.fault((Endpoint::Sts, checkout()), Fault::status(503));
    assert_eq!(world.exchange(&world.ksa_token(&checkout()), &json!({})).await.status, 503);
    assert_eq!(world.exchange(&world.ksa_token(&job), &json!({})).await.status, 200);
    let ask = json!({ "scope": ["a"] });
    assert_eq!(world.iam(EMAIL, "generateAccessToken", &mine, &ask).await.status, 200, "another endpoint");
    world.google.fault(checkout(), Fault::status(500));
    assert_eq!(world.iam(EMAIL, "generateAccessToken", &mine, &ask).await.status, 500);
    assert_eq!(world.iam(EMAIL, "generateAccessToken", &other, &ask).await.status, 200);
    assert_eq!(world.exchange(&world.ksa_token(&checkout()), &json!({})).await.status, 503, "until changed");
    world.google.heal();
    assert_eq!(world.exchange(&world.ksa_token(&checkout()), &json!({})).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_is_the_usual_one() {
    let world = World::new().await;
    world.google.fault(Target::all(), Fault::Slow(Duration::from_millis(100)));
    let start = Instant::now();
    assert_eq!(world.exchange(&world.ksa_token(&checkout()), &json!({})).await.status, 200);
    assert_eq!(start.elapsed(), Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_hanging_request_is_answered_once_healed() {
    let world = World::new().await;
    world.google.fault_next(1, Endpoint::Sts, Fault::Hang);
    let token = world.ksa_token(&checkout());
    let (changes, minute) = (json!({}), Duration::from_secs(60));
    let mut hanging = std::pin::pin!(world.exchange(&token, &changes));
    assert!(tokio::time::timeout(minute, &mut hanging).await.is_err());
    assert_eq!(world.google.in_flight(), 1);
    assert_eq!(world.exchange(&token, &changes).await.status, 200, "only the next one hangs");
    world.google.heal();
    assert_eq!(hanging.await.status, 200);
    assert_eq!((world.google.in_flight(), world.google.peak_in_flight()), (0, 2));
}

#[tokio::test]
async fn cut_answers_fail() {
    let world = World::new().await;
    for fault in [Fault::Cut, Fault::CutBody] {
        world.google.fault(Endpoint::Sts, fault.clone());
        let body = Bytes::from(exchange(&world.ksa_token(&checkout())).to_string());
        let request = Request::post("/v1/token").header(CONTENT_TYPE, "application/json").body(body);
        assert_eq!(world.google.call(request.expect("a request")).await.expect_err("cut"), Cut, "{fault:?}");
    }
    let statuses: Vec<_> = world.google.calls().iter().map(|call| call.status.map(|status| status.as_u16())).collect();
    assert_eq!(statuses, [None, Some(200)], "the second has begun to be answered");
}

#[tokio::test(start_paused = true)]
async fn calls_are_counted_by_endpoint_and_workload() {
    let world = World::new().await;
    let job = Workload::new("shop", "job");
    world.google.bind(checkout(), EMAIL);
    let bearer = world.federated(&checkout()).await;
    world.federated(&job).await;
    tokio::time::advance(Duration::from_secs(40)).await;
    world.federated(&job).await;
    world.exchange("no token", &json!({})).await;
    tokio::time::advance(Duration::from_secs(40)).await;
    world.iam(EMAIL, "generateAccessToken", &bearer, &json!({ "scope": ["a"] })).await;
    world.federated(&job).await;
    let google = &world.google;
    assert_eq!((google.count_of(Endpoint::Sts, &checkout()), google.count_of(Endpoint::Sts, &job)), (1, 3));
    assert_eq!((google.count(Endpoint::Sts), google.count(Endpoint::AccessToken)), (5, 1));
    assert_eq!(google.count_of(Endpoint::AccessToken, &checkout()), 1);
    assert_eq!(google.busiest(Endpoint::Sts, Duration::from_secs(60)), 4);
    let calls = google.calls();
    assert_eq!((calls[3].workload.as_ref(), calls[3].status.map(|status| status.as_u16())), (None, Some(400)));
    assert_eq!((calls[4].account.as_deref(), calls[4].pod_uid.as_deref()), (Some(EMAIL), Some("uid-of-checkout")));
    assert_eq!(calls[4].at - calls[0].at, Duration::from_secs(80));
    google.reset_counters();
    assert_eq!((google.count(Endpoint::Sts), google.calls().len()), (0, 0));
}

#[tokio::test]
async fn other_paths_and_methods_are_404() {
    let world = World::new().await;
    let reply = world.post("/v1/projects/p/serviceAccounts/a@p:generateAccessToken", None, &json!({})).await;
    assert_eq!(reply.status, 404);
    let request = Request::get("/v1/token").body(Bytes::new()).expect("a request");
    assert_eq!(world.google.call(request).await.expect("an answer").status(), 404);
    assert_eq!(world.google.calls().len(), 0);
}
