//! Redacted responses, from an upstream that responds as no metadata server should.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use gce_metadata_proxy::config::Config;
use mock::{DEFAULT_ACCOUNT, Fault, Handle, SECRET_MARKER};
use proxy::memory::MAX_PART_BYTES;
use proxy::policy::{Choice, Source};

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{UNNAMED, built_in};
use crate::support::{
    Answer, Binary, Connection, Proxy, Scratch, config, eventually, get, metric_becomes, raw, request, upstream,
};

/// The largest tree that is redacted, in bytes.
const LARGEST: usize = MAX_PART_BYTES / 2;

/// A tree that is not cached, because of a parameter.
const TREE: &str = "/computeMetadata/v1/instance/?recursive=true&last_etag=x";

const KEPT_TREE: &str = "/computeMetadata/v1/instance/?recursive=true";

/// A proxy that redacts by `compat`, in front of a mock with only the secrets that `compat` names.
async fn redacting() -> (Handle, Proxy) {
    let mock = upstream().await;
    for path in UNNAMED {
        mock.remove(path);
    }
    let proxy = start(&mock, built_in("compat")).await;
    (mock, proxy)
}

async fn start(mock: &Handle, policy: Choice) -> Proxy {
    Proxy::with(Config { policy, ..config(mock.addr()) }).await
}

async fn head(addr: SocketAddr, target: &str) -> (Answer, usize) {
    let request =
        format!("HEAD {target} HTTP/1.1\r\nHost: {addr}\r\nMetadata-Flavor: Google\r\nConnection: close\r\n\r\n");
    let bytes = raw(addr, request).await;
    let (answer, rest) = Answer::parse(&bytes, true).expect("a whole head");
    (answer, rest.len())
}

#[tokio::test]
async fn every_form_keeps_what_is_allowed_and_nothing_else() {
    let (mock, proxy) = redacting().await;
    let tree = get(proxy.addr, TREE).await;
    assert_eq!((tree.status, tree.header("content-type")), (200, Some("application/json")));
    let json: serde_json::Value = serde_json::from_str(&tree.body).expect("JSON");
    assert_eq!(json["attributes"]["cluster-name"], "mock-cluster");
    assert_eq!(json["attributes"].as_object().map(serde_json::Map::len), Some(6));
    assert_eq!(json["disks"][0]["deviceName"], "persistent-disk-0");
    assert_eq!(json["id"], 4_520_031_799_277_581_759_u64);
    assert_eq!(json["serviceAccounts"]["default"], json["serviceAccounts"][DEFAULT_ACCOUNT]);
    assert_eq!(json["credentials"], serde_json::Value::Null);
    assert!(!tree.body.contains(SECRET_MARKER));

    let text = get(proxy.addr, &format!("{TREE}&alt=text")).await;
    assert_eq!((text.status, text.header("content-type")), (200, Some("application/text")));
    for line in [
        "attributes/cluster-name mock-cluster",
        "network-interfaces/0/ip-aliases/0 10.4.1.0/24",
        "tags allow-health-checks",
    ] {
        assert!(text.body.lines().any(|found| found == line), "{line} is missing from {}", text.body);
    }
    assert!(!text.body.contains(SECRET_MARKER));
    assert!(mock.log().iter().all(|seen| !seen.target.contains("alt=text")), "text is made here");
    proxy.stop().await;
}

/// A listing shows a name if and only if the name is readable: agents that see `kube-env` and cannot read it crash.
#[tokio::test]
async fn stricts_listings_show_what_can_be_read() {
    let mock = upstream().await;
    let proxy = start(&mock, built_in("strict")).await;
    for (directory, listing) in [
        ("", "instance/\nproject/\nuniverse/\n"),
        ("instance/", "attributes/\nhostname\nid\nservice-accounts/\nzone\n"),
        ("instance/attributes/", "cluster-location\ncluster-name\ncluster-uid\n"),
        ("instance/service-accounts/default/", "aliases\nemail\nscopes\ntoken\n"),
        ("project/", "numeric-project-id\nproject-id\n"),
    ] {
        let answer = get(proxy.addr, &format!("/computeMetadata/v1/{directory}")).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, listing), "{directory}");
    }
    proxy.stop().await;
}

#[tokio::test]
async fn head_has_the_head_of_what_get_has() {
    let (mock, proxy) = redacting().await;
    for target in [TREE, KEPT_TREE, "/computeMetadata/v1/instance/?recursive=true&alt=text"] {
        let whole = get(proxy.addr, target).await;
        let (head, rest) = head(proxy.addr, target).await;
        assert_eq!((head.status, rest), (200, 0));
        for header in ["content-length", "content-type", "etag"] {
            assert_eq!(head.header(header), whole.header(header), "{header}");
        }
        assert_eq!(head.header("content-length"), Some(whole.body.len().to_string().as_str()));
    }
    assert!(mock.log().iter().all(|seen| seen.method == "GET"));
    proxy.stop().await;
}

async fn etag(addr: SocketAddr, target: &str) -> String {
    get(addr, target).await.header("etag").expect("as the server has").to_owned()
}

/// A client that has read a tree waits for its next change with the `ETag` that it got.
#[tokio::test]
async fn a_tree_can_be_watched_from_the_etag_of_its_last_read() {
    let (mock, proxy) = redacting().await;
    let addr = proxy.addr;
    let text = format!("{KEPT_TREE}&alt=text");
    let before = etag(addr, KEPT_TREE).await;
    assert_eq!([etag(addr, TREE).await, etag(addr, &text).await], [before.clone(), before], "it is the same tree");
    let mut watchers = JoinSet::new();
    for tree in [KEPT_TREE, "/computeMetadata/v1/instance/disks/?recursive=true"] {
        let before = etag(addr, tree).await;
        let watch = format!("{tree}&wait_for_change=true&last_etag={before}");
        watchers.spawn(async move { (tree, before, etag(addr, &watch).await) });
    }
    eventually("both wait", || mock.watchers() == 2).await;
    mock.set("instance/disks/0/type", "PERSISTENT-SSD");
    for (tree, before, now) in watchers.join_all().await {
        assert_ne!(before, now, "{tree}");
    }
    proxy.stop().await;
}

/// Where the policy permits no watch, the server's `ETag` would be all that tells of changes of concealed values.
#[tokio::test]
async fn a_tree_that_cannot_be_watched_has_the_etag_of_what_is_shown() {
    let mock = upstream().await;
    let scratch = Scratch::new("etag");
    let policy = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\nextends: compat\n\
                  listings: redact\nqueryKeys: [alt, last_etag, recursive]\n";
    let source = Source::parse(&scratch.file("policy.yaml", policy));
    let unwatched = start(&mock, Choice { source, recursive: None }).await;
    let strict = start(&mock, built_in("strict")).await;
    let listing = "/computeMetadata/v1/instance/?last_etag=x";
    let cases = [(&unwatched, TREE), (&unwatched, listing), (&strict, listing)];
    let mut before = Vec::new();
    for (proxy, target) in cases {
        before.push([etag(proxy.addr, target).await, etag(mock.addr(), target).await]);
    }
    mock.set("instance/attributes/kube-env", "MOCK-SECRET of tomorrow");
    mock.remove("instance/workload-identities");
    for ((proxy, target), [shown, of_server]) in cases.into_iter().zip(before) {
        assert_ne!(etag(mock.addr(), target).await, of_server, "{target}: the test would show nothing");
        assert_eq!(etag(proxy.addr, target).await, shown, "{target}");
    }
    unwatched.stop().await;
    strict.stop().await;
}

#[tokio::test]
async fn an_answer_of_unknown_length_is_cut_too() {
    let (mock, proxy) = redacting().await;
    let whole = get(proxy.addr, TREE).await;
    mock.fault(Fault::Chunked);
    let chunked = get(proxy.addr, TREE).await;
    assert_eq!((chunked.status, &chunked.body), (200, &whole.body));
    assert_eq!(chunked.header("transfer-encoding"), None);
    proxy.stop().await;
}

/// The body of every success is cut or refused; nothing is passed on because it looks different than expected.
#[tokio::test]
async fn what_is_no_tree_is_refused_and_what_is_one_is_cut() {
    let (mock, proxy) = redacting().await;
    let kube_env = "KUBELET_KEY: MOCK-SECRET\n";
    let deep = format!("{}\"MOCK-SECRET\"{}", "[".repeat(5000), "]".repeat(5000));
    for (body, status) in [
        (kube_env, 403),
        ("\"MOCK-SECRET\"", 403),
        ("<html>MOCK-SECRET</html>", 403),
        ("{\"attributes\":{\"kube-env\":\"MOCK-SECRET\"", 403),
        ("{\"attributes\":{\"kube-env\":\"MOCK-SECRET\"}} MOCK-SECRET", 403),
        ("\u{feff}{\"attributes\":{\"kube-env\":\"MOCK-SECRET\"}}", 403),
        (deep.as_str(), 403),
        ("", 403),
        (
            "{\"attributes\":{\"kube-env\":\"MOCK-SECRET\",\"kube-env\":\"MOCK-SECRET\",\"kube\\u002denv\":\"MOCK-SECRET\"}}",
            200,
        ),
        (" \n{\"attributes\" : {\"kube-env\" : [\"MOCK-SECRET\", {\"a\": \"MOCK-SECRET\"}]}}\n", 200),
        ("{\"attributes/kube-env\":\"MOCK-SECRET\",\"\":{\"attributes\":{\"kube-env\":\"MOCK-SECRET\"}}}", 200),
        (
            "{\"attributes\":{\"kube-env\\u0000\":\"MOCK-SECRET\",\"kube-env\\n\":\"MOCK-SECRET\",\"x/../kube-env\":\"MOCK-SECRET\"}}",
            200,
        ),
        ("{\"Attributes\":{\"KUBE_ENV\":\"x\",\"KubeEnv\":\"MOCK-SECRET\"},\"Credentials\":\"MOCK-SECRET\"}", 200),
    ] {
        for query in ["", "&alt=text", "&alt=json", "&wait_for_change=true"] {
            mock.fault(Fault::Body(body.to_owned()));
            let answer = get(proxy.addr, &format!("{TREE}{query}")).await;
            assert_eq!(answer.status, status, "{body:.100} {query}: {answer:?}");
            assert!(!answer.body.contains(SECRET_MARKER), "{body:.100} {query}: {answer:?}");
        }
    }
    for status in [201, 203, 206, 226] {
        mock.fault(Fault::Status(status, "{\"attributes\":{\"kube-env\":\"MOCK-SECRET\",\"a\":\"b\"}}".to_owned()));
        let answer = get(proxy.addr, TREE).await;
        assert_eq!((answer.status, answer.body.as_str()), (status, "{\"attributes\":{\"a\":\"b\"}}"));
    }
    proxy.stop().await;
}

#[tokio::test]
async fn a_leafs_value_in_place_of_a_listing_is_not_shown() {
    let mock = upstream().await;
    let proxy = start(&mock, built_in("strict")).await;
    for body in [
        "KUBELET_KEY: MOCK-SECRET\n",
        "MOCK-SECRET",
        "MOCK-SECRET/\n",
        "{\"kube-env\":\"MOCK-SECRET\"}",
        "id/MOCK-SECRET\nid\n",
    ] {
        mock.fault(Fault::Body(body.to_owned()));
        for directory in ["", "instance/", "instance/attributes/", "instance/attributes/cluster-name/"] {
            let answer = get(proxy.addr, &format!("/computeMetadata/v1/{directory}")).await;
            assert!(!answer.body.contains(SECRET_MARKER), "{directory}: {answer:?}");
        }
    }
    proxy.stop().await;
}

#[tokio::test]
async fn a_tree_beyond_the_bound_is_refused_however_its_length_is_told() {
    let (mock, proxy) = redacting().await;
    mock.fault(Fault::HugeBody { bytes: LARGEST + 1 });
    let announced = get(proxy.addr, TREE).await;
    assert_eq!(announced.status, 403);
    assert!(announced.body.contains(&LARGEST.to_string()), "{}", announced.body);
    assert!(announced.body.ends_with("request its directories or values one by one.\n"), "{}", announced.body);
    let watched = get(proxy.addr, &format!("{TREE}&wait_for_change=true")).await;
    assert_eq!((watched.status, watched.body), (403, announced.body));
    mock.heal();
    // The remaining part of it would be small.
    mock.set("instance/attributes/kube-env", &"x".repeat(LARGEST));
    mock.fault(Fault::Chunked);
    assert_eq!(get(proxy.addr, TREE).await.status, 403);
    proxy.stop().await;
}

/// Many small values are the worst case for code that makes a list of them.
#[tokio::test]
async fn a_tree_at_the_bound_fits_in_memory() {
    let mock = upstream().await;
    let (binary, addr, _) = Binary::ready(None, mock.addr(), &["--recursive", "redact"]).await;
    let entry = "\"a\":1";
    let entries = vec![entry; (LARGEST - 100) / (entry.len() + 1)].join(",");
    let tree = format!("{{\"attributes\":{{{entries}}}}}");
    mock.fault(Fault::Body(tree.clone()));
    let before = binary.peak_memory().expect("running");
    for query in ["", "&wait_for_change=true"] {
        let answer = get(addr, &format!("{TREE}{query}")).await;
        assert!(answer.status == 200 && answer.body == tree, "{query} {}: {:.100}", answer.status, answer.body);
    }
    let peak = binary.peak_memory().expect("still running");
    assert!(peak - before < 3 * 1024 * 1024, "{before} bytes before, {peak} bytes at most");
}

/// Sets as much custom metadata as a machine may have.
fn fill(mock: &Handle) {
    for part in ["a", "b", "c", "d"] {
        mock.set(&format!("instance/attributes/{part}"), &"0123456789abcdef".repeat(8 * 1024));
    }
}

#[tokio::test]
async fn a_large_tree_can_be_watched_and_several_watchers_get_it() {
    let (mock, proxy) = redacting().await;
    fill(&mock);
    let addr = proxy.addr;
    for query in ["", "&alt=text"] {
        let target = format!("{KEPT_TREE}&wait_for_change=true&timeout_sec=60{query}");
        let watchers: JoinSet<_> = (0..5)
            .map(|_| {
                let target = target.clone();
                async move { get(addr, &target).await }
            })
            .collect();
        metric_becomes(proxy.metrics_addr, "metadata_proxy_connections", 5).await;
        eventually("the watch is upstream", || mock.watchers() == 1).await;
        // A watcher whose request arrives after a change waits for the next one.
        let changes = async {
            for number in 0.. {
                mock.set("instance/attributes/kube-env", &format!("MOCK-SECRET of tomorrow {query} {number}"));
                sleep(Duration::from_millis(500)).await;
            }
        };
        let answers = tokio::select! {
            answers = watchers.join_all() => answers,
            () = changes => unreachable!("they do not end"),
        };
        for answer in answers {
            assert_eq!(answer.status, 200, "{:.200}", answer.body);
            assert!(answer.body.len() > 512 * 1024 && !answer.body.contains(SECRET_MARKER));
        }
    }
    proxy.stop().await;
}

#[tokio::test]
async fn a_pod_that_does_not_read_its_trees_does_not_keep_others_from_theirs() {
    let (mock, proxy) = redacting().await;
    fill(&mock);
    let mut unread = Vec::new();
    for _ in 0..10 {
        let mut slow = Connection::open_narrow(proxy.addr).await;
        slow.send(request(TREE)).await;
        unread.push(slow);
    }
    unread[0].head().await;
    for _ in 0..3 {
        let mut other = Connection::open_from(Ipv4Addr::new(127, 0, 0, 2), proxy.addr).await;
        let answer = other.ask(TREE).await.answer();
        assert_eq!(answer.status, 200, "{:.200}", answer.body);
    }
    proxy.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_no_success_carries_no_value() {
    let (mock, proxy) = redacting().await;
    for status in [300, 301, 400, 403, 404, 429, 500, 503] {
        for target in [TREE, "/computeMetadata/v1/instance/?recursive=true&wait_for_change=true"] {
            mock.fault(Fault::Status(status, "{\"attributes\":{\"kube-env\":\"MOCK-SECRET\"}}".to_owned()));
            let answer = get(proxy.addr, target).await;
            assert_eq!((answer.status, answer.header("metadata-flavor")), (status, Some("Google")), "{target}");
            assert!(!answer.body.contains(SECRET_MARKER), "{status} {target}: {}", answer.body);
            assert!(answer.body.contains(&status.to_string()), "{status} {target}: {}", answer.body);
        }
    }
    proxy.stop().await;
}

/// A dropped parameter must not affect how the answer is read.
#[tokio::test]
async fn a_dropped_flag_leaves_a_listing() {
    let mock = upstream().await;
    let text = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\nextends: strict\nqueryKeys: [alt]\n";
    let scratch = Scratch::new("dropped");
    let file = scratch.file("policy.yaml", text).into();
    let proxy = start(&mock, Choice { source: Source::File(file), recursive: None }).await;
    let answer = get(proxy.addr, "/computeMetadata/v1/project/?recursive=true").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "numeric-project-id\nproject-id\n"));
    assert_eq!(get(proxy.addr, "/computeMetadata/v1/instance/id?wait_for_change=true").await.status, 200);
    let asked_about = ["/computeMetadata/v1/project/", "/computeMetadata/v1/instance/id"];
    let asked =
        mock.log().into_iter().filter(|seen| asked_about.contains(&seen.target.split('?').next().unwrap_or("")));
    assert!(asked.map(|seen| seen.target).all(|target| !target.contains('?')));
    proxy.stop().await;
}

#[tokio::test]
async fn who_waits_for_a_tree_is_woken_and_still_sees_no_secret() {
    let (mock, proxy) = redacting().await;
    for (path, value, query) in [
        ("instance/attributes/cluster-name", "renamed", ""),
        ("instance/attributes/kube-env", "MOCK-SECRET of tomorrow", ""),
        ("instance/attributes/added", "one\nattributes/kube-env two", "&alt=text"),
    ] {
        let addr = proxy.addr;
        let target = format!("{KEPT_TREE}&wait_for_change=true&timeout_sec=60{query}");
        let watcher = tokio::spawn(async move { get(addr, &target).await });
        eventually("the watch is upstream", || mock.watchers() == 1).await;
        mock.set(path, value);
        let answer = watcher.await.expect("no panic");
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.body.contains(value),
            path != "instance/attributes/kube-env" && query.is_empty() || query == "&alt=text"
        );
        assert!(!answer.body.contains(SECRET_MARKER), "{path}");
        eventually("the watch is over", || mock.in_flight() == 0).await;
    }
    proxy.stop().await;
}

/// An answer that takes too long is a failure of the upstream, not an answer cut short.
#[tokio::test]
async fn half_a_tree_is_no_tree() {
    let (mock, proxy) = redacting().await;
    for fault in [Fault::CutBody { after: 700 }, Fault::CutBodyFin { after: 700 }] {
        mock.fault(fault);
        let answer = tokio::time::timeout(Duration::from_secs(20), get(proxy.addr, TREE)).await.expect("an answer");
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(!answer.body.contains(SECRET_MARKER));
    }
    proxy.stop().await;
}
