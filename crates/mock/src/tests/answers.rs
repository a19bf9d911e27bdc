//! Responses without faults.

use super::*;
use crate::{SECRET_MARKER, secret_paths};

#[tokio::test]
async fn a_path_is_taken_literally() {
    let (_mock, mut client) = started().await;
    for path in [
        "/computeMetadata/v1/instance/attributes/../attributes/kube-env",
        "/computeMetadata/v1/instance/service-accounts/a@b.c/token",
        "/computeMetadata/v2/",
        "//evil/computeMetadata/v1/",
        "/0.1/meta-data/attributes/kube-env",
    ] {
        let reply = client.get(path).await;
        assert_eq!((reply.status, reply.content_type()), (404, "text/html; charset=UTF-8"), "{path}");
        assert!(!reply.body.contains(SECRET_MARKER));
    }
}

#[tokio::test]
async fn all_headers_of_a_name_count() {
    let (_mock, mut client) = started().await;
    for (headers, status) in [
        ("metadata-flavor:   Google  \r\n", 200),
        ("Metadata-Flavor: Google\r\nMetadata-Flavor: evil\r\n", 403),
        ("X-Google-Metadata-Request: True\r\nMetadata-Flavor: evil\r\n", 403),
        ("Metadata-Flavor: Google\r\nx-forwarded-for:\r\n", 403),
    ] {
        client.send(&format!("GET {V1}project/project-id HTTP/1.1\r\nHost: h\r\n{headers}\r\n")).await;
        assert_eq!(client.reply(true).await.status, status, "{headers}");
    }
}

#[tokio::test]
async fn queries_that_make_no_sense_are_400() {
    let (_mock, mut client) = started().await;
    for query in ["project/?alt=json", "project/?alt=text", "instance/id?wait_for_change=true&timeout_sec=soon"] {
        let reply = client.get(&format!("{V1}{query}")).await;
        assert_eq!((reply.status, reply.content_type()), (400, "text/html; charset=UTF-8"), "{query}");
    }
}

#[tokio::test]
async fn methods_that_a_path_does_not_have_are_405() {
    let (_mock, mut client) = started().await;
    for (method, path) in [
        ("POST", "/"),
        ("PUT", "/computeMetadata/v1/instance/attributes/foo"),
        ("DELETE", "/computeMetadata/v1/instance/guest-attributes/hostkeys/ssh-rsa"),
        ("OPTIONS", "/computeMetadata/v1/instance/id"),
        ("TRACE", "/"),
    ] {
        let reply = client.ask(method, path).await;
        assert_eq!((reply.status, reply.header("Metadata-Flavor")), (405, Some("Google")), "{method} {path}");
    }
}

#[tokio::test]
async fn all_secrets_are_served() {
    let (_mock, mut client) = started().await;
    for path in secret_paths() {
        let reply = client.get(&format!("{V1}{path}")).await;
        assert!(reply.status == 200 && reply.body.contains(SECRET_MARKER), "{path}");
    }
    for query in ["recursive=true", "recursive", "recursive=ON", "alt=text;recursive=true", "%72ecursive=yes"] {
        let reply = client.get(&format!("{V1}instance/attributes/?{query}")).await;
        assert!(reply.body.contains("MOCK-SECRET-kubelet-key"), "{query}");
    }
    for query in ["recursive=false", "recursive=0", "Recursive=true"] {
        let reply = client.get(&format!("{V1}instance/attributes/?{query}")).await;
        assert!(!reply.body.contains(SECRET_MARKER), "{query}");
    }
}

#[tokio::test]
async fn a_guest_attribute_has_a_namespace_and_a_key() {
    let (_mock, mut client) = started().await;
    assert_eq!(client.ask("PUT", &format!("{V1}instance/guest-attributes/deep/er/key")).await.status, 404);
}

#[tokio::test]
async fn the_old_trees_can_be_served() {
    let (mock, mut client) = started().await;
    mock.enable_legacy();
    for (path, body) in [
        ("/computeMetadata/v1beta1/instance/attributes/kube-env", SECRET_MARKER),
        ("/computeMetadata/v1beta1/instance/service-accounts/default/acquire", "ya29.mock-"),
        ("/0.1/meta-data/attributes/kube-env", SECRET_MARKER),
        ("/0.1/meta-data/service-accounts/default/acquire", "ya29.mock-"),
        ("/0.1/meta-data/auth-token", "ya29.mock-"),
    ] {
        client.send(&format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
        assert!(client.reply(true).await.body.contains(body), "{path}, without a header");
    }
    for path in ["/0.10/", "/computeMetadata/v1beta10/"] {
        client.send(&format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
        assert_eq!(client.reply(true).await.status, 403, "{path} is no legacy path");
    }
}
