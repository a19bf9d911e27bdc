//! Kubeconfigs and tokens: read again when they were replaced, and refused in words.

use base64::Engine as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;

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
async fn a_refused_credential_is_read_again_within_a_second() {
    let (port, mut heads) = server(401).await;
    let file = File::new("refused", &kubeconfig(port, &json!({"token": "one"})));
    let cluster = Cluster::connect(&settings(&file.0)).await.expect("a credential");
    let refused = cluster.list().await.expect_err("refused");
    assert!(refused.to_string().contains("certificate or token is not valid"), "{refused}");
    std::fs::write(&file.0, kubeconfig(port, &json!({"token": "two"}))).expect("written");
    advance(Duration::from_secs(1)).await;
    cluster.list().await.expect_err("refused");
    heads.recv().await.expect("a request");
    assert!(heads.recv().await.expect("a request").contains("bearer two\r\n"));
    std::fs::write(&file.0, "not a kubeconfig").expect("written");
    advance(Duration::from_secs(1)).await;
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
    for (user, named) in [
        (json!({"client-certificate": "/nonexistent/cert", "client-key-data": AUTHORITY}), "/nonexistent/cert"),
        (json!({"client-certificate-data": AUTHORITY, "client-key": "/nonexistent/key"}), "/nonexistent/key"),
        (json!({"tokenFile": "/nonexistent/token"}), "/nonexistent/token"),
    ] {
        let file = File::new("user", &kubeconfig(1, &user));
        let missing = Cluster::connect(&settings(&file.0)).await.expect_err("missing").to_string();
        assert!(missing.contains(&format!(" {named}: No such file")), "{named} is missing from {missing}");
    }
    let (port, _) = server(200).await;
    let own = Settings { credential: Credential::OwnAccount(Acting::AsItsNode), ..settings("".as_ref()) };
    // Not if the tests run in a pod.
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() {
        let error = Cluster::connect(&own).await.expect_err("no account");
        assert!(error.to_string().contains("--kubeconfig"), "{error} {port}");
    }
}

#[tokio::test]
async fn no_message_has_text_of_the_credential() {
    const HEAD: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- {name: c, context: {cluster: c, user: u}}\n\
                        clusters:\n- {name: c, cluster: {server: 'https://127.0.0.1:1'";
    let authority = format!(", certificate-authority-data: {AUTHORITY}");
    let user = |user: &str| format!("{HEAD}{authority}}}}}\nusers:\n- name: u\n  user: {user}");
    let data = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
    // The lines of a key, with an empty one between them, or in one line.
    let with_header = "-----BEGIN PRIVATE KEY-----\nsecret\n\nAAAA\n-----END PRIVATE KEY-----\n";
    let of_authority = |data: &str| format!("{HEAD}, certificate-authority-data: {data}}}}}\nusers: []\n");
    for (text, said) in [
        (user("\n    token: secret\n     tokenFile: f\n"), "line 12, column 15: mapping values are not allowed"),
        (user("{token: [secret]}"), "line 10, column "),
        (user("secret"), "line 10, column "),
        ("secret".to_owned(), "line 1, column 1: expected mapping start"),
        ("{current-context: secret, current-context: secret, secret: secret}".to_owned(), "line 1, column "),
        ("{apiVersion: v1, kind: Config}".to_owned(), "it has no current-context; set it"),
        (
            format!("{HEAD}{authority}}}}}\n").replace("current-context: c", "current-context: d"),
            "current-context \"d\" is not in it",
        ),
        (of_authority("secret"), "certificate-authority-data is not valid base64"),
        (of_authority(&data(with_header)), "certificate-authority is not valid PEM"),
        (
            user(&format!("{{client-certificate-data: {AUTHORITY}, client-key-data: secret}}")),
            "client-key-data is not valid base64",
        ),
        (
            user(&format!(
                "{{client-certificate-data: {AUTHORITY}, client-key-data: {}}}",
                data("-----BEGIN PRIVATE KEY-----secret")
            )),
            "client-certificate or client-key is not valid PEM",
        ),
    ] {
        let file = File::new("secret", &text);
        let error = Cluster::connect(&settings(&file.0)).await.expect_err("unusable").to_string();
        let bytes = format!("{:?}", b"secret");
        let leaks = error.contains(bytes.trim_matches(['[', ']']));
        let words = error.replace(&file.0.display().to_string(), "FILE");
        assert!(!words.contains("secret") && !leaks, "{text}\n{words}");
        assert!(words.contains(said) && !words.contains("mounted"), "{said}: {words}");
    }
}

#[tokio::test]
async fn a_credential_from_a_program_is_refused_in_words() {
    // As GKE's kubelets have it. The program is there, and the authority is not: the first thing to know is that it will not do.
    let authority = json!("/nonexistent/ca-certificates.crt");
    let mut given: Value = serde_json::from_str(&kubeconfig(1, &json!({}))).expect("json");
    given["clusters"][0]["cluster"] = json!({"server": "https://127.0.0.1:1", "certificate-authority": authority});
    for user in [
        json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/true"}}),
        json!({"auth-provider": {"name": "gcp", "config": {"cmd-path": "/bin/true", "cmd-args": "config"}}}),
    ] {
        given["users"][0]["user"] = user;
        let file = File::new("exec", &given.to_string());
        let refused = Cluster::connect(&settings(&file.0)).await.expect_err("a program").to_string();
        assert!(refused.contains("a program (/bin/true, ") && refused.contains("identity-fenced"), "{refused}");
    }
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
        child
            .args(["--exact", "cluster::tests::credentials::only_the_kubeconfigs_own_proxy_is_refused"])
            .env(CHILD, "1");
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
