//! Rows that need more than one request. They panic on failure, and the panic becomes the row's report.

use std::pin::Pin;
use std::time::Duration;

use mock::Fault;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::ask::{Ask, ask, get};
use super::expect::{kept_token, known_leaf, own_listing, unavailable};
use super::stage::Stage;
use crate::support::{Connection, raw};

/// A test of several requests.
pub type Story = for<'a> fn(&'a Stage) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A token that no proxy has at its start.
pub const CLOUD_PLATFORM: &str = "SA/token?scopes=https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fcloud-platform";
const STORAGE: &str = "SA/token?scopes=https%3A%2F%2Fwww.googleapis.com%2Fauth%2Fdevstorage.read_only";
const BOUND: &str = "SA/token?transport=mtls&binding-enforcement=on";

/// T75.
pub async fn a_token_ages(stage: &Stage) {
    let (first, life) = token(stage, "SA/token").await;
    sleep(Duration::from_secs(2)).await;
    let (second, rest) = token(stage, "SA/token").await;
    assert!(first == second, "the token changed");
    assert!((1..=3).contains(&(life - rest)), "{life} s became {rest} s");
}

/// T82.
pub async fn scopes_have_their_own_tokens(stage: &Stage) {
    let narrow = token(stage, STORAGE).await.0;
    let wide = token(stage, CLOUD_PLATFORM).await.0;
    assert!(narrow != wide, "two sets of scopes had one token");
    assert!(narrow == token(stage, STORAGE).await.0, "one set of scopes had two tokens");
}

/// T85.
pub async fn a_bound_token_is_not_the_plain_one(stage: &Stage) {
    let plain = token(stage, "SA/token").await.0;
    assert!(plain != token(stage, BOUND).await.0, "the plain token was handed out as a bound one");
}

/// T108.
pub async fn a_change_ends_the_wait(stage: &Stage) {
    let path = "instance/attributes/k";
    stage.mock.set(path, "old");
    let before = etag(stage, "v1/instance/attributes/k").await;
    let change = async {
        sleep(Duration::from_secs(1)).await;
        stage.mock.set(path, "new");
    };
    let waiting = get("v1/instance/attributes/k?wait_for_change=true");
    let (came, ()) = tokio::join!(stage.ask(&waiting), change);
    let answer = came.answer().expect("an answer");
    assert_eq!((answer.status, answer.body.as_str()), (200, "new"));
    assert!(answer.header("etag").is_some_and(|etag| etag != before), "the ETag stayed the same");
    assert!((1..3).contains(&came.took.as_secs()), "it took {:?}", came.took);
}

/// T112.
pub async fn an_etag_depends_on_the_content_and_not_on_its_form(stage: &Stage) {
    let text = etag(stage, "v1/project/project-id?alt=text").await;
    assert_eq!(text, etag(stage, "v1/project/project-id?alt=json").await);
    let all = etag(stage, "v1/project/?recursive=true&alt=text").await;
    assert_eq!(all, etag(stage, "v1/project/?recursive=true&alt=json").await);
    assert_ne!(all, etag(stage, "v1/project/").await);
    let [tree, listing] = ["v1/instance/attributes/?recursive=true", "v1/instance/attributes/"];
    stage.mock.set("instance/attributes/k", "old");
    let (of_tree, of_listing) = (etag(stage, tree).await, etag(stage, listing).await);
    stage.mock.set("instance/attributes/k", "new");
    assert_ne!(of_tree, etag(stage, tree).await, "a value has changed");
    assert_eq!(of_listing, etag(stage, listing).await, "the names have not");
}

/// T115.
pub async fn what_was_put_can_be_read(stage: &Stage) {
    let path = "v1/instance/guest-attributes/ns/key";
    stage.body(&ask("PUT", path).body("v")).await;
    assert_eq!(stage.body(&get(path)).await, "v");
}

/// T76. Two sockets per client must fit into the open files of a process on a usual machine, so there are fewer than
/// 1000 clients.
pub async fn many_clients_are_one_request(stage: &Stage) {
    const CLIENTS: usize = 200;
    stage.mock.fault(Fault::Delay(Duration::from_millis(300)));
    stage.mock.reset_counters();
    let addr = stage.addr();
    let clients: JoinSet<_> = (0..CLIENTS).map(|_| raw(addr, get(CLOUD_PLATFORM).bytes())).collect();
    let answers = clients.join_all().await;
    assert!(answers.iter().all(|bytes| bytes.starts_with(b"HTTP/1.1 200 ")), "not all have a token");
    assert_eq!(stage.mock.requests(), 1);
}

/// T81.
pub async fn a_dead_token_is_not_given(stage: &Stage) {
    stage.mock.token_life(Duration::from_secs(2));
    token(stage, CLOUD_PLATFORM).await;
    stage.mock.fault(Fault::Reset);
    sleep(Duration::from_millis(2100)).await;
    let problems = stage.problems(&get(CLOUD_PLATFORM), &unavailable()).await;
    assert!(problems.is_empty(), "{problems:?}");
}

/// T120.
pub async fn an_absent_upstream_is_a_503(stage: &Stage) {
    stage.mock.stop().await;
    for (target, expect) in [
        (CLOUD_PLATFORM, unavailable()),
        ("SA/token", kept_token()),
        ("v1/project/project-id", known_leaf("mock-project")),
        ("/", own_listing("computeMetadata/\n")),
    ] {
        let problems = stage.problems(&get(target), &expect).await;
        assert!(problems.is_empty(), "{target}: {problems:?}");
    }
}

/// T121.
pub async fn a_silent_upstream_is_a_503_and_is_left(stage: &Stage) {
    stage.mock.fault(Fault::Hang);
    let problems = stage.problems(&get(CLOUD_PLATFORM), &unavailable()).await;
    assert!(problems.is_empty(), "{problems:?}");
    let answered = Instant::now();
    while stage.mock.in_flight() > 0 {
        assert!(answered.elapsed() < Duration::from_secs(5), "the upstream is still waited for");
        sleep(Duration::from_millis(2)).await;
    }
}

/// T123.
pub async fn a_server_that_asks_for_patience_gets_it(stage: &Stage) {
    stage.mock.fault(Fault::Status(429, "too many requests".to_owned()));
    stage.mock.reset_counters();
    let asked = Instant::now();
    for _ in 0..10 {
        let status = stage.status(&get(CLOUD_PLATFORM)).await;
        assert!(matches!(status, Some(429 | 503)), "{status:?}");
        assert_eq!(stage.status(&get("SA/token")).await, Some(200), "the token that is kept is good");
    }
    let (requests, limit) = (stage.mock.requests(), 1 + asked.elapsed().as_secs());
    assert!(requests <= limit, "{requests} requests went upstream, not {limit} at the most");
}

/// T128. Python's library sends these two requests, on one connection if it can.
pub async fn one_connection_carries_two_requests(stage: &Stage) {
    let mut connection = Connection::open(stage.addr()).await;
    for target in ["SA/?recursive=true", "SA/token"] {
        connection.send(get(target).kept().bytes()).await;
        let answer = connection.answer().await.expect("the connection stays open");
        assert_eq!((answer.status, answer.header("connection")), (200, None), "{target}: {}", answer.body);
        assert_eq!(answer.header("content-type"), Some("application/json"), "{target}");
    }
}

async fn token(stage: &Stage, target: &str) -> (String, i64) {
    let body = stage.body(&get(target)).await;
    let token: Value = serde_json::from_str(&body).expect("JSON");
    let access_token = token["access_token"].as_str().expect("a string");
    (access_token.to_owned(), token["expires_in"].as_i64().expect("a whole number"))
}

async fn etag(stage: &Stage, target: &str) -> String {
    let request: Ask = get(target);
    let answer = stage.ask(&request).await.answer().expect("an answer");
    answer.header("etag").unwrap_or_else(|| panic!("no ETag for {target}")).to_owned()
}
