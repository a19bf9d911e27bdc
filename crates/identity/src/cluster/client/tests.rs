//! Which client a request uses, and when the next one is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::*;

fn client() -> Client {
    let service =
        tower::service_fn(async |_: http::Request<Body>| Err::<http::Response<Body>, _>(std::io::Error::other("no")));
    Client::new(service, "default")
}

fn clients() -> Arc<Clients> {
    let settings =
        Settings { node: "n".parse().expect("a name"), credential: Credential::OwnAccount(Acting::AsItsNode) };
    let clients = Clients::fixed(settings, client());
    clients.current.lock().renew_at = Some(Instant::now());
    Arc::new(clients)
}

fn unreadable() -> Result<Current, ClusterError> {
    let error = "x:y:z".parse::<Uri>().expect_err("no URL");
    Err(ClusterError::NoAccount(kube::config::InClusterError::ParseClusterUrl(error)))
}

/// The credential in use is refused.
fn refuse(clients: &Clients) {
    let number = clients.current.lock().number;
    clients.refused(number);
}

/// Number of clients made for 50 requests at once, and the time that these take.
async fn made(clients: &Arc<Clients>) -> (u32, Duration) {
    let (made, began) = (Arc::new(AtomicU32::new(0)), Instant::now());
    let mut asking = JoinSet::new();
    for _ in 0..50 {
        let (clients, made) = (Arc::clone(clients), Arc::clone(&made));
        asking.spawn(async move {
            match clients.turn().await {
                Turn::Use(client) => client.is_ok(),
                Turn::Make(_renewing) => {
                    made.fetch_add(1, Relaxed);
                    sleep(Duration::from_secs(1)).await;
                    clients.renewed(Ok(Current::new("https://k".to_owned(), client()))).is_ok()
                }
            }
        });
    }
    assert_eq!(asking.join_all().await, [true; 50]);
    (made.load(Relaxed), began.elapsed())
}

#[test]
fn a_password_in_the_servers_url_is_not_shown() {
    let as_shown = |url: &str| shown(&url.parse().expect("a URL"));
    assert_eq!(as_shown("https://admin:p@k:6443/a@b"), "https://k:6443/a@b");
    assert_eq!(as_shown("https://k/a@b"), "https://k/a@b");
}

#[tokio::test]
async fn a_server_that_is_gone_is_noticed_within_half_a_minute() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let stream = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
    let stream = probed(TokioIo::new(stream)).expect("options of every socket");
    let socket = stream.inner();
    assert!(sockopt::socket_keepalive(socket).expect("an option"));
    let silent = sockopt::tcp_keepidle(socket).expect("an option");
    let probes = sockopt::tcp_keepintvl(socket).expect("an option") * sockopt::tcp_keepcnt(socket).expect("an option");
    assert_eq!(silent + probes, Duration::from_secs(30));
    assert_eq!(sockopt::tcp_user_timeout(socket).expect("an option"), 15_000);
}

#[tokio::test(start_paused = true)]
async fn requests_at_once_make_one_client() {
    let clients = clients();
    assert_eq!(made(&clients).await, (1, Duration::from_secs(1)));
    assert_eq!(clients.server(), "https://k");
    assert_eq!(made(&clients).await, (0, Duration::ZERO), "it is good for minutes");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_reached_is_looked_up_once_a_second() {
    let clients = clients();
    assert_eq!(made(&clients).await.0, 1);
    for _ in 0..2 {
        clients.doubted();
        assert_eq!(made(&clients).await.0, 0, "it was just read");
        tokio::time::advance(MAX_DOUBTED_AGE).await;
        assert_eq!(made(&clients).await.0, 1);
    }
    tokio::time::advance(MAX_AGE / 2).await;
    assert_eq!(made(&clients).await.0, 0, "nobody doubts it");
    clients.doubted();
    clients.renewed(unreadable()).expect("the client before");
    clients.doubted();
    assert_eq!(made(&clients).await.0, 0, "it was just tried");
    tokio::time::advance(MAX_DOUBTED_AGE).await;
    assert_eq!(made(&clients).await.0, 1);
}

#[tokio::test(start_paused = true)]
async fn a_refused_credential_is_used_by_nobody_while_the_next_is_read() {
    let clients = clients();
    refuse(&clients);
    assert_eq!(made(&clients).await, (1, Duration::from_secs(1)));
    assert!(!clients.current.lock().is_refused);
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_is_refused_all_the_time_is_read_once_a_second() {
    let clients = clients();
    assert_eq!(made(&clients).await.0, 1);
    for _ in 0..2 {
        refuse(&clients);
        assert_eq!(made(&clients).await.0, 0, "it was just read");
        tokio::time::advance(MAX_DOUBTED_AGE).await;
        assert_eq!(made(&clients).await.0, 1);
    }
    // At once, if it was read before.
    tokio::time::advance(MAX_DOUBTED_AGE).await;
    refuse(&clients);
    assert_eq!(made(&clients).await.0, 1);
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_is_refused_and_cannot_be_read_is_read_once_a_second() {
    let clients = clients();
    for _ in 0..2 {
        refuse(&clients);
        assert!(matches!(clients.turn().await, Turn::Make(_)));
        let Err(why) = clients.renewed(unreadable()) else { panic!("it was refused") };
        for _ in 0..9 {
            let Turn::Use(Err(again)) = clients.turn().await else { panic!("it was just read") };
            assert_eq!(again.to_string(), why.to_string());
        }
        tokio::time::advance(MAX_DOUBTED_AGE).await;
    }
    assert_eq!(made(&clients).await.0, 1);
    assert_eq!(made(&clients).await.0, 0, "it can be read");
}

#[tokio::test(start_paused = true)]
async fn a_late_refusal_of_the_credential_before_is_not_one_of_the_next() {
    let service = tower::service_fn(async |_: http::Request<Body>| {
        sleep(Duration::from_secs(5)).await;
        http::Response::builder().status(401).body(Body::empty())
    });
    let clients = clients();
    clients.renewed(Ok(Current::new(String::new(), Client::new(service, "default")))).expect("a client");
    let sent = clients.send(http::Request::get("/").body(Body::empty()));
    let replaced = async {
        sleep(Duration::from_secs(1)).await;
        clients.renewed(Ok(Current::new(String::new(), client()))).expect("a client");
    };
    assert_eq!(tokio::join!(sent, replaced).0.expect("an answer").status(), 401);
    assert!(!clients.current.lock().is_refused);
    assert_eq!(made(&clients).await, (0, Duration::ZERO));
}
