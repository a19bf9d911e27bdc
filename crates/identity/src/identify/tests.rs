use std::convert::Infallible;
use std::net::SocketAddr;

use http_body_util::BodyExt;
use tower::{Layer, ServiceExt};

use super::*;
use protocol::metadata::{MetadataPath, Query, WorkloadId};
use proxy::layers::filter::layer;

fn pod() -> Arc<CallingPod> {
    let [namespace, service_account, name] = ["shop", "checkout", "checkout-1"].map(Into::into);
    Arc::new(CallingPod { namespace, service_account, name, uid: "u".to_owned(), evidence: "kernel" })
}

fn request(target: &str, principal: Principal) -> Box<Request> {
    let target: http::uri::PathAndQuery = target.parse().expect("a target");
    let (path, query) = (MetadataPath::parse(&target).expect("a path"), Query::parse(target.query()).expect("a query"));
    let pod = (principal != Principal::Node).then(pod);
    Box::new(Request { principal, pod, ..Request::get(path, query) })
}

/// The outcome of a request; `None` if it is passed on.
async fn outcome(path: &str, principal: Principal) -> Option<Result<Response<Body>, Error>> {
    let (sender, mut passed) = tokio::sync::mpsc::channel(1);
    let inner = tower::service_fn(move |_: Box<Request>| {
        let passed = sender.clone();
        async move {
            passed.try_send(()).expect("one request");
            Ok::<_, Error>(reply::local(StatusCode::OK, reply::APPLICATION_TEXT, ""))
        }
    });
    let visitor = crate::tests::stranger(SocketAddr::from(([10, 8, 0, 5], 40000)));
    let answer = layer(Identify::new(&visitor, true)).layer(inner).oneshot(request(path, principal)).await;
    if passed.try_recv().is_ok() { None } else { Some(answer) }
}

async fn text(answer: Option<Result<Response<Body>, Error>>) -> String {
    let body = answer.expect("answered here").expect("an answer").into_body();
    let bytes = body.map_err(|_| -> Infallible { unreachable!("it is in memory") }).collect().await;
    String::from_utf8(bytes.expect("infallible").to_bytes().to_vec()).expect("text")
}

/// Pods have none of their own, and the node has some.
const ACCOUNTS: Accounts = Accounts { of_pods: false, of_node: true };

const WORKLOAD: Principal = Principal::Workload(WorkloadId(1));

#[tokio::test]
async fn a_client_is_told_who_it_is() {
    assert_eq!(text(outcome("/whoami", Principal::Node).await).await, "{\"principal\":\"node\"}\n");
    assert_eq!(
        text(outcome("/whoami", WORKLOAD).await).await,
        "{\"namespace\":\"shop\",\"serviceAccount\":\"checkout\",\"pod\":\"checkout-1\",\"uid\":\"u\",\"evidence\":\"kernel\"}\n"
    );
}

#[tokio::test]
async fn the_nodes_accounts_are_refused_to_pods_in_every_api_version() {
    for path in [
        "/computeMetadata/v1/instance/service-accounts/default/token",
        "/computeMetadata/v1/instance/service-accounts/default/identity",
        "/computeMetadata/v1/instance/service-accounts/default/email",
        "/computeMetadata/v1/instance/service-accounts/",
    ] {
        let refused = outcome(path, WORKLOAD).await;
        assert!(matches!(refused, Some(Err(Error::NoAccount(_)))), "{path}: {refused:?}");
        assert!(outcome(path, Principal::Node).await.is_none(), "{path}");
    }
    // That the account has none would not be true of each of these.
    for path in [
        "/computeMetadata/v1beta1/instance/service-accounts/default/token",
        "/computeMetadata/v1beta1/instance/zone",
        "/computemetadata/v1/project/project-id",
        "/0.1/meta-data/service-accounts/default/acquire",
        "/computeMetadata/v2/instance/service-accounts/default/token",
        "/computeMetadata/v1/instance/serviceAccounts/default/token",
        "/computeMetadata/v1/instance/Service-Accounts/default/token",
        "/computeMetadata/v1/service-accounts/default/token",
    ] {
        let refused = outcome(path, WORKLOAD).await;
        assert!(matches!(refused, Some(Err(Error::LeadsToAccounts))), "{path}: {refused:?}");
        assert!(outcome(path, Principal::Node).await.is_none(), "{path}");
    }
}

#[tokio::test]
async fn trees_above_v1_are_refused_to_pods() {
    let recursive = || Query::parse(Some("recursive=true")).expect("a query");
    for (path, is_refused) in [
        ("/", true),
        ("/computeMetadata/", true),
        ("/computeMetadata/v1/", false),
        ("/computeMetadata/v1/instance/", false),
        ("/computeMetadata/v1/instance/disks/", false),
        ("/computeMetadata/v1/project/", false),
    ] {
        for principal in [WORKLOAD, Principal::Node] {
            let request = Request { query: recursive(), ..*request(path, principal) };
            let is_refused = is_refused && principal == WORKLOAD;
            assert_eq!(
                matches!(own_answer(&request, ACCOUNTS), Some(Err(Error::IncludesAccounts))),
                is_refused,
                "{path}"
            );
        }
    }
}

#[test]
fn where_the_node_has_no_accounts_no_tree_includes_them() {
    let accounts = Accounts { of_node: false, ..ACCOUNTS };
    let recursive = || Query::parse(Some("recursive=true")).expect("a query");
    for path in ["/computeMetadata/v1/", "/computeMetadata/v1/instance/"] {
        let request = Request { query: recursive(), ..*request(path, WORKLOAD) };
        assert!(own_answer(&request, accounts).is_none(), "{path}");
    }
    let accounts_of_node = "/computeMetadata/v1/instance/service-accounts/?recursive=true";
    assert!(matches!(own_answer(&request(accounts_of_node, WORKLOAD), accounts), Some(Err(Error::NoAccount(_)))));
}

#[tokio::test]
async fn other_values_are_passed_on() {
    for path in ["/computeMetadata/v1/instance/zone", "/computeMetadata/v1/project/", "/computeMetadata/v1/"] {
        assert!(outcome(path, WORKLOAD).await.is_none(), "{path}");
    }
}

#[tokio::test]
async fn what_is_the_same_for_all_pods_does_not_wait_until_one_is_known() {
    for path in [
        "/",
        "/computeMetadata/v1/instance",
        "/computeMetadata/v1/",
        "/computeMetadata/v1/instance/",
        "/computeMetadata/v1/instance/attributes/",
        "/computeMetadata/v1/project/",
        "/computeMetadata/v1/universe/universe-domain",
    ] {
        assert!(outcome(path, Principal::Unknown).await.is_none(), "{path}");
    }
    for path in [
        "/computeMetadata/v1/instance/?recursive=true",
        "/computeMetadata/v1/project/?recursive=true",
        "/computeMetadata/v1/instance/?alt=json",
        "/computeMetadata/v1/instance/?wait_for_change=true",
        "/computeMetadata/v1/instance/service-accounts/",
        "/computeMetadata/v1/instance/service-accounts/default/",
        "/computeMetadata/v1/instance/disks/",
        "/computeMetadata/v1/instance/zone",
        "/computeMetadata/v1/instance/service-accounts/default/token",
    ] {
        let refused = outcome(path, Principal::Unknown).await;
        assert!(matches!(refused, Some(Err(Error::Unidentified(_)))), "{path}: {refused:?}");
    }
}

#[test]
fn the_refusal_names_the_account() {
    let text = Error::NoAccount(pod()).to_string();
    assert!(text.starts_with("Refused: the service account shop/checkout has no Google account here"), "{text}");
}

#[test]
fn where_pods_have_accounts_another_layer_answers_for_them() {
    let accounts = Accounts { of_pods: true, ..ACCOUNTS };
    let refused = |path: &str| own_answer(&request(path, WORKLOAD), accounts).is_some_and(|answer| answer.is_err());
    for path in ["default/token", "a@b.c/identity", "default/email", "default/", ""] {
        assert!(!refused(&format!("/computeMetadata/v1/instance/service-accounts/{path}")), "{path}");
    }
    for path in [
        "/computeMetadata/v1beta1/instance/service-accounts/default/token",
        "/computeMetadata/v1/instance/serviceAccounts/default/token",
        "/0.1/meta-data/service-accounts/default/acquire",
    ] {
        assert!(refused(path), "{path}");
    }
}
