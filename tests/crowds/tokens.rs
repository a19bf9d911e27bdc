//! Crowds that request tokens: one upstream request for each token.

use std::time::Duration;

use mock::{BUILDER_ACCOUNT, Fault};

use crate::stage::start_binary;
use crate::support::tokens::{crowd, path_of, secret};
use crate::turn;

#[tokio::test]
async fn a_thousand_clients_of_a_cold_key_are_one_upstream_request() {
    let _turn = turn().await;
    let (mock, _binary, addr, _) = start_binary(&[]).await;
    mock.fault(Fault::Delay(Duration::from_secs(1)));
    let path = path_of(BUILDER_ACCOUNT);
    let answers = crowd(addr, std::iter::repeat_n(path.clone(), 1000)).await;
    let first = secret(&answers[0]);
    assert!(answers.iter().all(|answer| secret(answer) == first));
    assert_eq!((mock.requests(), mock.requests_to(&path)), (1, 1));
}

#[tokio::test]
async fn every_key_is_one_upstream_request() {
    let _turn = turn().await;
    let (mock, _binary, addr, _) = start_binary(&[]).await;
    let accounts: Vec<String> =
        (0..8).map(|account| format!("a{account}@mock-project.iam.gserviceaccount.com")).collect();
    for account in &accounts {
        mock.add_account(account);
    }
    let target = |caller: usize| {
        let scopes = ["x", "y", "y,x", "x,y,z"][caller / 8 % 4];
        format!("{}?scopes={scopes}", path_of(&accounts[caller % 8]))
    };
    mock.fault(Fault::Delay(Duration::from_millis(100)));
    let answers = crowd(addr, (0..1000).map(target)).await;
    let mut secrets: Vec<String> = answers.iter().map(secret).collect();
    secrets.sort_unstable();
    secrets.dedup();
    assert_eq!((mock.requests(), secrets.len()), (32, 32));
    assert_eq!(mock.peak_in_flight(), 12, "never more at once");
}
