//! Pods that end, and addresses that pass on: whose connections are cut.

use super::*;
use crate::certificates::MAX_CERTIFICATES;
use protocol::metadata::Fingerprint;

#[tokio::test(start_paused = true)]
async fn when_an_address_changes_hands_older_connections_are_cut_and_outdated() {
    let node = Node::new(Attest::Prefer);
    let (old, new) = (pod(1, "a", "app"), pod(2, "b", "other"));
    node.run(100, &old, ADDR);
    let before = node.connect(ADDR);
    assert_eq!(node.sender(&before).await.as_ref().map(name), Ok("p1"));
    let cuts = node.cuts();

    // The API server has not reported yet that the old pod is gone.
    node.proc.end(100);
    node.run(101, &new, ADDR);
    sleep(Duration::from_millis(1)).await;
    let after = node.connect(ADDR);
    assert_eq!(node.sender(&after).await.as_ref().map(name), Ok("p2"));
    assert_eq!(before.sender(), Err(Outdated));
    assert_eq!(node.cuts(), cuts + 1);
    let began = node.cuts.lock().last().expect("a cut").1;
    assert!(began < after.arrival.accepted, "the new pod's own connections are not cut");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ends_is_noticed_without_requests_and_its_account_is_forgotten_with_the_last_one() {
    for is_reported in [false, true] {
        let node = Node::new(Attest::Prefer);
        let ended = pod(1, "a", "app");
        node.run(100, &ended, ADDR);
        let visitor = node.connect(ADDR);
        assert_eq!(node.sender(&visitor).await.as_ref().map(name), Ok("p1"));
        let tending = tokio::spawn(Arc::clone(&node.identity).tend());
        sleep(Duration::from_secs(1)).await;
        assert!(visitor.sender().is_ok());

        let cuts = node.cuts();
        if is_reported {
            node.identity.pods.remove(ended.uid);
        } else {
            node.proc.end(100);
        }
        sleep(VERIFY_INTERVAL).await;
        // The next pod's connections are not cut.
        let next = node.connect(ADDR).arrival.accepted;
        sleep(Duration::from_millis(1)).await;
        assert_eq!(visitor.sender(), Err(Outdated));
        assert!(node.cuts.lock().last().is_some_and(|(_, before)| *before <= next));
        assert!(node.cuts() > cuts);
        assert_eq!(node.identity.rows().len(), 0);
        assert_eq!(node.forgotten.load(Relaxed), usize::from(is_reported), "the API server still reports a pod");
        tending.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_drops_its_address_for_a_moment_may_use_no_more_certificates() {
    let node = Node::new(Attest::Prefer);
    let app = pod(1, "a", "app");
    node.run(100, &app, ADDR);
    let tending = tokio::spawn(Arc::clone(&node.identity).tend());
    let mut admitted = 0;
    for number in 0..20 {
        node.proc.network("of-100", &[ADDR]);
        let visitor = node.connect(ADDR);
        assert_eq!(node.sender(&visitor).await.as_ref().map(name), Ok("p1"));
        admitted += usize::from(node.identity.admits(app.uid, &Fingerprint::from([number; 32])));
        drop(visitor);
        node.proc.network("of-100", &[]);
        node.scan().await;
        sleep(VERIFY_INTERVAL * 2).await;
        assert_eq!(node.identity.rows().len(), 0);
    }
    assert_eq!(admitted, MAX_CERTIFICATES);
    node.identity.pods.remove(app.uid);
    sleep(VERIFY_INTERVAL).await;
    assert!(node.identity.certificates.lock().is_empty());
    tending.abort();
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_pod_without_a_connection_is_noticed_after_a_scan() {
    let node = Node::new(Attest::Prefer);
    node.run(100, &pod(1, "a", "app"), ADDR);
    assert_eq!(node.sender(&node.connect(ADDR)).await.as_ref().map(name), Ok("p1"));
    let tending = tokio::spawn(Arc::clone(&node.identity).tend());
    sleep(VERIFY_INTERVAL * 2).await;
    let cuts = node.cuts();
    node.proc.end(100);
    sleep(VERIFY_INTERVAL * 2).await;
    assert_eq!((node.identity.rows().len(), node.cuts()), (1, cuts), "nobody waits for it");
    node.scan().await;
    sleep(VERIFY_INTERVAL).await;
    assert_eq!(node.identity.rows().len(), 0);
    // Nothing was asked on a connection that is still open, perhaps.
    assert!(node.cuts() > cuts);
    tending.abort();
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_address_another_one_still_has_is_not_taken_for_it() {
    for terminating in [false, true] {
        let node = Node::new(Attest::Prefer);
        let (old, new) = (Pod { terminating, ..pod(1, "a", "app") }, pod(2, "b", "other"));
        node.run(100, &old, ADDR);
        node.identity.pods.apply(new.clone());
        assert_eq!(node.sender(&node.connect(ADDR)).await.as_ref().map(name), Ok("p1"));

        // The scan has just ended, and the old pod lives and has the address.
        node.start(101, &new, ADDR);
        sleep(Duration::from_millis(1)).await;
        let heir = node.connect(ADDR);
        assert_eq!(heir.sender(), Ok((Principal::Unknown, None)));
        let addr = ADDR.parse().expect("an address");
        let why = Missing::Decision { claims: 2 };
        assert_eq!(heir.wait().await, Ok(Err(Unidentified { addr, why })));
    }
}

#[tokio::test(start_paused = true)]
async fn connections_end_when_another_pod_has_their_address_as_well() {
    let node = Node::new(Attest::Prefer);
    let (old, new) = (pod(1, "a", "app"), pod(2, "b", "other"));
    node.run(100, &old, ADDR);
    node.identity.pods.apply(new.clone());
    let kept = node.connect(ADDR);
    assert_eq!(node.sender(&kept).await.as_ref().map(name), Ok("p1"));
    let tending = tokio::spawn(Arc::clone(&node.identity).tend());
    sleep(VERIFY_INTERVAL * 2).await;
    let cuts = node.cuts();
    node.start_at(60, 101, &new, ADDR);
    // Any later scan shows it.
    node.scan().await;
    let scanned = node.identity.scans.last().began;
    sleep(VERIFY_INTERVAL).await;
    assert_eq!(kept.sender(), Err(Outdated));
    assert_eq!(node.cuts.lock()[cuts..], [(ADDR.parse().expect("an address"), scanned)]);
    assert_eq!(node.identity.rows().len(), 0);
    // The kernel's evidence is not enough, the API server's is.
    assert_eq!(node.sender(&node.connect(ADDR)).await, Ok((Principal::Unknown, None)));
    node.identity.pods.apply(reported(new, ADDR));
    assert_eq!(node.sender(&node.connect(ADDR)).await.as_ref().map(name), Ok("p2"));
    tending.abort();
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_gives_itself_a_reported_address_cuts_nothing() {
    let node = Node::new(Attest::Prefer);
    let victim = reported(pod(1, "a", "app"), ADDR);
    let squatter = reported(pod(2, "b", "other"), "10.8.0.6");
    node.run(100, &victim, ADDR);
    node.identity.pods.apply(squatter.clone());
    let kept = node.connect(ADDR);
    assert_eq!(node.sender(&kept).await.as_ref().map(name), Ok("p1"));
    let cuts = node.cuts();
    let tending = tokio::spawn(Arc::clone(&node.identity).tend());
    node.start(101, &squatter, ADDR);
    node.scan().await;
    sleep(VERIFY_INTERVAL * 2).await;
    assert_eq!((kept.sender().as_ref().map(name), node.cuts()), (Ok("p1"), cuts));
    assert_eq!(node.sender(&node.connect(ADDR)).await.as_ref().map(name), Ok("p1"));
    tending.abort();
}
