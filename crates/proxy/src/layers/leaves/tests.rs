use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http_body_util::BodyExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, ServiceExt, service_fn};

use super::*;
use crate::layers::filter::layer;
use protocol::metadata::{Endpoint, Principal, Query, WorkloadId};

/// How long the server takes.
const DELAY: Duration = Duration::from_secs(2);

type Served = Result<Response<Body>, Failure>;

/// A server whose answers take a while, and the leaves that it gives.
struct Server {
    asked: Arc<AtomicUsize>,
    leaves: Arc<Leaves>,
}

impl Server {
    /// Gives this answer to each request, by its number from 0.
    fn new(answer: impl Fn(usize) -> Served + Send + Sync + 'static) -> Self {
        let asked = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&asked);
        let leaves = Arc::new(Leaves::new(move |_| {
            let answer = answer(counted.fetch_add(1, Relaxed));
            async move {
                sleep(DELAY).await;
                answer
            }
        }));
        Self { asked, leaves }
    }

    fn asked(&self) -> usize {
        self.asked.load(Relaxed)
    }

    /// Asks as a client does. The layers below fail, so that any request that gets there is noticed.
    async fn get(&self, leaf: Leaf) -> Result<Response<Body>, Error> {
        layer(Arc::clone(&self.leaves)).layer(service_fn(closed)).oneshot(leaf.request().into()).await
    }

    /// The status of an answer, or 503, and how long it took.
    async fn status(&self, leaf: Leaf) -> (u16, Duration) {
        let began = Instant::now();
        let status = self.get(leaf).await.map_or(503, |answer| answer.status().as_u16());
        (status, began.elapsed())
    }
}

async fn closed(_: Box<Request>) -> Result<Response<Body>, Error> {
    Err(Failure::Closed.into())
}

fn whole(status: u16, body: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::Whole(Bytes::from_static(body.as_bytes())));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response.headers_mut().insert(header::ETAG, HeaderValue::from_static("0123456789abcdef"));
    response.headers_mut().insert(header::DATE, HeaderValue::from_static("yesterday"));
    response
}

async fn text(response: Response<Body>) -> String {
    let body = response.into_body().collect().await.expect("a whole body").to_bytes();
    String::from_utf8(body.to_vec()).expect("text")
}

fn leaf(path: CommonPath) -> Leaf {
    let plain = Leaf::new(path, false);
    plain.or_else(|| Leaf::new(path, true)).expect("a leaf")
}

/// Leaves of which one is known.
fn kept(leaf: Leaf, value: &'static str) -> Arc<Leaves> {
    let server = Server::new(|_| Err(Failure::Closed));
    let (head, body) = whole(200, "").into_parts();
    drop(body);
    server.leaves.keep(leaf, head.status, head.headers, &Bytes::from_static(value.as_bytes()));
    server.leaves
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_for_each_leaf_share_one_flight() {
    for leaf in Leaf::all().filter(|leaf| leaf.path() != CommonPath::UniverseDomain) {
        let server = Server::new(|_| Ok(whole(200, "a value")));
        let mut crowd: JoinSet<_> = (0..250)
            .map(|_| layer(Arc::clone(&server.leaves)).layer(service_fn(closed)).oneshot(leaf.request().into()))
            .collect();
        while let Some(answer) = crowd.join_next().await {
            assert_eq!(text(answer.expect("no panic").expect("an answer")).await, "a value", "{leaf}");
        }
        assert_eq!(server.asked(), 1, "{leaf}");
        assert_eq!(server.status(leaf).await, (200, Duration::ZERO), "{leaf} is kept");
        assert_eq!(server.asked(), 1, "{leaf}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_flight_fails_all_that_wait_and_is_remembered_for_less_than_a_second() {
    let server = Server::new(|number| if number == 0 { Err(Failure::CutShort) } else { Ok(whole(200, "z")) });
    let zone = leaf(CommonPath::Zone);
    let (one, other) = tokio::join!(server.get(zone), server.get(zone));
    for answer in [one, other, server.get(zone).await] {
        assert!(
            matches!(&answer, Err(Error::Upstream(failure)) if matches!(**failure, Failure::CutShort)),
            "{answer:?}"
        );
    }
    assert_eq!(server.asked(), 1);
    sleep(Duration::from_secs(1)).await;
    assert_eq!((server.status(zone).await, server.asked()), ((200, DELAY), 2));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_passed_on_to_all_that_wait() {
    let server = Server::new(|_| Ok(whole(429, "too many")));
    let zone = leaf(CommonPath::Zone);
    let (one, other) = tokio::join!(server.get(zone), server.get(zone));
    for answer in [one, other] {
        let answer = answer.expect("an answer");
        assert_eq!((answer.status(), text(answer).await), (StatusCode::TOO_MANY_REQUESTS, "too many".to_owned()));
    }
    assert_eq!(server.asked(), 1);
}

/// Lets a refresh end in each of these ways. Returns the status afterwards.
async fn status_after_refresh(leaf: Leaf, refreshed: fn() -> Served) -> u16 {
    let server = Server::new(move |number| if number == 0 { Ok(whole(200, "a")) } else { refreshed() });
    assert_eq!(server.status(leaf).await, (200, DELAY));
    server.leaves.refresh(leaf).await;
    assert_eq!(server.asked(), 2);
    let (status, waited) = server.status(leaf).await;
    assert_eq!(waited, Duration::ZERO, "it is kept");
    status
}

#[tokio::test(start_paused = true)]
async fn only_an_answer_replaces_a_value() {
    let failures: [fn() -> Served; 4] = [
        || Err(Failure::Closed),
        || Ok(whole(403, "no")),
        || Ok(whole(503, "later")),
        || Ok(Response::new(Body::Streamed(Box::pin(Body::Whole(Bytes::new()))))),
    ];
    for failure in failures {
        for path in [CommonPath::Zone, CommonPath::ClusterName] {
            assert_eq!(status_after_refresh(leaf(path), failure).await, 200, "{path:?}");
        }
    }
    let missing: fn() -> Served = || Ok(whole(404, "none"));
    for path in [CommonPath::Zone, CommonPath::DefaultEmail, CommonPath::MachineType] {
        assert_eq!(status_after_refresh(leaf(path), missing).await, 200, "{path:?} changes only while stopped");
    }
    assert_eq!(status_after_refresh(leaf(CommonPath::ClusterName), missing).await, 404, "an operator removed it");
}

#[tokio::test(start_paused = true)]
async fn a_missing_value_is_kept_for_a_minute() {
    let server = Server::new(|_| Ok(whole(404, "none")));
    let name = leaf(CommonPath::ClusterName);
    assert!(server.leaves.warm(name).await, "404 is an answer");
    sleep(Duration::from_secs(59)).await;
    assert_eq!((server.status(name).await, server.asked()), ((404, Duration::ZERO), 1));
    sleep(Duration::from_secs(2)).await;
    assert_eq!((server.status(name).await, server.asked()), ((404, DELAY), 2));
    assert!(!server.leaves.warm(leaf(CommonPath::ProjectId)).await, "each machine has a project");
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_memory_says_its_age() {
    let server = Server::new(|_| Ok(whole(200, "z")));
    let zone = leaf(CommonPath::Zone);
    let age = |answer: Response<Body>| answer.headers().get(header::AGE).cloned();
    assert_eq!(age(server.get(zone).await.expect("an answer")), None, "it comes from the server");
    assert_eq!(age(server.get(zone).await.expect("an answer")), Some(2.into()), "its request took this long");
    advance(Duration::from_secs(100)).await;
    assert_eq!(age(server.get(zone).await.expect("an answer")), Some(102.into()));
    let rows = server.leaves.rows(BootTime::now());
    assert_eq!((rows.len(), rows[0].leaf, rows[0].status.as_u16()), (1, zone, 200));
    assert_eq!(rows[0].age, Duration::from_secs(102));
    server.leaves.refresh(zone).await;
    assert_eq!(age(server.get(zone).await.expect("an answer")), Some(2.into()), "it was fetched again");
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_too_large_is_left_to_the_server() {
    let server = Server::new(|_| Ok(Response::new(Body::Streamed(Box::pin(Body::Whole(Bytes::new()))))));
    let accounts = leaf(CommonPath::Accounts);
    assert!(server.leaves.answers_from_memory(&accounts.request()));
    assert_eq!(server.status(accounts).await, (503, DELAY));
    sleep(Duration::from_secs(300)).await;
    assert!(!server.leaves.answers_from_memory(&accounts.request()), "it needs a seat from now on");
    let streams = service_fn(|_| async { Ok::<_, Error>(whole(200, "from below")) });
    let answer = layer(Arc::clone(&server.leaves)).layer(streams).oneshot(accounts.request().into()).await;
    assert_eq!(text(answer.expect("an answer")).await, "from below");
    assert_eq!(server.asked(), 1);
}

fn instance_tree() -> Leaf {
    Leaf::new(CommonPath::Instance, true).expect("a leaf")
}

#[tokio::test(start_paused = true)]
async fn those_who_waited_for_a_tree_that_is_too_large_do_not_all_go_to_the_server() {
    let server = Server::new(|_| Ok(Response::new(Body::Streamed(Box::pin(Body::Whole(Bytes::new()))))));
    let below = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&below);
    let streams = service_fn(move |_| {
        counted.fetch_add(1, Relaxed);
        async { Ok::<_, Error>(whole(200, "from below")) }
    });
    let service = layer(Arc::clone(&server.leaves)).layer(streams);
    let mut crowd: JoinSet<_> = (0..250).map(|_| service.clone().oneshot(instance_tree().request().into())).collect();
    while let Some(answer) = crowd.join_next().await {
        assert_eq!(answer.expect("no panic").expect_err("it holds no seat").status(), 503);
    }
    assert_eq!((server.asked(), below.load(Relaxed)), (1, 0));
    let again = service.oneshot(instance_tree().request().into()).await;
    assert_eq!(text(again.expect("an answer")).await, "from below");
}

#[tokio::test(start_paused = true)]
async fn a_leaf_that_is_too_large_needs_a_seat_although_its_refresh_fails() {
    for leaf in [instance_tree(), leaf(CommonPath::Accounts)] {
        for failure in [|| Err(Failure::Closed), || Ok(whole(503, "later"))] {
            let large = || Ok(Response::new(Body::Streamed(Box::pin(Body::Whole(Bytes::new())))));
            let server = Server::new(move |number| if number == 0 { large() } else { failure() });
            server.leaves.refresh(leaf).await;
            server.leaves.refresh(leaf).await;
            sleep(Duration::from_secs(5)).await;
            assert!(!server.leaves.answers_from_memory(&leaf.request()), "{leaf}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_tree_that_is_not_fresh_is_fetched_again_by_its_next_reader_who_waits_briefly() {
    let server = Server::new(|number| Ok(whole(200, if number == 0 { "old" } else { "new" })));
    let read = async || {
        let began = Instant::now();
        let shown = text(server.get(instance_tree()).await.expect("an answer")).await;
        (shown, began.elapsed(), server.asked())
    };
    assert_eq!(read().await, ("old".to_owned(), DELAY, 1));
    advance(Duration::from_secs(2)).await;
    assert_eq!(read().await, ("old".to_owned(), Duration::ZERO, 1), "it is fresh: asked for 4 s ago");
    advance(Duration::from_secs(600)).await;
    assert_eq!(server.asked(), 1, "nobody has read it");
    let (one, other) = tokio::join!(read(), read());
    assert_eq!(one, other, "they share a flight");
    assert_eq!(one, ("old".to_owned(), STALE_TIMEOUT, 2));
    sleep(DELAY).await;
    assert_eq!(read().await, ("new".to_owned(), Duration::ZERO, 2), "the flight went on");
}

/// The status and the body of the next answer for a kept tree, after a flight with this result.
async fn read_after(flight: fn() -> Served) -> (u16, String) {
    let number = Arc::<AtomicUsize>::default();
    let leaves = Leaves::new(move |_| {
        let is_first = number.fetch_add(1, Relaxed) == 0;
        async move { if is_first { Ok(whole(200, "old")) } else { flight() } }
    });
    let service = layer(Arc::new(leaves)).layer(service_fn(async |_| Ok::<_, Error>(whole(200, "from below"))));
    service.clone().oneshot(instance_tree().request().into()).await.expect("an answer");
    advance(Duration::from_secs(10)).await;
    match service.oneshot(instance_tree().request().into()).await {
        Ok(answer) => (answer.status().as_u16(), text(answer).await),
        Err(error) => (error.status().as_u16(), String::new()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_tree_stays_while_the_server_fails_and_not_when_it_cannot_be_kept() {
    let failures: [fn() -> Served; 4] =
        [|| Err(Failure::Closed), || Ok(whole(403, "no")), || Ok(whole(503, "later")), || Ok(whole(404, "none"))];
    for failure in failures {
        assert_eq!(read_after(failure).await, (200, "old".to_owned()));
    }
    assert_eq!(read_after(|| Ok(whole(200, "new"))).await, (200, "new".to_owned()));
    let large = || Ok(Response::new(Body::Streamed(Box::pin(Body::Whole(Bytes::new())))));
    assert_eq!(read_after(large).await, (503, String::new()), "its next reader goes to the server");
}

#[test]
fn each_leaf_is_found_by_its_own_request() {
    let leaves = Arc::new(Leaves::new(|_| std::future::pending::<Served>()));
    for leaf in Leaf::all() {
        assert_eq!(leaves.leaf(&leaf.request()), Some(leaf));
        assert!(leaves.answers_from_memory(&leaf.request()), "{leaf} needs no seat, whether it is known or not");
    }
}

#[test]
fn the_nodes_account_is_served_only_to_the_node_trees_to_all_who_are_known_and_other_values_to_all() {
    let tree = Leaf::new(CommonPath::Instance, true).expect("a tree");
    for (leaf, of_workloads, of_unknown) in [
        (leaf(CommonPath::DefaultEmail), false, false),
        (leaf(CommonPath::DefaultAccount), false, false),
        (leaf(CommonPath::Zone), true, true),
        (leaf(CommonPath::UniverseDomain), true, true),
        (leaf(CommonPath::Instance), true, true),
        (tree, true, false),
    ] {
        let leaves = kept(leaf, "a@b.c");
        let mut request = leaf.request();
        assert!(leaves.answers_from_memory(&request), "{leaf}");
        request.principal = Principal::Workload(WorkloadId(7));
        assert_eq!(leaves.answers_from_memory(&request), of_workloads, "{leaf}");
        request.principal = Principal::Unknown;
        assert_eq!(leaves.answers_from_memory(&request), of_unknown, "{leaf}");
    }
}

#[test]
fn an_account_is_found_by_alias_and_by_email() {
    let account = |name: &str, query: &str| {
        let path = format!("{}{name}/", CommonPath::Accounts.as_str());
        let query = Query::parse(Some(query)).expect("a query");
        Request::own(Endpoint::ServiceAccounts, &path, query, Principal::Node)
    };
    let leaves = kept(leaf(CommonPath::DefaultEmail), "a@b.c");
    for (name, query) in [("default", "recursive=true"), ("a@b.c", "recursive=True"), ("default", ""), ("a@b.c", "")] {
        let form = Leaf::new(CommonPath::DefaultAccount, !query.is_empty());
        assert_eq!(leaves.leaf(&account(name, query)), form, "{name}?{query}");
    }
    for (name, query) in
        [("default", "alt=json"), ("default", "recursive=true&alt=text"), ("another@b.c", "recursive=true")]
    {
        assert_eq!(leaves.leaf(&account(name, query)), None, "{name}?{query}");
    }
    let unknown = kept(leaf(CommonPath::Zone), "z");
    assert_eq!(unknown.leaf(&account("a@b.c", "recursive=true")), None, "the email is not known yet");
}

#[test]
fn the_accounts_are_kept_as_a_listing_and_as_a_tree() {
    let forms: Vec<String> =
        Leaf::all().filter(|leaf| leaf.path() == CommonPath::Accounts).map(|leaf| leaf.to_string()).collect();
    let listing = CommonPath::Accounts.as_str();
    assert_eq!(forms, [listing.to_owned(), format!("{listing}?recursive=true")]);
    let leaves = kept(leaf(CommonPath::Accounts), "default/\n");
    let tree = Leaf::new(CommonPath::Accounts, true).expect("a leaf");
    assert!(matches!(leaves.find(tree, BootTime::now()), Lookup::Unknown), "each has its own value");
}

#[tokio::test]
async fn a_kept_value_has_the_servers_headers_without_the_date() {
    let service = layer(kept(leaf(CommonPath::Zone), "projects/1/zones/z")).layer(service_fn(closed));
    let response = service.oneshot(leaf(CommonPath::Zone).request().into()).await.expect("an answer");
    assert_eq!(response.headers()["etag"], "0123456789abcdef");
    assert!(!response.headers().contains_key(header::DATE), "the response gets its own date");
    assert_eq!(text(response).await, "projects/1/zones/z");
}

#[tokio::test]
async fn a_value_in_another_form_is_requested_from_the_server() {
    let service = layer(kept(leaf(CommonPath::Zone), "z")).layer(service_fn(closed));
    let query = Query::parse(Some("alt=json")).expect("a query");
    assert!(service.oneshot(Request { query, ..leaf(CommonPath::Zone).request() }.into()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn an_unknown_universe_is_a_404_within_half_a_second() {
    let universe = leaf(CommonPath::UniverseDomain);
    let slow = Server::new(|_| Ok(whole(200, "googleapis.com")));
    assert_eq!(slow.status(universe).await, (404, UNIVERSE_TIMEOUT));
    sleep(DELAY).await;
    assert_eq!((slow.status(universe).await, slow.asked()), ((200, Duration::ZERO), 1), "the flight went on");
    for failed in [|| Err(Failure::Closed), || Ok(whole(403, "no"))] {
        let failing = Server::new(move |_| failed());
        assert!(!failing.leaves.warm(universe).await);
        assert_eq!(failing.status(universe).await, (404, Duration::ZERO), "the failure is remembered");
    }
}
