use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;

use super::*;
use protocol::metadata::{MetadataPath, Query};

fn all() -> Named {
    Named {
        project_id: Some("shop".into()),
        numeric_project_id: Some(123),
        cluster_name: Some("one".into()),
        cluster_location: Some("europe-west3".into()),
        cluster_uid: Some("5f0c".into()),
        ..Named::default()
    }
}

async fn answer(values: &Values, target: &str) -> (u16, String, String) {
    let target: http::uri::PathAndQuery = format!("/computeMetadata/v1/{target}").parse().expect("a target");
    let query = Query::parse(target.query()).expect("a query");
    let response = values.answer(&Request::get(MetadataPath::parse(&target).expect("a path"), query));
    assert_eq!(response.headers()["metadata-flavor"], "Google");
    let content_type = response.headers()[CONTENT_TYPE].to_str().expect("text").to_owned();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("it is in memory").to_bytes();
    (status, content_type, String::from_utf8(body.to_vec()).expect("text"))
}

#[tokio::test]
async fn what_is_given_is_answered_as_the_server_would() {
    let (text, json) = ("application/text", "application/json");
    for (target, content_type, expected) in [
        ("project/project-id", text, "shop"),
        ("project/numeric-project-id", text, "123"),
        ("project/numeric-project-id?alt=json", json, "123"),
        ("project/project-id?alt=json", json, "\"shop\""),
        ("instance/attributes/cluster-location", text, "europe-west3"),
        ("instance/attributes/cluster-uid", text, "5f0c"),
        ("", text, "instance/\nproject/\n"),
        ("instance/", text, "attributes/\nservice-accounts/\n"),
        ("project/", text, "numeric-project-id\nproject-id\n"),
        ("project/?recursive=true", json, r#"{"numericProjectId":123,"projectId":"shop"}"#),
        ("project/?recursive=true&alt=text", text, "numeric-project-id 123\nproject-id shop\n"),
        (
            "instance/?recursive=true",
            json,
            r#"{"attributes":{"cluster-location":"europe-west3","cluster-name":"one","cluster-uid":"5f0c"}}"#,
        ),
    ] {
        assert_eq!(
            answer(&Values::new(all()), target).await,
            (200, content_type.to_owned(), expected.to_owned()),
            "{target}"
        );
    }
    assert_eq!(answer(&Values::new(all()), "project").await.0, 301);
    assert_eq!(answer(&Values::new(all()), "project/?alt=json").await.0, 400);
}

#[tokio::test]
async fn all_else_is_missing_and_says_why() {
    for target in ["instance/zone", "instance/service-accounts/default/token", "universe/universe-domain", "oslogin/"] {
        let (status, _, text) = answer(&Values::new(all()), target).await;
        assert_eq!(status, 404, "{target}");
        assert!(text.contains("--upstream none"), "{text}");
    }
    assert_eq!(answer(&Values::new(Named::default()), "project/project-id").await.0, 404);
    assert_eq!(answer(&Values::new(Named::default()), "project/").await.0, 404);
}

#[tokio::test]
async fn the_instance_is_called_as_its_node() {
    let values = Values::of_node(all(), "node-1");
    assert!(values.awaits_node());
    for target in ["instance/zone", "instance/id", "?recursive=true", "instance/?recursive=true&alt=text"] {
        let (status, _, text) = answer(&values, target).await;
        assert_eq!(status, 503, "{target}");
        assert!(text.contains("not known yet") && !text.contains("metadata server"), "{text}");
    }
    for target in ["instance/name", "instance/hostname"] {
        assert_eq!(answer(&values, target).await.2, "node-1");
    }
    assert_eq!(answer(&values, "project/?recursive=true").await.0, 200);
    assert_eq!(answer(&values, "instance/").await.0, 200, "Node's library detects by it");

    values.know_node(Some("6f0a9d3e-5b1c-4c7e-9d51-0a1b2c3d4e5f"), Some("europe-west3-a"));
    let id = answer(&values, "instance/id").await.2;
    assert_eq!(answer(&values, "instance/zone").await.2, "projects/123/zones/europe-west3-a");
    assert_eq!(answer(&values, "instance/").await.2, "attributes/\nhostname\nid\nname\nservice-accounts/\nzone\n");
    let tree: Value = serde_json::from_str(&answer(&values, "instance/?recursive=true").await.2).expect("JSON");
    assert_eq!(tree["id"].as_u64().map(|id| id.to_string()), Some(id.clone()), "a number");
    assert!(tree["id"].as_i64().is_some_and(|id| id > 0) && tree["zone"] == "projects/123/zones/europe-west3-a");

    values.know_node(None, None);
    assert_ne!(answer(&values, "instance/id").await.2, id, "made of the name");
    assert_eq!(answer(&values, "instance/zone").await.0, 404);
}

#[tokio::test]
async fn what_is_given_is_more_than_what_the_node_says() {
    let given = Named {
        project_id: Some("shop".into()),
        zone: Some("rack-1".into()),
        instance_name: Some("a".into()),
        instance_id: Some(7),
        ..Named::default()
    };
    let values = Values::of_node(given, "node-1");
    assert!(!values.awaits_node());
    values.know_node(Some("u"), Some("z"));
    for (target, expected) in
        [("instance/zone", "projects/shop/zones/rack-1"), ("instance/name", "a"), ("instance/id", "7")]
    {
        assert_eq!(answer(&values, target).await.2, expected);
    }
    // Without a cluster, a name is enough for a number.
    let alone = Values::new(Named { instance_name: Some("a".into()), ..Named::default() });
    assert_eq!(answer(&alone, "instance/id").await.0, 200);
    assert_eq!(answer(&Values::new(Named::default()), "instance/id").await.0, 404);
}

#[test]
fn a_node_has_the_same_number_in_each_version() {
    assert_eq!(number_of("a"), 0xaf63_dc4c_8601_ec8c >> 1);
}
