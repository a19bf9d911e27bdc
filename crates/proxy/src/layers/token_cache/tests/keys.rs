//! Which requests are for the same token, and in which form they get it.

use super::*;
use protocol::metadata::ServiceAccount;

#[tokio::test(start_paused = true)]
async fn default_and_its_email_are_one_account_once_the_email_is_known() {
    const EMAIL: &str = "/computeMetadata/v1/instance/service-accounts/a@b.c/token";
    let server = Server::new();
    let cache = Cache::new(&server);
    cache.store.know_default_email("a@b.c");
    assert_eq!(cache.token(TOKEN).await, cache.token(EMAIL).await);
    assert_eq!(server.fetches(), 1);
    cache.token("/computeMetadata/v1/instance/service-accounts/other@b.c/token").await;
    assert_eq!(server.fetches(), 2, "another account has its own token");
}

#[test]
fn only_the_nodes_key_with_the_default_email_is_the_default_accounts() {
    let store = Store::new(usize::MAX, &Registry::default());
    store.know_default_email("a@b.c");
    let mut key =
        TokenKey::from_request(&request("/computeMetadata/v1/instance/service-accounts/a@b.c/token")).expect("a key").0;
    assert!(store.canonical(key.clone()).is_default_account());
    key.principal = Principal::Workload(WorkloadId(7));
    assert_eq!(store.canonical(key.clone()), key);
}

#[test]
fn a_workloads_key_with_its_own_name_is_its_default_accounts() {
    const OWN: &str = "app@shop.iam.gserviceaccount.com";
    let is_own = |id, account: &ServiceAccount| id == WorkloadId(1) && account.to_string() == OWN;
    let store = Store::with_names(usize::MAX, IsDefault::new(Arc::new(is_own)), &Registry::default());
    let key = |account: &str, principal| {
        let target = format!("/computeMetadata/v1/instance/service-accounts/{account}/token");
        let mut key = TokenKey::from_request(&request(&target)).expect("a key").0;
        key.principal = principal;
        key
    };
    let workload = Principal::Workload(WorkloadId(1));
    assert_eq!(store.canonical(key(OWN, workload)), key("default", workload));
    for (account, principal) in [
        ("other@shop.iam.gserviceaccount.com", workload),
        (OWN, Principal::Workload(WorkloadId(2))),
        (OWN, Principal::Node),
    ] {
        assert_eq!(store.canonical(key(account, principal)), key(account, principal));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_with_a_parameter_of_unknown_effect_passes_through() {
    let server = Server::new();
    let cache = Cache::new(&server);
    let inner = service_fn(|_: Box<Request>| async {
        Ok::<_, Error>(Response::new(Body::Whole(Bytes::from_static(b"inner"))))
    });
    let response = layer(TokenCache::new(&cache.tokens, Audit::Off))
        .layer(inner)
        .oneshot(request(&format!("{TOKEN}?wait_for_change=true")).into())
        .await;
    assert!(response.is_ok());
    assert_eq!(server.fetches(), 0);
}

#[tokio::test(start_paused = true)]
async fn both_forms_share_one_token() {
    let server = Server::taking(Duration::ZERO);
    let cache = Cache::new(&server);
    let text = cache.ask(&format!("{TOKEN}?alt=text")).await;
    assert_eq!(text, Got::Token("access_token ya29.1\nexpires_in 3599\ntoken_type Bearer\n".to_owned(), 0));
    assert_eq!(cache.token(TOKEN).await, ("ya29.1".to_owned(), 3599));
    assert_eq!(server.fetches(), 1);
}
