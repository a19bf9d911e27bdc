//! Responses without faults.

use super::*;
use crate::{SECRET_MARKER, secret_paths};

#[tokio::test]
async fn the_tree_has_the_content_types_of_the_real_server() {
    let (_mock, mut client) = started().await;
    for (path, content_type, body) in [
        ("project/project-id", "application/text", "mock-project"),
        ("project/numeric-project-id", "application/text", "123456789012"),
        ("project/project-id?alt=json", "application/json", "\"mock-project\""),
        ("project/project-id?recursive=true", "application/text", "mock-project"),
        ("project/project-id?foo=bar", "application/text", "mock-project"),
        ("project/", "application/text", "attributes/\nnumeric-project-id\nproject-id\n"),
        ("project/?recursive=maybe", "application/text", "attributes/\nnumeric-project-id\nproject-id\n"),
        ("", "application/text", "instance/\noslogin/\nproject/\nuniverse/\n"),
        ("instance/guest-attributes/", "application/text", ""),
        ("instance/service-accounts/default/", "application/text", "aliases\nemail\nidentity\nscopes\ntoken\n"),
        ("/project//project-id", "application/text", "mock-project"),
        ("instance/id?alt=json", "application/json", "4520031799277581759"),
        ("instance/zone", "application/text", "projects/123456789012/zones/us-central1-a"),
        ("instance/tags", "application/json", "[\"gke-mock-cluster-0a1b2c3d-node\",\"allow-health-checks\"]"),
        ("instance/tags?alt=text", "application/text", "gke-mock-cluster-0a1b2c3d-node\nallow-health-checks\n"),
        ("instance/disks/0/type", "application/text", "PERSISTENT-BALANCED"),
        ("instance/scheduling/preemptible", "application/text", "FALSE"),
        ("instance/maintenance-event", "application/text", "NONE"),
        ("instance/service-accounts/default/aliases", "application/text", "default\n"),
        ("universe/universe-domain", "application/text", "googleapis.com"),
        ("universe/universe_domain", "application/text", "googleapis.com"),
        ("universe/?recursive=True", "application/json", "{\"universeDomain\":\"googleapis.com\"}"),
        ("universe/?recursive=1&alt=text", "application/text", "universe-domain googleapis.com\n"),
    ] {
        let reply = client.get(&format!("{V1}{path}")).await;
        assert_eq!((reply.status, reply.content_type(), reply.body.as_str()), (200, content_type, body), "{path}");
        let etag = reply.etag();
        assert!(etag.len() == 16 && etag.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')), "{etag}");
    }
}

#[tokio::test]
async fn a_missing_path_is_a_page_without_etag() {
    let (_mock, mut client) = started().await;
    for path in [
        "/computeMetadata/v1/nothing",
        "/computeMetadata/v1/project/project-id/",
        "/computeMetadata/v1/project/project%2Did",
        "/computeMetadata/v1/Project/project-id",
        "/computeMetadata/v1/instance/disks/9/type",
        "/computeMetadata/v1/instance/attributes/../attributes/kube-env",
        "/computeMetadata/v1/instance/service-accounts/default/token/",
        "/computeMetadata/v1/instance/service-accounts/a@b.c/token",
        "/computeMetadata/v1/instance/service-accounts/builder%40mock-project.iam.gserviceaccount.com/email",
        "/COMPUTEMETADATA/V1/project/project-id",
        "/computeMetadata/v2/",
        "//evil/computeMetadata/v1/",
        "/computeMetadata/v1beta1/project/project-id",
        "/0.1/meta-data/attributes/kube-env",
    ] {
        let reply = client.get(path).await;
        assert_eq!((reply.status, reply.content_type()), (404, "text/html; charset=UTF-8"), "{path}");
        assert_eq!((reply.header("Metadata-Flavor"), reply.header("ETag")), (Some("Google"), None));
        assert_eq!(reply.header("Server"), Some("Metadata Server for VM"));
        assert!(!reply.body.contains(SECRET_MARKER));
    }
}

#[tokio::test]
async fn a_directory_without_slash_redirects_to_the_clients_host() {
    let (_mock, mut client) = started().await;
    for (path, host, location) in [
        ("instance/service-accounts", "metadata", "instance/service-accounts/"),
        ("instance?recursive=true&alt=text", "127.0.0.1:8080", "instance/?recursive=true&alt=text"),
    ] {
        client.send(&format!("GET {V1}{path} HTTP/1.1\r\nHost: {host}\r\nMetadata-Flavor: Google\r\n\r\n")).await;
        let reply = client.reply(true).await;
        assert_eq!((reply.status, reply.content_type()), (301, "text/html"));
        assert_eq!(reply.header("Location"), Some(format!("http://{host}{V1}{location}").as_str()));
        assert_eq!(reply.header("Metadata-Flavor"), Some("Google"));
    }
    let reply = client.get("/computeMetadata/v1/instance/service-accounts").await;
    assert_eq!(reply.body, "/computeMetadata/v1/instance/service-accounts/\n");
    assert_eq!(
        client.get("/computeMetadata/v1").await.header("Location"),
        Some("http://metadata.google.internal/computeMetadata/v1/")
    );
}

#[tokio::test]
async fn only_the_root_requires_no_header() {
    let (_mock, mut client) = started().await;
    for (headers, root, leaf) in [
        ("", 200, 403),
        ("Metadata-Flavor: Not Google\r\n", 200, 403),
        ("Metadata-Flavor: google\r\n", 200, 403),
        ("metadata-flavor:   Google  \r\n", 200, 200),
        ("Metadata-Flavor: Google\r\nMetadata-Flavor: evil\r\n", 200, 403),
        ("X-Google-Metadata-Request: True\r\nMetadata-Flavor: evil\r\n", 200, 403),
        ("X-Google-Metadata-Request: True\r\n", 200, 200),
        ("Metadata-Flavor: Google\r\nX-Forwarded-For: 10.0.0.1\r\n", 403, 403),
        ("Metadata-Flavor: Google\r\nx-forwarded-for:\r\n", 403, 403),
    ] {
        for (path, status) in
            [("/", root), ("/computeMetadata/v1/project/project-id", leaf), ("/computeMetadata/v1/", leaf)]
        {
            client.send(&format!("GET {path} HTTP/1.1\r\nHost: h\r\n{headers}\r\n")).await;
            let reply = client.reply(true).await;
            assert_eq!(reply.status, status, "{path} {headers}");
            assert_eq!(reply.header("Metadata-Flavor"), Some("Google"));
        }
    }
    let root = client.get("/").await;
    assert_eq!((root.body.as_str(), root.header("ETag")), ("0.1/\ncomputeMetadata/\n", None));
    let head = client.ask("HEAD", "/").await;
    assert_eq!((head.status, head.header("Content-Length")), (200, Some("22")));
}

#[tokio::test]
async fn queries_that_make_no_sense_are_400() {
    let (_mock, mut client) = started().await;
    for query in [
        "project/?alt=json",
        "project/?alt=text",
        "project/project-id?alt=xml",
        "instance/?wait_for_change=true",
        "instance/id?wait_for_change=true&timeout_sec=soon",
        "instance/service-accounts/default/token?wait_for_change=true",
        "instance/service-accounts/default/token?enforce_scopes=false",
        "instance/service-accounts/default/identity",
        "instance/service-accounts/default/identity?audience=",
    ] {
        let reply = client.get(&format!("{V1}{query}")).await;
        assert_eq!((reply.status, reply.content_type()), (400, "text/html; charset=UTF-8"), "{query}");
    }
    assert!(client.get(&format!("{ACCOUNT}identity")).await.body.contains("audience"));
}

#[tokio::test]
async fn methods_that_a_path_does_not_have_are_405() {
    let (_mock, mut client) = started().await;
    for (method, path) in [
        ("POST", "/"),
        ("PUT", "/computeMetadata/v1/instance/attributes/foo"),
        ("DELETE", "/computeMetadata/v1/instance/service-accounts/default/token"),
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
async fn etags_depend_on_content_and_not_format() {
    let (mock, mut client) = started().await;
    let mut etag = async |target: &str| client.get(&format!("{V1}{target}")).await.etag().to_owned();
    assert_eq!(etag("instance/id?alt=json").await, etag("instance/id?alt=text").await);
    assert_eq!(etag("project/?recursive=true").await, etag("project/?recursive=true&alt=text").await);
    let before = (etag("project/").await, etag("project/?recursive=true").await);
    assert_ne!(before.0, before.1);
    mock.set("project/project-id", "another");
    assert_eq!(etag("project/").await, before.0, "a listing has the same names");
    assert_ne!(etag("project/?recursive=true").await, before.1);
}

#[tokio::test]
async fn guests_write_attributes_if_enabled() {
    let (mock, mut client) = started().await;
    let path = format!("{V1}instance/guest-attributes/hostkeys/ssh-rsa");
    client
        .send(&format!("PUT {path} HTTP/1.1\r\nHost: h\r\nMetadata-Flavor: Google\r\nContent-Length: 3\r\n\r\nkey"))
        .await;
    assert_eq!(client.reply(true).await.status, 200);
    assert_eq!(client.get(&path).await.body, "key");
    assert_eq!(client.ask("DELETE", &path).await.status, 405);
    assert_eq!(client.ask("PUT", &format!("{V1}instance/guest-attributes/deep/er/key")).await.status, 404);
    mock.remove("instance/attributes/enable-guest-attributes");
    let refused = client.ask("PUT", &path).await;
    assert!(refused.status == 403 && refused.body.contains("disabled"));
}

#[tokio::test]
async fn settings_are_metadata() {
    let (mock, mut client) = started().await;
    mock.legacy(true);
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
    mock.legacy(false);
    assert_eq!(client.get("/computeMetadata/v1beta1/instance/attributes/kube-env").await.status, 404);
    mock.remove("instance/gce-workload-certificates/config-status");
    assert_eq!(client.get(&format!("{V1}instance/gce-workload-certificates/config-status")).await.status, 412);
}
