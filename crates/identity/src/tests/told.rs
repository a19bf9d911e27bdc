//! What operators are told about pods and the API server.

use super::*;
use crate::status::MAX_WATCH_ERROR;

#[tokio::test(start_paused = true)]
async fn pods_that_act_as_the_node_are_named() {
    let node = Node::new(Attest::Prefer);
    let agent = |number| pod(number, "kube-system", "agent");
    let on_host = Pod { host_network: true, ..agent(4) };
    let ended = Pod { ended: true, ..agent(5) };
    for pod in [agent(3), agent(1), on_host, ended, pod(6, "shop", "agent"), pod(7, "kube-system", "cart")] {
        node.identity.pods.apply(pod);
    }
    assert_eq!(node.identity.acting_as_node(), ["kube-system/p1", "kube-system/p3"]);
}

#[tokio::test(start_paused = true)]
async fn readiness_follows_the_api_server() {
    let node = Node::new(Attest::Prefer);
    assert_eq!(node.identity.degraded(), None);
    sleep(STALE + Duration::from_secs(1)).await;
    let why = node.identity.degraded().expect("degraded");
    assert!(why.contains("has reported nothing about pods for 151 s"), "{why}");
    node.identity.pods.heard();
    assert_eq!(node.identity.degraded(), None);
}

#[tokio::test(start_paused = true)]
async fn the_last_error_of_the_watch_is_told_while_the_api_server_is_silent() {
    let node = Node::new(Attest::Prefer);
    let refused = crate::cluster::RequestError::Unreachable("é".repeat(9999));
    node.identity.watched(Some(&refused));
    assert_eq!(node.identity.watch_error(), None, "a single attempt that fails is nothing");
    sleep(STALE + Duration::from_secs(1)).await;
    let told = node.identity.watch_error().expect("it is silent");
    assert!(
        told.starts_with("the API server cannot be reached: é") && told.chars().count() == MAX_WATCH_ERROR,
        "{told}"
    );
    node.identity.watched(None);
    assert_eq!(node.identity.watch_error(), None);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_explained() {
    let node = Node::new(Attest::Prefer);
    let known = reported(pod(1, "a", "app"), ADDR);
    node.run(100, &known, ADDR);
    let text = node.identity.whois("a", "p1").await.to_string();
    for line in [
        "pod              a/p1\n",
        "API server       reports it as running or starting, UID 00000000-0000-0000-0000-000000000001, service account app, \
         addresses: 10.8.0.5\n",
        "kernel           shows live processes, addresses of their own: 10.8.0.5\n",
        "10.8.0.5         a/p1 by kernel, account app\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let text = node.identity.whois("a", "p2").await.to_string();
    assert!(text.contains("API server       reports no such pod on this node; last heard from 0 s ago\n"), "{text}");
    node.proc.end(100);
    let text = node.identity.whois("a", "p1").await.to_string();
    assert!(text.contains("kernel           shows no live process of it"), "{text}");
    assert!(text.contains("10.8.0.5         not known: "), "{text}");
}
