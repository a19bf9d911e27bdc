//! Token exchanges.

use super::*;
use crate::google::Subject;

/// What is wrong with a service account token, and a word of the answer.
type Wrong<'a> = (&'a str, Value, &'a str);

async fn error_of(world: &World, token: &str) -> (u16, String, String) {
    let reply = world.exchange(token, &json!({})).await;
    let text = |name: &str| reply.body[name].as_str().unwrap_or_default().to_owned();
    (reply.status, text("error"), text("error_description"))
}

#[tokio::test(start_paused = true)]
async fn an_exchange_gives_a_federated_token_of_the_workload() {
    let world = World::new().await;
    let reply = world.exchange(&world.ksa_token(&checkout()), &json!({})).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!((&reply.body["token_type"], &reply.body["expires_in"]), (&json!("Bearer"), &json!(3600)));
    assert_eq!(reply.body["issued_token_type"], "urn:ietf:params:oauth:token-type:access_token");
    let token = reply.body["access_token"].as_str().expect("a token");
    let subject = world.google.subject_of(token).expect("its own token");
    let scopes = vec![CLOUD_PLATFORM.to_owned()];
    let (workload, pod_uid) = (checkout(), "uid-of-checkout".to_owned());
    assert_eq!(subject, Subject { workload, pod_uid, email: None, scopes, bound_to: None });
    assert_eq!(Subject::read(token), Some(subject));
    assert!(world.google.subject_of("ya29.fake~a~b~c~-~~-~n").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_token_ends_with_the_subject_token() {
    let world = World::new().await;
    for (life, expires_in) in [(900, 900), (3600, 3600), (7200, 3600)] {
        let life = Duration::from_secs(life);
        let token = world.issuer.token(&pod(&checkout()), POOL, world.now(), life);
        let reply = world.exchange(&token, &json!({})).await;
        assert_eq!(reply.body["expires_in"], expires_in, "{}", reply.body);
    }
}

#[tokio::test(start_paused = true)]
async fn time_passes_as_in_the_test() {
    let world = World::new().await;
    let token = world.ksa_token(&checkout());
    tokio::time::advance(Duration::from_secs(3000)).await;
    let reply = world.exchange(&token, &json!({})).await;
    assert_eq!(reply.body["expires_in"], 600);
    tokio::time::advance(Duration::from_secs(600)).await;
    let issued = claims(&token)["iat"].to_string();
    let stale = format!("ID Token issued at {issued} is stale to sign-in.");
    assert_eq!(error_of(&world, &token).await, (400, "invalid_grant".into(), stale));
}

#[tokio::test]
async fn wrong_fields_are_invalid_requests() {
    let world = World::new().await;
    let token = world.ksa_token(&checkout());
    for changes in [
        json!({ "grantType": null }),
        json!({ "grantType": "refresh_token" }),
        json!({ "requestedTokenType": null }),
        json!({ "requestedTokenType": "urn:ietf:params:oauth:token-type:jwt" }),
        json!({ "subjectTokenType": null }),
        json!({ "subjectTokenType": "urn:ietf:params:oauth:token-type:access_token" }),
        json!({ "subjectToken": null }),
        json!({ "scope": null }),
        json!({ "scope": "" }),
        json!({ "scope": ["a"] }),
        json!({ "audience": null }),
        json!({ "grant_type": "again" }),
        json!({ "unknown": "" }),
        json!({ "options": { "userProject": "p" } }),
        json!({ "options": "{\"project\":\"p\"}" }),
        json!({ "options": "{\"bindCertFingerprint\":\"ab:cd\"}" }),
    ] {
        assert_eq!(world.exchange(&token, &changes).await.error(), (400, "invalid_request"), "{changes}");
    }
    assert_eq!(world.google.count(Endpoint::Sts), 16);
}

#[tokio::test]
async fn a_token_is_bound_to_a_certificate_and_of_no_use_without_it() {
    let world = World::new().await;
    let fingerprint = "sLUYWJJyjzGxLaYWAvlR4Ky7nDxFe0CPhBkhKVAt8Vo";
    let options = json!({ "bindCertFingerprint": fingerprint }).to_string();
    let reply = world.exchange(&world.ksa_token(&checkout()), &json!({ "options": options })).await;
    let token = reply.body["access_token"].as_str().unwrap_or_else(|| panic!("{}", reply.body));
    assert_eq!(Subject::read(token).expect("its own token").bound_to.as_deref(), Some(fingerprint));
    let email = "checkout@shop.iam.gserviceaccount.com";
    world.google.bind(checkout(), email);
    let path = format!("/v1/projects/-/serviceAccounts/{email}:generateAccessToken");
    assert_eq!(world.post(&path, Some(token), &json!({ "scope": ["a"], "lifetime": "3600s" })).await.status, 401);
}

#[tokio::test]
async fn other_headers_are_refused() {
    let world = World::new().await;
    let token = world.ksa_token(&checkout());
    assert_eq!(world.post("/v1/token", Some("x"), &exchange(&token)).await.error(), (400, "invalid_request"));
    let request = Request::post("/v1/token").header(CONTENT_TYPE, "text/plain");
    let request = request.body(exchange(&token).to_string().into()).expect("a request");
    assert_eq!(world.call(request).await.error(), (400, "invalid_request"));
}

#[tokio::test]
async fn an_unknown_pool_is_an_invalid_target() {
    let world = World::new().await;
    let token = world.ksa_token(&checkout());
    for audience in [
        "identitynamespace:other.svc.id.goog:https://container.googleapis.com/v1/projects/p/locations/l/clusters/c",
        "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x",
    ] {
        let reply = world.exchange(&token, &json!({ "audience": audience })).await;
        assert_eq!(reply.error(), (400, "invalid_target"));
        let text = "The target service indicated by the \"audience\" parameters is invalid. This might either be \
                    because the pool or provider is disabled or deleted or because it doesn't exist.";
        assert_eq!(reply.body["error_description"], text);
    }
}

#[tokio::test]
async fn the_claims_of_a_service_account_token_are_checked() {
    let world = World::new().await;
    let now = world.now();
    let wrong: [Wrong; 12] = [
        ("/iss", json!("https://other"), "issuer"),
        ("/aud", json!(["https://kubernetes.default.svc"]), "audience"),
        ("/aud", json!([AUDIENCE]), "audience"),
        ("/exp", json!(now - 1), "stale"),
        ("/iat", json!(now + 120), "not valid yet"),
        ("/nbf", json!(now + 120), "not valid yet"),
        ("/exp", json!(now + 25 * 3600), "24 hours"),
        ("/kubernetes.io", json!(null), "not bound"),
        ("/kubernetes.io/pod", json!(null), "not bound"),
        ("/kubernetes.io/namespace", json!("other"), "subject"),
        ("/kubernetes.io/serviceaccount/name", json!("other"), "subject"),
        ("/sub", json!("system:serviceaccount:shop:other"), "subject"),
    ];
    for (place, value, word) in wrong {
        let mut claims = world.issuer.claims(&pod(&checkout()), POOL, now, HOUR);
        *claims.pointer_mut(place).expect("a claim") = value;
        let (status, error, description) = error_of(&world, &world.issuer.sign(&claims)).await;
        assert_eq!((status, error.as_str()), (400, "invalid_grant"), "{place}");
        assert!(description.contains(word), "{place}: {description}");
    }
}

#[tokio::test]
async fn only_the_clusters_keys_sign() {
    let world = World::new().await;
    let token = world.ksa_token(&checkout());
    let rotated = Issuer::rotated(CLUSTER);
    let later = rotated.token(&pod(&checkout()), POOL, world.now(), HOUR);
    let claims = claims(&token);
    let kid = serde_json::from_str::<Value>(&world.issuer.jwks_json()).expect("JSON")["keys"][0]["kid"].clone();
    let (content, signature) = token.rsplit_once('.').expect("a signature");
    let other = world.ksa_token(&Workload::new("shop", "other"));
    let cases = [
        (later, "does not have"),
        (rotated.sign_with_header(&json!({ "alg": "RS256", "kid": kid }), &claims), "signature"),
        (format!("{}.{signature}", other.rsplit_once('.').expect("a signature").0), "signature"),
        (world.issuer.sign_with_header(&json!({ "alg": "none", "kid": kid }), &claims), "algorithm"),
        (world.issuer.sign_with_header(&json!({ "alg": "RS256" }), &claims), "does not have"),
        (content.to_owned(), "parse"),
        (format!("{content}."), "signature"),
        (format!("{content}.?"), "parse"),
        ("eyJ".to_owned(), "parse"),
    ];
    for (token, word) in cases {
        let (status, error, description) = error_of(&world, &token).await;
        assert_eq!((status, error.as_str()), (400, "invalid_grant"), "{word}");
        assert!(description.contains(word), "{word}: {description}");
        assert!(!description.contains("eyJ"), "no token in it: {description}");
    }
}

#[tokio::test]
async fn a_provider_takes_its_name_as_the_audience() {
    let name = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x";
    let issuer = Issuer::new("https://kubernetes.default.svc");
    let url = format!("https:{name}");
    for (audience, status) in [(name, 200), (&url, 200), ("my-audience", 400)] {
        let pool = Pool::provider(name, issuer.url());
        let settings = Settings { jwks: issuer.jwks(), ..Settings::new(pool) };
        let world = World { google: Google::start(settings).await, issuer: Issuer::new(issuer.url()) };
        let token = world.issuer.token(&pod(&checkout()), audience, world.now(), HOUR);
        let reply = world.exchange(&token, &json!({ "audience": name })).await;
        assert_eq!(reply.status, status, "{audience}: {}", reply.body);
    }
}
