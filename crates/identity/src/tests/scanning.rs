//! Slow scans: which clients are answered meanwhile.

use tokio::task::JoinHandle;

use super::*;

/// The duration of a scan that reads the processes when it begins, and the rest after it.
const SCAN: Duration = Duration::from_millis(300);

const REST: Duration = Duration::from_millis(150);

/// After this time without a scan, the next begins at once.
const OLD: Duration = Duration::from_millis(250);

type Told = Result<Result<Sender, Unidentified>, Outdated>;

impl Node {
    fn slow() -> Self {
        Self::with(Attest::Prefer, None, |sandboxes| Scans::slow(sandboxes, SCAN))
    }

    fn wait(&self, addr: &str) -> JoinHandle<Told> {
        let visitor = self.connect(addr);
        tokio::spawn(async move { visitor.wait().await })
    }

    /// A scan begins for an unknown client.
    async fn begin_a_scan(&self) -> JoinHandle<Told> {
        sleep(OLD).await;
        let waiting = self.wait("10.9.9.9");
        sleep(SCAN / 3).await;
        waiting
    }
}

fn told(told: Told) -> Result<String, Missing> {
    told.expect("not outdated").map(|sender| name(&sender).to_owned()).map_err(|unidentified| unidentified.why)
}

#[tokio::test(start_paused = true)]
async fn a_known_client_is_answered_before_the_scan_for_another_ends() {
    let node = Node::slow();
    let known = pod(1, "a", "app");
    node.run(100, &known, ADDR);
    let visitor = node.connect(ADDR);
    assert_eq!(told(visitor.wait().await), Ok("p1".to_owned()));

    let before = node.identity.scans.last();
    let stranger = node.begin_a_scan().await;
    assert_eq!(visitor.sender().as_ref().map(name), Ok("p1"));
    assert_eq!(node.connect("127.0.0.1").sender(), Ok((Principal::Node, None)));
    assert_eq!(node.identity.scans.last(), before, "the scan still runs");
    // A new connection needs a scan that began after it was accepted, not the running one.
    assert_eq!(node.connect(ADDR).sender(), Ok((Principal::Unknown, None)));
    let began = Instant::now();
    assert_eq!(told(node.wait(ADDR).await.expect("no panic")), Ok("p1".to_owned()));
    assert_eq!(began.elapsed(), SCAN * 2 / 3 + REST + SCAN);
    assert_eq!(told(stranger.await.expect("no panic")), Err(Missing::Claim));
}

#[tokio::test(start_paused = true)]
async fn a_scan_that_began_after_a_connection_counts_however_long_ago_it_ended() {
    let node = Node::slow();
    let known = pod(1, "a", "app");
    node.run(100, &known, ADDR);
    let visitor = node.connect(ADDR);
    node.scan().await;
    // A throttled process may read the result of a scan late.
    sleep(Duration::from_secs(10)).await;
    assert_eq!(visitor.sender().as_ref().map(name), Ok("p1"));
}

#[tokio::test(start_paused = true)]
async fn a_scan_that_ran_when_a_connection_came_does_not_identify_it() {
    let node = Node::slow();
    // It lives on and keeps its address, which another one has as well.
    let (old, new) = (pod(1, "a", "app"), pod(2, "b", "other"));
    node.run(100, &old, ADDR);
    node.identity.pods.apply(new.clone());
    let stranger = node.begin_a_scan().await;
    node.start(101, &new, ADDR);
    let answer = node.wait(ADDR).await.expect("no panic");
    assert_eq!(told(answer), Err(Missing::Decision { claims: 2 }), "the running scan knew the old one only");
    stranger.abort();
}

#[tokio::test(start_paused = true)]
async fn an_address_that_passes_on_during_a_scan_is_not_the_old_pods_any_more() {
    let node = Node::slow();
    let (old, new) = (pod(1, "a", "app"), pod(2, "b", "other"));
    node.run(100, &old, ADDR);
    node.identity.pods.apply(new.clone());
    let before = node.connect(ADDR);
    assert_eq!(told(before.wait().await), Ok("p1".to_owned()));
    let stranger = node.begin_a_scan().await;
    node.proc.end(100);
    node.start(101, &new, ADDR);
    let answer = node.wait(ADDR).await.expect("no panic");
    assert_eq!(told(answer), Ok("p2".to_owned()));
    assert_eq!(before.sender(), Err(Outdated));
    stranger.abort();
}

#[tokio::test(start_paused = true)]
async fn a_scan_that_takes_too_long_is_given_up_and_the_answer_says_so() {
    let node = Node::with(Attest::Prefer, None, |sandboxes| Scans::slow(sandboxes, Duration::from_secs(60)));
    let known = pod(1, "a", "app");
    node.run(100, &known, ADDR);
    let began = Instant::now();
    assert_eq!(told(node.wait(ADDR).await.expect("no panic")), Err(Missing::Scan));
    assert_eq!(began.elapsed(), Duration::from_secs(2));
    assert_eq!(node.identity.degraded(), None);
    let text = node.identity.whois("a", "p1").await.to_string();
    assert!(text.contains("kernel           its processes could not be looked at in time"), "{text}");
    let degraded = node.identity.degraded().expect("degraded");
    assert_eq!(
        degraded,
        "identity: a scan of the node's processes (--host-proc) has taken 4 s so far; new pods get 503"
    );
}
