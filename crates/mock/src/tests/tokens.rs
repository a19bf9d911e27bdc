//! Access tokens and identity tokens in responses.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::*;
use crate::{BUILDER_ACCOUNT, DEFAULT_ACCOUNT};

async fn token(client: &mut Client, target: &str) -> String {
    let reply = client.get(&format!("{V1}instance/service-accounts/{target}")).await;
    assert_eq!((reply.status, reply.content_type()), (200, "application/json"));
    reply.json()["access_token"].as_str().expect("a token").to_owned()
}

fn claims(jwt: &str) -> Value {
    let claims = jwt.split('.').nth(1).expect("three parts");
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).expect("base64url")).expect("JSON")
}

#[tokio::test]
async fn a_token_is_also_text_and_has_no_etag() {
    let (_mock, mut client) = started().await;
    let reply = client.get(&format!("{ACCOUNT}token")).await;
    assert_eq!(reply.header("ETag"), None);
    let text = client.get(&format!("{ACCOUNT}token?alt=text")).await;
    assert!(text.body.starts_with("access_token ya29.") && text.body.ends_with("token_type Bearer\n"));
    assert_eq!(text.content_type(), "application/text");
    let head = client.ask("HEAD", &format!("{ACCOUNT}token")).await;
    assert_eq!(head.header("Content-Length"), Some(reply.body.len().to_string().as_str()));
}

#[tokio::test]
async fn tokens_differ_between_accounts_and_scopes() {
    let (mock, mut client) = started().await;
    let default = token(&mut client, "default/token").await;
    assert_eq!(token(&mut client, &format!("{DEFAULT_ACCOUNT}/token?recursive=true")).await, default);
    assert_ne!(token(&mut client, "default/token?scopes=a").await, default);
    assert_ne!(token(&mut client, &format!("{BUILDER_ACCOUNT}/token")).await, default);
    mock.add_account("late@mock-project.iam.gserviceaccount.com");
    assert!(token(&mut client, "late@mock-project.iam.gserviceaccount.com/token").await.starts_with("ya29.mock-late@"));
}

#[tokio::test]
async fn tokens_of_a_short_life_are_new_each_time() {
    let (mock, mut client) = started().await;
    mock.token_life(Duration::from_secs(200));
    let first = client.get(&format!("{ACCOUNT}token")).await.json();
    assert_eq!(first["expires_in"], 200);
    assert_ne!(client.get(&format!("{ACCOUNT}token")).await.json()["access_token"], first["access_token"]);
}

#[tokio::test]
async fn a_posted_certificate_chain_binds_the_token() {
    let (_mock, mut client) = started().await;
    let unbound = token(&mut client, "default/token").await;
    let post = |body: &str| {
        let length = body.len();
        format!(
            "POST {ACCOUNT}token HTTP/1.1\r\nHost: h\r\nMetadata-Flavor: Google\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    client.send(&post("{\"certificate_chain\":[\"x\"]}")).await;
    let bound = client.reply(true).await;
    assert_eq!(bound.status, 200);
    assert_ne!(bound.json()["access_token"], unbound);
    client.send(&post("{}")).await;
    assert_eq!(client.reply(true).await.status, 400);
}

#[tokio::test]
async fn identity_tokens_are_unique_and_describe_the_machine() {
    let (_mock, mut client) = started().await;
    let target = format!("{ACCOUNT}identity?audience=X&format=full&licenses=TRUE");
    let (one, two) = (client.get(&target).await.body, client.get(&target).await.body);
    assert_ne!(one, two);
    let claims = claims(&one);
    assert_eq!(claims["email"], DEFAULT_ACCOUNT);
    assert_eq!(claims["exp"].as_u64(), claims["iat"].as_u64().map(|issued| issued + 3600));
    let machine = &claims["google"]["compute_engine"];
    assert_eq!((&machine["zone"], &machine["license_id"][1]), (&"us-central1-a".into(), &"1001010".into()));
    assert_eq!(machine["project_number"], 123_456_789_012_u64);
}
