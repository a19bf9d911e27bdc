//! Connections, counters, and shutdown.

use super::*;

#[tokio::test]
async fn a_stopped_mock_refuses_and_its_port_can_be_bound_again() {
    let (mock, mut idle) = started().await;
    assert_eq!(idle.get("/").await.status, 200);
    let mut hanging = Client::connect(mock.addr()).await;
    hanging.send(&request("GET", &format!("{V1}instance/id?wait_for_change=true"))).await;
    eventually("it waits", || mock.in_flight() == 1).await;
    mock.stop().await;
    assert_eq!((mock.in_flight(), mock.open_connections()), (0, 0));
    assert_eq!(idle.rest().await.0, "");
    assert!(TcpStream::connect(mock.addr()).await.is_err());
    let next = Mock::start_on(mock.addr()).await.expect("the address is free");
    assert_eq!(Client::connect(next.addr()).await.get("/").await.status, 200);
}

#[tokio::test]
async fn run_ends_with_its_shutdown() {
    let mock = Mock::bind(([127, 0, 0, 1], 0).into()).await.expect("a port");
    let (handle, addr) = (mock.handle(), mock.local_addr());
    let (shutdown, ended) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(mock.run(async { drop(ended.await) }));
    let mut client = Client::connect(addr).await;
    assert_eq!(client.get("/").await.status, 200);
    drop(shutdown);
    running.await.expect("no panic");
    assert!(client.rest().await.0.is_empty());
    handle.stop().await;
}

#[tokio::test]
async fn counters_count_requests_and_connections() {
    let (mock, mut client) = started().await;
    client.get("/").await;
    client.get(&format!("{ACCOUNT}token?scopes=a")).await;
    client.get("/computeMetadata/v1//nothing").await;
    assert_eq!((mock.requests(), mock.connections(), mock.open_connections()), (3, 1, 1));
    assert_eq!(mock.requests_to(&format!("{ACCOUNT}token")), 1);
    assert_eq!(
        (mock.requests_to("/computeMetadata/v1//nothing"), mock.requests_to("/computeMetadata/v1/nothing")),
        (1, 0)
    );
    let log = mock.log();
    assert_eq!((log[1].method.as_str(), log[1].header("metadata-flavor")), ("GET", Some("Google")));
    mock.reset_counters();
    assert_eq!((mock.requests(), mock.requests_to("/"), mock.log().len(), mock.open_connections()), (0, 0, 0, 1));
}

#[tokio::test]
async fn one_connection_carries_pipelined_requests() {
    let (_mock, mut client) = started().await;
    client
        .send(&[request("GET", "/"), request("HEAD", "/"), request("GET", &format!("{V1}project/project-id"))].concat())
        .await;
    assert_eq!(client.reply(true).await.body.len(), 22);
    assert_eq!(client.reply(false).await.status, 200);
    assert_eq!(client.reply(true).await.body, "mock-project");
}

#[tokio::test]
async fn http_1_0_ends_with_the_answer() {
    let (mock, mut client) = started().await;
    client.send("GET /computeMetadata/v1 HTTP/1.0\r\nMetadata-Flavor: Google\r\n\r\n").await;
    let (bytes, end) = client.rest().await;
    assert!(bytes.contains("Location: http://169.254.169.254/computeMetadata/v1/\r\n"), "{bytes}");
    assert!(bytes.contains("Connection: close\r\n") && end.is_ok());
    drop(client);
    eventually("it is closed", || mock.open_connections() == 0).await;
}

#[tokio::test]
async fn invalid_requests_are_refused_and_the_connection_closed() {
    let huge = format!("GET /{} HTTP/1.1\r\n", "a".repeat(70_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(129));
    for (bytes, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"),
        ("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
        ("GET http://h/ HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
        ("CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: \r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999999\r\n\r\n", "400"),
        ("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\n", "413"),
        (&huge, "431"),
        (&many, "431"),
    ] {
        let (mock, mut client) = started().await;
        client.send(bytes).await;
        let (reply, _) = client.rest().await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{reply}");
        assert_eq!(mock.requests(), 1);
    }
}

#[tokio::test]
async fn a_body_is_not_read_as_a_request() {
    let (mock, mut client) = started().await;
    let inner = request("GET", "/computeMetadata/v1/instance/attributes/kube-env");
    client
        .send(&format!(
            "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: {0}\r\nContent-Length: {0}\r\n\r\n{inner}",
            inner.len()
        ))
        .await;
    assert_eq!(client.reply(true).await.status, 200);
    assert_eq!(client.get("/").await.status, 200);
    assert_eq!(mock.requests(), 2);
}
