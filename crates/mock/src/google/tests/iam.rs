//! Tokens of Google service accounts.

use super::*;

const TOKEN: &str = "generateAccessToken";
const ID_TOKEN: &str = "generateIdToken";

fn ask() -> Value {
    json!({ "scope": [CLOUD_PLATFORM], "lifetime": "3600s" })
}

/// A world in which `shop/checkout` may act as [`EMAIL`], with its federated token.
async fn bound() -> (World, String) {
    let world = World::new().await;
    world.google.bind(checkout(), EMAIL);
    let bearer = world.federated(&checkout()).await;
    (world, bearer)
}

#[tokio::test(start_paused = true)]
async fn an_access_token_names_its_account_and_workload() {
    let (world, bearer) = bound().await;
    let reply = world.iam(EMAIL, TOKEN, &bearer, &json!({ "scope": ["a", "b"], "lifetime": "600s" })).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let subject = world.google.subject_of(reply.body["accessToken"].as_str().expect("a token")).expect("its own");
    assert_eq!((subject.workload, subject.pod_uid.as_str()), (checkout(), "uid-of-checkout"));
    assert_eq!(subject.email.as_deref(), Some(EMAIL));
    assert_eq!(subject.scopes, ["a", "b"]);
    let ends = crate::google::clock::rfc3339(world.now() + 600);
    assert_eq!(reply.body["expireTime"], ends);
}

#[tokio::test]
async fn an_identity_token_is_a_jwt_for_its_audience() {
    let (world, bearer) = bound().await;
    let body = json!({ "audience": "https://aud", "includeEmail": true });
    let reply = world.iam(EMAIL, ID_TOKEN, &bearer, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let token = reply.body["token"].as_str().expect("a token");
    let claims = claims(token);
    assert_eq!((&claims["aud"], &claims["email"]), (&json!("https://aud"), &json!(EMAIL)));
    assert_eq!((&claims["sub"], &claims["email_verified"]), (&claims["azp"], &json!(true)));
    assert_eq!(claims["exp"].as_u64(), claims["iat"].as_u64().map(|issued| issued + 3600));
    let subject = world.google.subject_of(token).expect("its own");
    assert_eq!((subject.workload, subject.email.as_deref()), (checkout(), Some(EMAIL)));
    let plain = world.iam(EMAIL, ID_TOKEN, &bearer, &json!({ "audience": "x" })).await;
    let plain = super::claims(plain.body["token"].as_str().expect("a token"));
    assert_eq!((plain.get("email"), &plain["sub"]), (None, &claims["sub"]));
    let missing = world.iam(EMAIL, ID_TOKEN, &bearer, &json!({ "includeEmail": true })).await;
    assert_eq!(missing.api_error().1, "INVALID_ARGUMENT");
    let as_bearer = world.iam(EMAIL, TOKEN, token, &ask()).await;
    assert_eq!(as_bearer.status, 401, "an identity token is no access token");
}

#[tokio::test]
async fn a_missing_binding_is_403_and_a_missing_account_404() {
    let (world, bearer) = bound().await;
    world.google.add_account("other@p.iam.gserviceaccount.com");
    let denied = world.iam("other@p.iam.gserviceaccount.com", TOKEN, &bearer, &ask()).await;
    let text = "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist).";
    assert_eq!(denied.api_error(), (403, "PERMISSION_DENIED", text));
    let detail = &denied.body["error"]["details"][0];
    assert_eq!(detail["@type"], "type.googleapis.com/google.rpc.ErrorInfo");
    assert_eq!(detail["reason"], "IAM_PERMISSION_DENIED");
    assert_eq!(detail["metadata"]["permission"], "iam.serviceAccounts.getAccessToken");
    let denied = world.iam("other@p.iam.gserviceaccount.com", ID_TOKEN, &bearer, &json!({ "audience": "x" })).await;
    assert!(denied.api_error().2.contains("getOpenIdToken"), "{}", denied.body);
    let missing = world.iam("none@p.iam.gserviceaccount.com", TOKEN, &bearer, &ask()).await;
    assert_eq!(missing.api_error(), (404, "NOT_FOUND", "Requested entity was not found."));
    let job = Workload::new("shop", "job");
    let foreign = world.federated(&job).await;
    assert_eq!(world.iam(EMAIL, TOKEN, &foreign, &ask()).await.status, 403);
    world.google.bind(job.clone(), EMAIL);
    assert_eq!(world.iam(EMAIL, TOKEN, &foreign, &ask()).await.status, 200);
    world.google.unbind(job, EMAIL);
    assert_eq!(world.iam(EMAIL, TOKEN, &foreign, &ask()).await.status, 403);
    world.google.remove_account(EMAIL);
    assert_eq!(world.iam(EMAIL, TOKEN, &bearer, &ask()).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn the_federated_token_must_be_good() {
    let (world, bearer) = bound().await;
    assert_eq!(world.iam(EMAIL, TOKEN, "x", &ask()).await.api_error().1, "UNAUTHENTICATED");
    let narrow = world.exchange(&world.ksa_token(&checkout()), &json!({ "scope": "https://x/auth/bigquery" })).await;
    let narrow = narrow.body["access_token"].as_str().expect("a token").to_owned();
    let reply = world.iam(EMAIL, TOKEN, &narrow, &ask()).await;
    assert_eq!(reply.api_error(), (403, "PERMISSION_DENIED", "Request had insufficient authentication scopes."));
    assert_eq!(world.iam(EMAIL, TOKEN, &bearer, &ask()).await.status, 200);
    tokio::time::advance(HOUR).await;
    let expired = world.iam(EMAIL, TOKEN, &bearer, &ask()).await;
    assert_eq!(expired.status, 401);
    assert!(expired.headers.contains_key("www-authenticate"));
    assert!(world.google.subject_of(&bearer).is_some(), "it is still known whose it was");
    let none = world.post(&format!("/v1/projects/-/serviceAccounts/{EMAIL}:{TOKEN}"), None, &ask()).await;
    assert_eq!(none.status, 401);
}

#[tokio::test]
async fn delegates_are_checked_one_by_one() {
    let world = World::new().await;
    world.google.bind(checkout(), "first@p");
    world.google.bind("first@p", EMAIL);
    let bearer = world.federated(&checkout()).await;
    let by = |delegates: &[&str]| {
        let names: Vec<_> = delegates.iter().map(|email| format!("projects/-/serviceAccounts/{email}")).collect();
        json!({ "scope": [CLOUD_PLATFORM], "lifetime": "3600s", "delegates": names })
    };
    assert_eq!(world.iam(EMAIL, TOKEN, &bearer, &by(&["first@p"])).await.status, 200);
    world.google.bind(EMAIL, "last@p");
    assert_eq!(world.iam("last@p", TOKEN, &bearer, &by(&["first@p", EMAIL])).await.status, 200);
    assert_eq!(world.iam("last@p", TOKEN, &bearer, &by(&["first@p"])).await.status, 403);
    assert_eq!(world.iam(EMAIL, TOKEN, &bearer, &by(&[])).await.status, 403);
    let reply = world.iam(EMAIL, TOKEN, &bearer, &by(&[EMAIL])).await;
    assert!(reply.api_error().2.contains("iam.serviceAccounts.implicitDelegation"), "{}", reply.body);
    assert_eq!(world.iam(EMAIL, TOKEN, &bearer, &by(&["none@p"])).await.status, 404);
    let plain = json!({ "scope": [CLOUD_PLATFORM], "lifetime": "3600s", "delegates": ["first@p"] });
    assert_eq!(world.iam(EMAIL, TOKEN, &bearer, &plain).await.api_error().1, "INVALID_ARGUMENT");
}

#[tokio::test(start_paused = true)]
async fn an_accounts_own_token_may_be_used_until_it_ends() {
    let world = World::new().await;
    world.google.bind(checkout(), "first@p");
    world.google.bind("first@p", EMAIL);
    let bearer = world.federated(&checkout()).await;
    let short = json!({ "scope": [CLOUD_PLATFORM], "lifetime": "600s" });
    let first = world.iam("first@p", TOKEN, &bearer, &short).await.body["accessToken"].clone();
    let first = first.as_str().expect("a token");
    assert_eq!(world.iam(EMAIL, TOKEN, first, &ask()).await.status, 200);
    tokio::time::advance(Duration::from_secs(600)).await;
    assert_eq!(world.iam(EMAIL, TOKEN, first, &ask()).await.status, 401);
}

#[tokio::test]
async fn arguments_are_checked() {
    let (world, bearer) = bound().await;
    for body in [
        json!({}),
        json!({ "lifetime": "1s" }),
        json!({ "scope": [], "lifetime": "1s" }),
        json!({ "scope": CLOUD_PLATFORM, "lifetime": "1s" }),
        json!({ "scope": ["a"], "lifetime": "3601s" }),
        json!({ "scope": ["a"], "lifetime": "0s" }),
        json!({ "scope": ["a"], "lifetime": "3600" }),
        json!({ "scope": ["a"], "lifetime": 3600 }),
        json!({ "scope": ["a"] }),
        json!({ "scope": ["a"], "lifetime": "1s", "scopes": ["a"] }),
    ] {
        let reply = world.iam(EMAIL, TOKEN, &bearer, &body).await;
        assert_eq!((reply.api_error().0, reply.api_error().1), (400, "INVALID_ARGUMENT"), "{body}");
    }
    assert_eq!(world.iam(EMAIL, TOKEN, &bearer, &json!({ "scope": ["a"], "lifetime": "1s" })).await.status, 200);
}
