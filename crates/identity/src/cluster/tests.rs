//! The requests sent to the API server.

mod credentials;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::fake::Fake;
use super::*;

#[tokio::test(start_paused = true)]
async fn a_pod_is_looked_for_among_this_nodes_pods_only() {
    let (mut fake, cluster) = Fake::new("node-1");
    let found = tokio::spawn(async move { cluster.owned_pod("a/b", "p,spec.nodeName=other").await });
    let asked = fake.asked().await;
    assert_eq!(asked.request.uri().path(), "/api/v1/namespaces/a%2Fb/pods");
    let selector = r"spec.nodeName=node-1,metadata.name=p\,spec.nodeName\=other";
    assert_eq!(asked.parameter("fieldSelector").as_deref(), Some(selector));
    let item = json!({"metadata": {"name": "another"}});
    asked.answer(200, &json!({"metadata": {"resourceVersion": "7"}, "items": [item]}));
    assert!(found.await.expect("no panic").expect("a list").is_none(), "a server that ignores the selector");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_says_which_right_is_missing() {
    let (mut fake, cluster) = Fake::new("node-1");
    let listed = tokio::spawn(async move { cluster.list().await.map(drop) });
    fake.asked().await.refuse(403, r#"pods is forbidden: User "proxy" cannot list"#);
    let error = listed.await.expect("no panic").expect_err("forbidden");
    assert_eq!(error.failure(), Failure::Refused(StatusCode::FORBIDDEN));
    let text = error.to_string();
    assert!(text.contains("403 Forbidden: pods is forbidden") && text.contains("impersonate-on:associated-node:list"));
}

#[tokio::test(start_paused = true)]
async fn a_429_names_a_time_whoever_asks() {
    let (mut fake, cluster) = Fake::new("node-1");
    for of_itself in [false, true] {
        let cluster = cluster.clone();
        let asking = tokio::spawn(async move {
            if of_itself {
                OwnCluster::of(&cluster).user().await.answer.map(drop)
            } else {
                cluster.list().await.map(drop)
            }
        });
        fake.asked().await.throttle("7");
        let error = asking.await.expect("no panic").expect_err("429");
        assert_eq!(error.to_string(), "the API server answered 429 Too Many Requests: slow down");
        let RequestError::Throttled { retry_after, .. } = error else { panic!("{error:?}") };
        assert_eq!(retry_after, Duration::from_secs(7));
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_account_is_read_with_the_annotations_that_matter() {
    let (mut fake, cluster) = Fake::new("node-1");
    let asking = cluster.clone();
    let read = tokio::spawn(async move { asking.service_account("a/b", "app").await });
    let asked = fake.asked().await;
    assert_eq!(asked.request.uri().path(), "/api/v1/namespaces/a%2Fb/serviceaccounts/app");
    let annotations = json!({
        "iam.gke.io/gcp-service-account": "app@shop.iam.gserviceaccount.com",
        "iam.gke.io/return-principal-id-as-email": "true",
        "large": "x".repeat(200 << 10),
    });
    let secrets = vec![json!({"name": "s"}); 1000];
    asked.answer(200, &json!({"metadata": {"uid": "u", "annotations": annotations}, "secrets": secrets}));
    let account = read.await.expect("no panic").expect("an answer").expect("an account");
    let annotations = account.metadata.annotations.expect("annotations");
    assert_eq!(account.metadata.uid, "u");
    assert_eq!(annotations.google_account.as_deref(), Some("app@shop.iam.gserviceaccount.com"));
    assert_eq!((annotations.principal_as_email.as_deref(), annotations.delegates), (Some("true"), None));

    for (status, message, expected) in [
        (404, "serviceaccounts \"app\" not found", None),
        (404, "serviceaccounts \"other\" not found", Some("404 Not Found")),
        (404, "default backend - 404", Some("default backend - 404")),
        (403, "no", Some("impersonate-on:associated-node:get for serviceaccounts")),
    ] {
        let asking = cluster.clone();
        let read = tokio::spawn(async move { asking.service_account("a", "app").await });
        fake.asked().await.refuse(status, message);
        let error = read.await.expect("no panic").err().map(|error| error.to_string());
        assert_eq!(error.is_some(), expected.is_some(), "{status} {message}");
        assert!(expected.is_none_or(|text| error.is_some_and(|error| error.contains(text))), "{status} {message}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_trickles_is_given_up() {
    let (mut fake, cluster) = Fake::new("node-1");
    let request = TokenRequest { namespace: "a", account: "app", audience: "x", pod: "p1", pod_uid: "u" };
    for is_token in [false, true] {
        let cluster = cluster.clone();
        let asking = tokio::spawn(async move {
            let began = Instant::now();
            let is_given_up = if is_token {
                let answer = cluster.token(&request).await;
                matches!(answer, Err(TokenRequestError::Request(RequestError::Silent(_))))
            } else {
                matches!(cluster.service_account("a", "app").await, Err(RequestError::Silent(_)))
            };
            (is_given_up, began.elapsed())
        });
        let running = fake.asked().await.run(200);
        for _ in 0..60 {
            running.bytes(" ");
            sleep(Duration::from_secs(1)).await;
        }
        drop(running);
        assert_eq!(asking.await.expect("no panic"), (true, RESPONSE_TIMEOUT));
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_bound_to_a_pod_and_a_pod_that_is_gone_is_told_from_a_missing_right() {
    let request = TokenRequest { namespace: "a", account: "app", audience: "x", pod: "p1", pod_uid: "u" };
    let (mut fake, cluster) = Fake::new("node-1");
    let mut ask = async |status, body: Value| {
        let asking = cluster.clone();
        let answered = tokio::spawn(async move { asking.token(&request).await });
        let asked = fake.asked().await;
        assert_eq!((asked.request.method().as_str(), asked.request.uri().path()), ("POST", TOKEN_PATH));
        asked.answer(status, &body);
        answered.await.expect("no panic")
    };
    let token = ask(201, json!({"spec": {"expirationSeconds": 1800}, "status": {"token": "s3.cr.et"}})).await;
    let token = token.expect("a token");
    assert_eq!((token.secret.as_str(), token.life), ("s3.cr.et", Duration::from_secs(1800)));
    assert!(!format!("{token:?}").contains("s3.cr.et"));
    let longer = ask(201, json!({"spec": {"expirationSeconds": 7200}, "status": {"token": "t"}})).await;
    assert_eq!(longer.expect("a token").life, Duration::from_secs(3600), "no longer than asked for");
    for body in [json!({"status": {"token": 7}}), json!({"status": {"token": "s3 cr et"}}), json!({})] {
        let error = ask(201, body).await.expect_err("no token").to_string();
        assert_eq!(error, "the API server's answer makes no sense: a TokenRequest without a token");
    }

    for (status, message, is_gone) in [
        (409, "the UID in the bound object reference (u) does not match the UID in record.", true),
        (404, "pods \"p1\" not found", true),
        (404, "serviceaccounts \"app\" not found", false),
        (400, "cannot bind token for serviceaccount \"app\" to pod running with different serviceaccount name.", true),
        (403, "the UID in the bound object reference (u) does not match the UID in record.", true),
        (403, "node requested token bound to a pod scheduled on a different node", true),
        (403, "no relationship found between node 'node-1' and this object", true),
        (403, "audience \"x\" not found in pod spec volume", false),
        (403, "User cannot create resource", false),
        (422, "may not specify a duration less than 10 minutes", false),
    ] {
        let error = ask(status, json!({"kind": "Status", "code": status, "message": message})).await;
        let error = error.expect_err("a refusal");
        assert_eq!(matches!(error, TokenRequestError::SponsorGone { .. }), is_gone, "{message}");
        assert!(error.to_string().contains(message), "{error}");
    }
}

const TOKEN_PATH: &str = "/api/v1/namespaces/a/serviceaccounts/app/token";

#[tokio::test(start_paused = true)]
async fn large_objects_do_not_make_large_events() {
    let (mut fake, cluster) = Fake::new("node-1");
    let events = tokio::spawn(async move { cluster.node_pods(Since::Version("1")).await });
    let running = fake.asked().await.run(200);
    let mut events = events.await.expect("no panic").expect("a watch");
    let env = vec![json!({"name": "a", "value": "\u{1}".repeat(1000)}); 2000];
    running.event(
        "ADDED",
        &json!({"metadata": {"name": "p"}, "spec": {"containers": [{"env": env}], "hostNetwork": true}}),
    );
    let Some(Event::Applied(pod)) = events.next().await.expect("an event") else { panic!("not a pod") };
    assert!(pod.spec.host_network);
    running.bytes(format!("{{\"name\":\"large\",\"a\":[{}\n", "0,".repeat(1 << 20)));
    let error = events.next().await.expect_err("too long");
    assert_eq!(error.failure(), Failure::Invalid);
    assert!(error.to_string().contains(r#"begins with {"name":"large""#), "{error}");
}

/// 256 KiB, as Kubernetes counts annotations. The API server writes each `<` as six bytes.
fn inflated(each: usize) -> String {
    let value = "<".repeat(each - 5);
    let all: serde_json::Map<_, _> = (0..(256 << 10) / each).map(|at| (format!("{at:05}"), json!(value))).collect();
    json!(all).to_string().replace('<', "\\u003c")
}

#[tokio::test(start_paused = true)]
async fn no_annotations_make_a_large_event_or_account() {
    let (mut fake, cluster) = Fake::new("node-1");
    let watch = cluster.clone();
    let events = tokio::spawn(async move { watch.node_pods(Since::Version("1")).await });
    let running = fake.asked().await.run(200);
    let mut events = events.await.expect("no panic").expect("a watch");
    for each in [6, 690, 256 << 10] {
        let inflated = inflated(each);
        for (annotations, labels) in [(inflated.as_str(), "{}"), ("{}", inflated.as_str())] {
            let metadata = format!(r#"{{"annotations":{annotations},"labels":{labels},"name":"p"}}"#);
            running.bytes(format!("{{\"type\":\"ADDED\",\"object\":{{\"metadata\":{metadata}}}}}\n"));
            let Some(Event::Applied(pod)) = events.next().await.expect("an event") else { panic!("not a pod") };
            assert_eq!(pod.metadata.name, "p");
        }
        let asking = cluster.clone();
        let read = tokio::spawn(async move { asking.service_account("a", "app").await });
        let google = r#""iam.gke.io/gcp-service-account":"a@b""#;
        let annotations = format!("{},{google}}}", inflated.strip_suffix('}').expect("an object"));
        fake.asked().await.run(200).bytes(format!(r#"{{"metadata":{{"annotations":{annotations},"uid":"u"}}}}"#));
        let account = read.await.expect("no panic").expect("an answer").expect("an account").metadata;
        let google_account = account.annotations.and_then(|annotations| annotations.google_account);
        assert_eq!((account.uid.as_str(), google_account.as_deref()), ("u", Some("a@b")), "{each}");
    }
}
