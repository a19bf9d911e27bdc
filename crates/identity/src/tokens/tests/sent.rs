//! The requests that are sent to each server.

use super::*;

#[tokio::test(start_paused = true)]
async fn each_server_is_asked_what_it_expects() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.token(TOKEN).await;
    lab.token(IDENTITY).await;
    lab.servers.read(|script| {
        let (path, body) = &script.token_requests[0];
        assert_eq!(path, "/api/v1/namespaces/a/serviceaccounts/app/token");
        let uid = pod(1, "a", "app").uid.to_string();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": "p1", "uid": uid});
        let spec = json!({"audiences": ["shop.svc.id.goog"], "expirationSeconds": 3600, "boundObjectRef": pod});
        assert_eq!(body["spec"], spec);
        let exchange = &script.exchanges[0];
        assert_eq!((&exchange["subjectToken"], &exchange["scope"]), (&json!("ksa-1"), &json!(sts::CLOUD_PLATFORM)));
        let audience = "identitynamespace:shop.svc.id.goog:https://container.googleapis.com/v1/projects/shop/c";
        assert_eq!(exchange["audience"], audience);
        let urls: Vec<_> =
            script.impersonations.iter().map(|(url, bearer, _)| (url.as_str(), bearer.as_str())).collect();
        let account = format!("https://iam.example/v1/projects/-/serviceAccounts/{GOOGLE_ACCOUNT}");
        let (access, identity) = (format!("{account}:generateAccessToken"), format!("{account}:generateIdToken"));
        assert_eq!(urls, [(access.as_str(), "Bearer fed-1"), (identity.as_str(), "Bearer fed-1")]);
        assert_eq!(script.impersonations[1].2, json!({"audience": "https://a", "includeEmail": true}));
    });
}

/// A server on loopback that answers each connection once, and passes on the request.
async fn served(answers: Vec<String>) -> (String, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (sender, requests) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = vec![0; 16 << 10];
            let mut read = 0;
            while !request[..read].ends_with(b"}") {
                read += stream.read(&mut request[read..]).await.expect("a request");
            }
            let _ = sender.send(String::from_utf8_lossy(&request[..read]).into_owned());
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: ";
            stream.write_all(format!("{head}{}\r\n\r\n{answer}", answer.len()).as_bytes()).await.expect("sent");
        }
    });
    (url, requests)
}

#[tokio::test]
async fn the_requests_are_http() {
    let (url, mut requests) = served(vec![issued("/v1/token", 1, 3600), issued("", 1, 3600)]).await;
    let endpoint = Endpoint::parse(&url).expect("loopback");
    let federation = Federation { sts: endpoint.clone(), iam: endpoint, ..federation() };
    let google = Google::new(&federation).expect("no file");
    let lab = Lab::with(Servers::new(GOOGLE_ACCOUNT), federation, google);
    assert_eq!(lab.token(TOKEN).await, "google-1");
    let exchange = requests.recv().await.expect("a request").to_lowercase();
    assert!(exchange.starts_with("post /v1/token http/1.1\r\n") && !exchange.contains("authorization"), "{exchange}");
    let impersonation = requests.recv().await.expect("a request");
    let line = format!("POST /v1/projects/-/serviceAccounts/{GOOGLE_ACCOUNT}:generateAccessToken HTTP/1.1\r\n");
    assert!(impersonation.starts_with(&line), "{impersonation}");
    assert!(impersonation.contains("authorization: Bearer fed-1\r\n"), "{impersonation}");

    // Nothing listens any more.
    let why = lab.failure(IDENTITY).await;
    assert!(why.starts_with("Google's IAM Credentials API: cannot connect: "), "{why}");
    let failure = TokenFailure::from(Failure::Closed);
    assert_eq!(failure.what(), "The metadata server");
}
