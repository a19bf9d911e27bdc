//! Clients of which it is not known which pod they are.

use super::*;

#[tokio::test(start_paused = true)]
async fn the_first_request_after_a_pod_has_ended_is_refused_without_a_scan() {
    let node = Node::new(Attest::Prefer);
    let ended = pod(1, "a", "app");
    node.run(100, &ended, ADDR);
    let kept = node.connect(ADDR);
    assert_eq!(node.sender(&kept).await.as_ref().map(name), Ok("p1"));
    let scan = node.identity.scans.last();
    node.proc.end(100);
    assert_eq!(kept.sender(), Err(Outdated));
    assert_eq!(node.identity.scans.last(), scan);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_pod_waits_until_the_api_server_reports_it() {
    let node = Node::new(Attest::Prefer);
    let late = pod(1, "a", "app");
    node.start(100, &late, ADDR);
    let visitor = node.connect(ADDR);
    assert_eq!(visitor.sender(), Ok((Principal::Unknown, None)));
    let waiting = tokio::spawn({
        let visitor = Arc::clone(&visitor);
        async move { visitor.wait().await }
    });
    sleep(Duration::from_millis(500)).await;
    let reported = Instant::now();
    node.identity.pods.apply(late);
    let sender = waiting.await.expect("no panic").expect("not outdated").expect("known");
    assert_eq!((name(&sender), reported.elapsed()), ("p1", Duration::ZERO), "woken by the change");
    assert_eq!(visitor.sender().as_ref().map(name), Ok("p1"));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_pod_waits_until_its_processes_are_found() {
    let node = Node::new(Attest::Prefer);
    let late = pod(1, "a", "app");
    node.identity.pods.apply(late.clone());
    let visitor = node.connect(ADDR);
    assert_eq!(node.sender(&visitor).await, Ok((Principal::Unknown, None)));
    node.start(100, &late, ADDR);
    let began = Instant::now();
    let sender = visitor.wait().await.expect("not outdated").expect("known");
    assert_eq!(name(&sender), "p1");
    assert!(began.elapsed() <= FIRST_LOOKS, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn after_two_seconds_the_answer_says_what_is_missing() {
    let node = Node::new(Attest::Prefer);
    let missing = |why| Ok(Err(Unidentified { addr: ADDR.parse().expect("an address"), why }));
    let began = Instant::now();
    assert_eq!(node.connect(ADDR).wait().await, missing(Missing::Claim));
    assert_eq!(began.elapsed(), Duration::from_secs(2));

    let unreported = pod(1, "a", "app");
    node.start(100, &unreported, ADDR);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(node.connect(ADDR).wait().await, missing(Missing::Pod { uid: unreported.uid.to_string() }));
    node.start(101, &pod(2, "a", "app"), ADDR);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(node.connect(ADDR).wait().await, missing(Missing::Decision { claims: 2 }));
    for (result, count) in [(Identified::Unknown, 2), (Identified::Ambiguous, 1)] {
        assert_eq!(node.identity.metrics.results.of(result).get(), count, "{}", result.label());
    }
}

#[tokio::test(start_paused = true)]
async fn the_api_server_alone_is_not_believed_before_processes_were_scanned() {
    let node = Node::new(Attest::Prefer);
    // Sandboxed: it has processes in a network without addresses.
    let bare = reported(pod(1, "a", "app"), ADDR);
    node.proc.network("bare", &[]);
    node.proc.of_pod(100, 50, &bare.uid.to_string(), "bare");
    node.identity.pods.apply(bare.clone());
    let (_, found) = node.sender(&node.connect(ADDR)).await.expect("not outdated");
    assert_eq!(found.map(|pod| (pod.name.to_string(), pod.evidence)), Some(("p1".to_owned(), "api")));

    // Its address has passed to a pod whose processes are newer than the last scan.
    let new = pod(2, "b", "other");
    node.run(101, &new, ADDR);
    sleep(Duration::from_millis(1)).await;
    let ambiguous = node.connect(ADDR);
    assert_eq!(ambiguous.sender(), Ok((Principal::Unknown, None)), "it is known of the other, and the scan is older");
    assert_eq!(node.sender(&ambiguous).await, Ok((Principal::Unknown, None)), "either may have it");
    node.proc.end(100);
    assert_eq!(node.sender(&node.connect(ADDR)).await.as_ref().map(name), Ok("p2"));
}

/// The runtime has taken the older pod's addresses away, or not, and its teardown hangs.
#[tokio::test(start_paused = true)]
async fn containers_whose_sandbox_has_died_are_not_taken_for_the_pod_before_them() {
    for kept in [&[][..], &[ADDR]] {
        let node = Node::new(Attest::Prefer);
        let old = reported(pod(1, "a", "app"), ADDR);
        node.proc.network("old", kept);
        node.proc.of_pod(100, 50, &old.uid.to_string(), "old");
        let new = pod(2, "b", "other");
        node.start_at(60, 101, &new, ADDR);
        for pod in [&old, &new] {
            node.identity.pods.apply(pod.clone());
        }
        let visitor = node.connect(ADDR);
        assert_eq!(node.sender(&visitor).await, Ok((Principal::Unknown, None)), "either may have it");
        node.proc.end(101);
        assert_eq!(visitor.sender(), Ok((Principal::Unknown, None)), "before the next scan");
        assert_eq!(node.sender(&node.connect(ADDR)).await, Ok((Principal::Unknown, None)), "and after it");
        node.identity.pods.remove(new.uid);
        assert_eq!(node.sender(&node.connect(ADDR)).await, Ok((Principal::Unknown, None)), "deleted by force");
    }
}

#[tokio::test(start_paused = true)]
async fn the_api_server_alone_is_not_believed_while_a_sandbox_that_has_the_address_cannot_be_read() {
    let node = Node::new(Attest::Prefer);
    let bare = reported(pod(1, "a", "app"), ADDR);
    node.proc.network("bare", &[]);
    node.proc.of_pod(100, 50, &bare.uid.to_string(), "bare");
    node.identity.pods.apply(bare);
    let older = pod(2, "b", "other");
    node.start_at(40, 101, &older, ADDR);
    let visitor = node.connect(ADDR);
    node.scan().await;
    node.proc.hide("101/net/fib_trie");
    assert_eq!(visitor.sender(), Ok((Principal::Unknown, None)));
}

/// A pod that gives itself a known pod's address, and ends, keeps that pod from nothing.
#[tokio::test(start_paused = true)]
async fn who_gave_itself_an_address_leaves_no_doubt_behind() {
    let node = Node::new(Attest::Prefer);
    let victim = reported(pod(1, "a", "app"), ADDR);
    node.start(100, &victim, ADDR);
    let thief = reported(pod(2, "b", "other"), "10.8.0.9");
    node.start_at(60, 101, &thief, ADDR);
    for pod in [&victim, &thief] {
        node.identity.pods.apply(pod.clone());
    }
    assert_eq!(node.sender(&node.connect(ADDR)).await.as_ref().map(name), Ok("p1"));
    node.proc.end(101);
    assert_eq!(node.sender(&node.connect(ADDR)).await.as_ref().map(name), Ok("p1"));
    node.identity.pods.remove(thief.uid);
    assert_eq!(node.sender(&node.connect(ADDR)).await.as_ref().map(name), Ok("p1"));
}

#[tokio::test(start_paused = true)]
async fn one_address_and_all_together_hold_few_seats_while_they_are_unknown() {
    let node = Node::new(Attest::Prefer);
    let wait = |addr: String| {
        let visitor = node.connect(&addr);
        tokio::spawn(async move {
            let began = Instant::now();
            visitor.wait().await.expect("not outdated").expect_err("unknown");
            began.elapsed()
        })
    };
    let of_each = |addresses: usize, requests: usize, net: u8| -> Vec<_> {
        let each = |request: usize| wait(format!("10.9.{net}.{}", request / requests));
        (0..addresses * requests).map(each).collect()
    };
    let few = MAX_WAITING / 2 / MAX_WAITING_OF_ONE;
    // Lets them wait.
    let settle = || sleep(Duration::from_millis(5));
    let of_one = of_each(1, MAX_WAITING_OF_ONE + 2, 1);
    settle().await;
    // They fill the half, all but two places.
    let of_few = of_each(few - 1, MAX_WAITING_OF_ONE, 2);
    settle().await;
    // The first of them gets these two.
    let of_many = of_each(MAX_WAITING, 2, 3);
    let left = MAX_WAITING - few * MAX_WAITING_OF_ONE;
    for (waits, most) in [(of_one, MAX_WAITING_OF_ONE), (of_few, (few - 1) * MAX_WAITING_OF_ONE), (of_many, left)] {
        let mut waited = 0;
        for wait in waits {
            waited += usize::from(wait.await.expect("no panic") > Duration::ZERO);
        }
        assert_eq!(waited, most);
    }
    assert!(node.identity.waiting.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_reported_for_a_pod_without_processes_is_nobodys() {
    for attest in [Attest::Prefer, Attest::Kernel] {
        let node = Node::new(attest);
        let gone = reported(pod(1, "a", "app"), ADDR);
        node.identity.pods.apply(gone);
        let because = if attest == Attest::Kernel { Doubt::Required } else { Doubt::Contradicted };
        let why = Missing::Confirmation { pod: "a/p1".to_owned(), because };
        let addr = ADDR.parse().expect("an address");
        assert_eq!(node.connect(ADDR).wait().await, Ok(Err(Unidentified { addr, why })));
    }
}
