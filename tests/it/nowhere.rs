//! A machine without a metadata server (`--upstream none`).

use std::net::SocketAddr;

use crate::support::{Binary, get};

/// A proxy with these flags.
async fn proxy(flags: &[&str]) -> (Binary, SocketAddr) {
    let own = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--upstream=none", "--log=info"];
    let mut binary = Binary::start(&[&own, flags].concat());
    let addr = Binary::addr_in(&binary.stderr_line("serving pods").await);
    (binary, addr)
}

#[tokio::test]
async fn detectors_find_the_instance_that_is_named() {
    let flags = ["--project-id=shop", "--numeric-project-id=12", "--zone=eu-a", "--instance-name=node-1"];
    let (_binary, addr) = proxy(&flags).await;
    for (path, expected) in [
        ("zone", "projects/12/zones/eu-a"),
        ("name", "node-1"),
        ("hostname", "node-1"),
        ("", "hostname\nid\nname\nzone\n"),
    ] {
        let answer = get(addr, &format!("/computeMetadata/v1/instance/{path}")).await;
        assert_eq!((answer.status, answer.body.replace("service-accounts/\n", "").as_str()), (200, expected), "{path}");
    }
    let id = get(addr, "/computeMetadata/v1/instance/id").await.body;
    assert!(id.parse::<i64>().is_ok_and(|id| id > 0), "{id}");
    let tree = get(addr, "/computeMetadata/v1/?recursive=true").await;
    assert!(
        tree.body.contains(&format!(r#""id":{id}"#)) && tree.body.contains(r#""projectId":"shop""#),
        "{}",
        tree.body
    );
}

/// Clients that watch a value ask again at once after an answer. After an error they wait.
#[tokio::test]
async fn nothing_can_be_waited_for() {
    let (_binary, addr) = proxy(&["--project-id=shop"]).await;
    for path in ["project/project-id?wait_for_change=true", "?recursive=true&wait_for_change=true&last_etag=0"] {
        let answer = get(addr, &format!("/computeMetadata/v1/{path}")).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
    }
}

/// google-auth first requests a tree. The text of errors is otherwise left out of responses for trees.
#[tokio::test]
async fn no_answer_is_called_the_metadata_servers() {
    let (_binary, addr) = proxy(&[]).await;
    for path in [
        "instance/service-accounts/default/?recursive=true",
        "instance/service-accounts/default/token",
        "instance/service-accounts/default/email",
        "instance/?recursive=true",
        "project/?recursive=true&alt=text",
        "project/project-id",
        "universe/universe-domain",
    ] {
        let answer = get(addr, &format!("/computeMetadata/v1/{path}")).await;
        assert_eq!(answer.status, 404, "{path}");
        assert!(!answer.body.contains("metadata server answered"), "{path}: {}", answer.body);
    }
    let path = "/computeMetadata/v1/instance/service-accounts/default/?recursive=true";
    let answer = get(addr, path).await.body;
    assert!(answer.contains("this node has no metadata server (--upstream none)"), "{answer}");
}
