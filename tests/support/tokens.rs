//! Requests for tokens.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::task::JoinSet;

use super::{Answer, get, open_many_files};

/// The path of an account's token.
pub fn path_of(account: &str) -> String {
    format!("/computeMetadata/v1/instance/service-accounts/{account}/token")
}

/// The token in an answer.
pub fn secret(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let token: Value = serde_json::from_str(&answer.body).expect("JSON");
    assert!(token["expires_in"].as_u64().is_some_and(|left| left > 0), "{token}");
    token["access_token"].as_str().expect("text").to_owned()
}

/// Starts a client for each target, all at once, each on its own connection.
pub async fn crowd(addr: SocketAddr, targets: impl IntoIterator<Item = String>) -> Vec<Answer> {
    open_many_files();
    let mut crowd = JoinSet::new();
    for target in targets {
        crowd.spawn(async move { get(addr, &target).await });
    }
    crowd.join_all().await
}
