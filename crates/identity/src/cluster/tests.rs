//! The requests sent to the API server.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::fake::Fake;
use super::*;

#[tokio::test(start_paused = true)]
async fn a_pod_is_looked_for_among_this_nodes_pods_only() {
    let (mut fake, cluster) = Fake::new("node-1");
    let found = tokio::spawn(async move { cluster.pod("a/b", "p,spec.nodeName=other").await });
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

    for (status, expected) in [(404, None), (403, Some("impersonate-on:associated-node:get for serviceaccounts"))] {
        let asking = cluster.clone();
        let read = tokio::spawn(async move { asking.service_account("a", "app").await });
        fake.asked().await.refuse(status, "no");
        let error = read.await.expect("no panic").err().map(|error| error.to_string());
        assert_eq!(error.is_some(), expected.is_some());
        assert!(expected.is_none_or(|right| error.is_some_and(|error| error.contains(right))), "{status}");
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

/// A certificate of nobody: without one, kube uses those of the system.
const AUTHORITY: &str = concat!(
    "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJjVENDQVJlZ0F3SUJBZ0lVS0tNVmNjOVM4M1pTU0U1TzBnZFpIS2lYdFI4",
    "d0NnWUlLb1pJemowRUF3SXcKRFRFTE1Ba0dBMVVFQXd3Q1kyRXdJQmNOTWpZeE1USXlNVE13TmpNNVdoZ1BNakV5TmpFd01qa3hN",
    "ekEyTXpsYQpNQTB4Q3pBSkJnTlZCQU1NQW1OaE1Ga3dFd1lIS29aSXpqMENBUVlJS29aSXpqMERBUWNEUWdBRTc2MFppMGF5CjlS",
    "RFFOaWE2b3RvSGNMSXkvTGhPVVJPSFVjdTJPNVFtb0UwMDEzM05UV1NMNHJpdUVQb2hKd2h0bkJnTCtqMXYKNkN5Mjdzb3lROERN",
    "UjZOVE1GRXdIUVlEVlIwT0JCWUVGREtDMSsvSHdZdlRmYk5MekhVdG8xZnVDSENCTUI4RwpBMVVkSXdRWU1CYUFGREtDMSsvSHdZ",
    "dlRmYk5MekhVdG8xZnVDSENCTUE4R0ExVWRFd0VCL3dRRk1BTUJBZjh3CkNnWUlLb1pJemowRUF3SURTQUF3UlFJaEFLNy90dVRE",
    "YW9uTEJ4TFd4UFJGVnFReWZad3RvdVNwZGU5UFpVZngKTmQzZEFpQTBUeno2UWRCeUdhSUlTVnA2UWFnVG1SRG5TZGdIVEtjbExR",
    "QnJBUDdQUVE9PQotLS0tLUVORCBDRVJUSUZJQ0FURS0tLS0tCg==",
);

fn kubeconfig(port: u16, user: &Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {
            "server": format!("http://127.0.0.1:{port}"), "certificate-authority-data": AUTHORITY,
        }}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    })
    .to_string()
}

/// Answers each connection with this status and an empty list, and passes on the request's head.
async fn served(listener: TcpListener, status: u16, heads: mpsc::UnboundedSender<String>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a head"));
        }
        let _ = heads.send(String::from_utf8(head).expect("text").to_lowercase());
        let body = r#"{"metadata":{"resourceVersion":"7"}}"#;
        let length = body.len();
        let response = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
        stream.write_all(response.as_bytes()).await.expect("written");
    }
}

/// A server on loopback.
async fn server(status: u16) -> (u16, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (sender, heads) = mpsc::unbounded_channel();
    tokio::spawn(served(listener, status, sender));
    (port, heads)
}

fn settings(file: &std::path::Path) -> Settings {
    Settings { node: "node-1".parse().expect("a name"), credential: Credential::Kubeconfig(file.to_owned()) }
}

/// A file of this test, removed at its end.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cluster-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("written");
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Lets the client become old.
async fn age() {
    advance(Duration::from_secs(5 * 60)).await;
}

/// Lets this time pass.
async fn advance(by: Duration) {
    tokio::time::pause();
    tokio::time::advance(by).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_replaced_kubeconfig_is_read_again() {
    let (port, mut heads) = server(200).await;
    let file = File::new("replaced", &kubeconfig(port, &json!({"token": "one"})));
    let cluster = Cluster::connect(&settings(&file.0)).await.expect("a credential");
    assert_eq!(cluster.list().await.expect("a list").1, "7");
    let head = heads.recv().await.expect("a request");
    assert!(head.starts_with("get /api/v1/pods?fieldselector=spec.nodename%3dnode-1 http/1.1\r\n"), "{head}");
    assert!(head.contains("authorization: bearer one\r\n") && !head.contains("impersonate"), "{head}");

    std::fs::write(&file.0, kubeconfig(port, &json!({"token": "two"}))).expect("written");
    age().await;
    cluster.list().await.expect("a list");
    assert!(heads.recv().await.expect("a request").contains("bearer two\r\n"));

    std::fs::write(&file.0, "not a kubeconfig").expect("written");
    age().await;
    cluster.list().await.expect("a list with the token before");
    assert!(heads.recv().await.expect("a request").contains("bearer two\r\n"));
}

#[tokio::test]
async fn a_refused_credential_is_read_again_at_once() {
    let (port, mut heads) = server(401).await;
    let file = File::new("refused", &kubeconfig(port, &json!({"token": "one"})));
    let cluster = Cluster::connect(&settings(&file.0)).await.expect("a credential");
    let refused = cluster.list().await.expect_err("refused");
    assert!(refused.to_string().contains("certificate or token is not valid"), "{refused}");
    std::fs::write(&file.0, kubeconfig(port, &json!({"token": "two"}))).expect("written");
    cluster.list().await.expect_err("refused");
    heads.recv().await.expect("a request");
    assert!(heads.recv().await.expect("a request").contains("bearer two\r\n"));
    std::fs::write(&file.0, "not a kubeconfig").expect("written");
    assert_eq!(cluster.list().await.expect_err("unreadable").failure(), Failure::Cluster);
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_looked_up_again_within_a_second() {
    let (port, mut heads) = server(200).await;
    let right = kubeconfig(port, &json!({"token": "one"}));
    let closing = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let closing_port = closing.local_addr().expect("an address").port();
    tokio::spawn(async move { while closing.accept().await.is_ok() {} });
    // Nobody listens, or TLS fails, as with another authority.
    let without_tls = kubeconfig(closing_port, &json!({"token": "one"}));
    for wrong in [kubeconfig(1, &json!({"token": "one"})), without_tls.replace("http:", "https:")] {
        let file = File::new("moved", &wrong);
        let cluster = Cluster::connect(&settings(&file.0)).await.expect("a credential");
        assert_eq!(cluster.list().await.expect_err("nobody there").failure(), Failure::Connection);
        std::fs::write(&file.0, "not a kubeconfig").expect("written");
        advance(Duration::from_secs(1)).await;
        assert_eq!(cluster.list().await.expect_err("as before").failure(), Failure::Connection);

        std::fs::write(&file.0, &right).expect("written");
        advance(Duration::from_secs(1)).await;
        cluster.list().await.expect("a list");
        heads.recv().await.expect("a request");

        // It works, so there is time.
        std::fs::write(&file.0, &wrong).expect("written");
        advance(Duration::from_secs(2)).await;
        cluster.list().await.expect("a list");
        heads.recv().await.expect("a request");
    }
}

#[tokio::test]
async fn the_own_account_acts_as_its_node() {
    let (port, mut heads) = server(200).await;
    let token = File::new("token", "own");
    let file = File::new("own", &kubeconfig(port, &json!({"tokenFile": token.0})));
    let mut config = client::config(&settings(&file.0)).await.expect("a kubeconfig");
    client::act_as(&mut config, &"node-1".parse().expect("a name"));
    let client = client::connect(config).expect("a client");
    client.send(Request::get("/").body(Body::empty()).expect("a request")).await.expect("a response");
    let head = heads.recv().await.expect("a request");
    assert!(head.contains("impersonate-user: system:node:node-1\r\n") && head.contains("bearer own\r\n"), "{head}");
}

#[tokio::test]
async fn a_token_that_cannot_be_sent_is_the_credentials_fault() {
    let (port, _heads) = server(200).await;
    let token = File::new("broken-token", "own\n");
    let file = File::new("broken", &kubeconfig(port, &json!({"tokenFile": token.0})));
    let cluster = Cluster::connect(&settings(&file.0)).await.expect("a file");
    let error = cluster.list().await.expect_err("a line break in a header");
    assert_eq!(error.failure(), Failure::Cluster, "{error}");
    assert!(error.to_string().contains(&format!("http://127.0.0.1:{port}")), "{error}");
}

#[tokio::test]
async fn what_cannot_be_used_is_named() {
    let missing = Cluster::connect(&settings("/nonexistent/kubeconfig".as_ref())).await.expect_err("missing");
    assert!(missing.to_string().starts_with("kubeconfig /nonexistent/kubeconfig: "), "{missing}");
    let file = File::new("key", &kubeconfig(1, &json!({"client-certificate": "/nonexistent/cert", "client-key": "k"})));
    let missing = Cluster::connect(&settings(&file.0)).await.expect_err("missing");
    assert!(missing.to_string().contains("/nonexistent/cert") || missing.to_string().contains("No such file"));
    let (port, _) = server(200).await;
    let own = Settings { credential: Credential::OwnAccount(Acting::AsItsNode), ..settings("".as_ref()) };
    // Not if the tests run in a pod.
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() {
        let error = Cluster::connect(&own).await.expect_err("no account");
        assert!(error.to_string().contains("--kubeconfig"), "{error} {port}");
    }
}

#[tokio::test]
async fn a_credential_from_a_program_is_refused_in_words() {
    // As GKE's kubelets have it. The program is there, and the authority is not: the first thing to know is that it will not do.
    let user = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/true"}});
    let authority = json!("/nonexistent/ca-certificates.crt");
    let mut given: Value = serde_json::from_str(&kubeconfig(1, &user)).expect("json");
    given["clusters"][0]["cluster"] = json!({"server": "https://127.0.0.1:1", "certificate-authority": authority});
    let file = File::new("exec", &given.to_string());
    let refused = Cluster::connect(&settings(&file.0)).await.expect_err("a program").to_string();
    assert!(refused.contains("(/bin/true, `exec`)") && refused.contains("identity-fenced"), "{refused}");
    // Without it, the authority is what is missing.
    given["users"][0]["user"] = json!({"token": "one"});
    let file = File::new("authority", &given.to_string());
    let missing = Cluster::connect(&settings(&file.0)).await.expect_err("missing").to_string();
    assert!(missing.contains("/nonexistent/ca-certificates.crt") && missing.contains("must be mounted"), "{missing}");
}

#[tokio::test]
async fn only_the_kubeconfigs_own_proxy_is_refused() {
    const CHILD: &str = "CLUSTER_TEST_CHILD";
    let (port, mut heads) = server(200).await;
    let text = kubeconfig(port, &json!({"token": "one"}));
    if std::env::var_os(CHILD).is_some() {
        let file = File::new("direct", &text);
        let cluster = Cluster::connect(&settings(&file.0)).await.expect("a credential");
        cluster.list().await.expect("a list");
        assert!(heads.recv().await.expect("a request").starts_with("get /api/v1/pods"), "it is direct");
        return;
    }
    // Variables are those of a whole process.
    for (variable, proxy) in
        [("HTTPS_PROXY", "http://127.0.0.1:1"), ("HTTPS_PROXY", "http://a b"), ("https_proxy", "::")]
    {
        let mut child = std::process::Command::new(std::env::current_exe().expect("this program"));
        child.args(["--exact", "cluster::tests::only_the_kubeconfigs_own_proxy_is_refused"]).env(CHILD, "1");
        let output = child.env(variable, proxy).output().expect("a process");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("1 passed"), "{variable}={proxy}: {text}");
    }
    let mut given: Value = serde_json::from_str(&text).expect("json");
    given["clusters"][0]["cluster"]["proxy-url"] = json!("http://127.0.0.1:1");
    let file = File::new("proxy", &given.to_string());
    let refused = Cluster::connect(&settings(&file.0)).await.expect_err("a proxy").to_string();
    assert!(refused.contains("proxy-url is not supported"), "{refused}");
}
