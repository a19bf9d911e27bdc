//! Interfaces that lead to one pod: a known pod's new connection needs no scan.

use super::*;

const UNKNOWN: Result<Sender, Outdated> = Ok((Principal::Unknown, None));

/// A node with a pod, whose interface 7 is known from its first connection.
async fn node_with_pod() -> (Node, Pod) {
    let (node, one) = (Node::new(Attest::Prefer), pod(1, "a", "app"));
    node.run(100, &one, ADDR);
    let first = node.connect_by(7, ADDR).await;
    assert_eq!(first.sender(), UNKNOWN);
    assert_eq!(node.sender(&first).await.as_ref().map(name), Ok("p1"));
    node.identity.sandboxes().leads().check();
    (node, one)
}

#[tokio::test(start_paused = true)]
async fn a_connection_by_a_known_pods_interface_needs_no_scan() {
    const OTHER: &str = "10.8.0.6";
    let (node, _) = node_with_pod().await;
    node.run(101, &pod(2, "b", "other"), OTHER);
    assert_eq!(node.sender(&*node.connect_by(8, OTHER).await).await.as_ref().map(name), Ok("p2"));
    node.identity.sandboxes().leads().check();
    assert_eq!(node.connect_by(7, ADDR).await.sender().as_ref().map(name), Ok("p1"));
    assert_eq!(node.connect_by(8, OTHER).await.sender().as_ref().map(name), Ok("p2"));
    // By the other's interface, by none that is known, and by none.
    for other in [(8, ADDR), (7, OTHER), (9, ADDR), (0, ADDR)] {
        assert_eq!(node.connect_by(other.0, other.1).await.sender(), UNKNOWN, "{other:?}");
    }
    node.proc.end(100);
    assert_eq!(node.connect_by(7, ADDR).await.sender(), UNKNOWN);
}

#[tokio::test(start_paused = true)]
async fn an_heir_that_no_scan_has_shown_is_not_taken_for_the_pod_that_keeps_the_address() {
    let (node, _) = node_with_pod().await;
    let heir = pod(2, "b", "other");
    node.run(101, &heir, ADDR);
    let connection = node.connect_by(8, ADDR).await;
    assert_eq!(connection.sender(), UNKNOWN);
    let answer = connection.wait().await.expect("not outdated");
    assert_eq!(answer.map_err(|refused| refused.why), Err(Missing::Decision { claims: 2 }));
    // Connections by the first pod's interface are still attributed to it.
    let first = node.connect_by(7, ADDR).await;
    assert_eq!(first.sender().as_ref().map(name), Ok("p1"));
    let tending = tokio::spawn(Arc::clone(&node.identity).tend());
    node.scan().await;
    sleep(4 * VERIFY_INTERVAL).await;
    let claim = node.connect_by(8, ADDR).await.wait().await.expect("not outdated");
    assert!(claim.is_err());
    assert_eq!(first.sender().as_ref().map(name), Ok("p1"), "the other claim does not end it");
    tending.abort();
}

#[tokio::test(start_paused = true)]
async fn an_interface_that_two_pods_come_by_is_none_of_theirs() {
    let (node, _) = node_with_pod().await;
    node.run(101, &pod(2, "b", "other"), "10.8.0.6");
    assert_eq!(node.sender(&*node.connect_by(7, "10.8.0.6").await).await.as_ref().map(name), Ok("p2"));
    for addr in [ADDR, "10.8.0.6"] {
        assert_eq!(node.connect_by(7, addr).await.sender(), UNKNOWN);
    }
}

#[tokio::test(start_paused = true)]
async fn an_interface_is_learned_once_its_pod_has_run_for_some_seconds() {
    let (node, young) = (Node::new(Attest::Prefer), pod(1, "a", "app"));
    // 10 ms each.
    let ticks = BootTime::now().as_nanos() / 10_000_000;
    node.start_at(ticks - 100, 100, &young, ADDR);
    node.identity.pods.apply(young);
    let learns = async || {
        assert_eq!(node.sender(&*node.connect_by(7, ADDR).await).await.as_ref().map(name), Ok("p1"));
        node.identity.sandboxes().leads().check();
        node.connect_by(7, ADDR).await.sender() != UNKNOWN
    };
    assert!(!learns().await, "its first connection may be older than it");
    sleep(Duration::from_secs(10)).await;
    assert!(learns().await);
}
