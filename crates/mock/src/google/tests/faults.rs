//! Faults, and counts.

use super::*;
use tokio::time::Instant;

#[tokio::test]
async fn faults_have_googles_form() {
    let world = World::new().await;
    world.google.bind(checkout(), EMAIL);
    let bearer = world.federated(&checkout()).await;
    world.google.fault(Endpoint::Sts, Fault::Quota(Duration::from_secs(7)));
    let reply = world.exchange("", &json!({})).await;
    assert_eq!((reply.api_error().0, reply.api_error().1), (429, "RESOURCE_EXHAUSTED"));
    assert_eq!(reply.headers["retry-after"], "7");
    let (error, description) = ("invalid_target".to_owned(), "d".to_owned());
    world.google.fault(Endpoint::Sts, Fault::Oauth { error, description });
    let reply = world.exchange("", &json!({})).await;
    assert_eq!((reply.error(), &reply.body["error_description"]), ((400, "invalid_target"), &json!("d")));
    world.google.fault(Endpoint::Sts, Fault::Disabled(123));
    let reply = world.exchange("", &json!({})).await;
    assert_eq!((reply.api_error().0, reply.api_error().1), (403, "PERMISSION_DENIED"));
    let ask = json!({ "scope": ["a"], "lifetime": "3600s" });
    assert_eq!(world.iam(EMAIL, "generateAccessToken", &bearer, &ask).await.status, 200, "another endpoint");
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_is_the_usual_one() {
    let world = World::new().await;
    world.google.fault(Endpoint::Sts, Fault::Slow(Duration::from_millis(100)));
    let start = Instant::now();
    assert_eq!(world.exchange(&world.ksa_token(&checkout()), &json!({})).await.status, 200);
    assert_eq!(start.elapsed(), Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_hanging_request_gets_no_answer() {
    let world = World::new().await;
    world.google.fault(Endpoint::Sts, Fault::Hang);
    let (token, changes) = (world.ksa_token(&checkout()), json!({}));
    assert!(tokio::time::timeout(Duration::from_secs(60), world.exchange(&token, &changes)).await.is_err());
}

#[tokio::test]
async fn requests_are_counted_by_endpoint_and_workload() {
    let world = World::new().await;
    let job = Workload::new("shop", "job");
    world.google.bind(checkout(), EMAIL);
    let bearer = world.federated(&checkout()).await;
    world.federated(&job).await;
    world.federated(&job).await;
    world.exchange("no token", &json!({})).await;
    world.iam(EMAIL, "generateAccessToken", &bearer, &json!({ "scope": ["a"] })).await;
    let google = &world.google;
    assert_eq!((google.count_of(Endpoint::Sts, &checkout()), google.count_of(Endpoint::Sts, &job)), (1, 2));
    assert_eq!((google.count(Endpoint::Sts), google.count(Endpoint::AccessToken)), (4, 1));
    assert_eq!(google.count_of(Endpoint::AccessToken, &checkout()), 1);
}

#[tokio::test]
async fn other_paths_and_methods_are_404() {
    let world = World::new().await;
    for path in [
        "/",
        "/v1/token/",
        "/v1/projects/-/x",
        "/v1/projects/-/serviceAccounts/a@p:signBlob",
        "/v1/projects/p/serviceAccounts/a@p:generateAccessToken",
    ] {
        assert_eq!(world.post(path, None, &json!({})).await.status, 404, "{path}");
    }
    let request = Request::get("/v1/token").body(Bytes::new()).expect("a request");
    assert_eq!(world.call(request).await.status, 404);
    assert_eq!(world.google.count(Endpoint::Sts), 0);
}
