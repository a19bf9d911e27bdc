use std::convert::Infallible;
use std::time::Duration;

use http_body_util::BodyExt;
use tower::{Layer, ServiceExt};

use super::*;
use crate::cluster::Annotations;
use crate::tests::pod;
use crate::workloads::{Account, Federation, federation};
use protocol::metadata::{Endpoint, MetadataPath, Query};
use proxy::error::Error;
use proxy::layers::filter::layer;

const GOOGLE: &str = "checkout@shop.iam.gserviceaccount.com";
const ROOT: &str = "/computeMetadata/v1/instance/service-accounts";

/// A pod's account, and the layer that answers about it.
struct Scene {
    workloads: Arc<Workloads>,
    account: Arc<Account>,
    accounts: Accounts,
}

impl Scene {
    /// The account is not read yet.
    fn new() -> Self {
        Self::of(federation::tests::gke("shop"))
    }

    fn of(federation: Federation) -> Self {
        let workloads = Arc::new(Workloads::new(Some(federation)));
        let account = workloads.of_pod(&pod(1, "shop", "checkout"));
        let accounts = Accounts::new(&workloads).expect("a federation");
        Self { workloads, account, accounts }
    }

    fn annotated(google_account: Option<&str>) -> Self {
        let scene = Self::new();
        scene.reads(google_account);
        scene
    }

    fn reads(&self, google_account: Option<&str>) {
        let google_account = google_account.map(str::to_owned);
        let annotations = Annotations { google_account, ..Annotations::default() };
        self.workloads.found(&self.account, "u", &annotations);
    }

    fn request(&self, path: &str) -> Box<Request> {
        let target: http::uri::PathAndQuery = path.parse().expect("a target");
        let query = Query::parse(target.query()).expect("a query");
        let principal = self.account.principal();
        Box::new(Request { principal, ..Request::get(MetadataPath::parse(&target).expect("a path"), query) })
    }

    /// The response to a request, whose status is 299 if it was passed on.
    async fn ask(&self, request: Box<Request>) -> Result<(u16, String), Error> {
        let inner = tower::service_fn(async |_: Box<Request>| {
            Ok::<_, Error>(reply::local(StatusCode::from_u16(299).expect("a status"), reply::APPLICATION_TEXT, ""))
        });
        let response = layer(self.accounts.clone()).layer(inner).oneshot(request).await?;
        let status = response.status().as_u16();
        let body = response.into_body().map_err(|_| -> Infallible { unreachable!("it is in memory") });
        let bytes = body.collect().await.expect("infallible").to_bytes();
        Ok((status, String::from_utf8(bytes.to_vec()).expect("text")))
    }

    async fn asks_for(&self, below: &str) -> (u16, String) {
        self.ask(self.request(&format!("{ROOT}{below}"))).await.expect("an answer")
    }
}

const PASSED: (u16, String) = (299, String::new());

#[tokio::test(start_paused = true)]
async fn an_account_is_read_again_only_for_requests_about_it() {
    let scene = Scene::annotated(Some(GOOGLE));
    for (path, is_read) in [
        ("/computeMetadata/v1/project/project-id", false),
        ("/computeMetadata/v1/instance/id", false),
        (&*format!("{ROOT}/default/token"), true),
    ] {
        for _ in 0..3 {
            scene.ask(scene.request(path)).await.expect("an answer");
            tokio::time::sleep(Duration::from_secs(61)).await;
        }
        scene.workloads.tend(base::clock::BootTime::now());
        let wanted = tokio::time::timeout(Duration::from_secs(1), scene.workloads.wanted()).await;
        assert_eq!(wanted.is_ok(), is_read, "{path}");
    }
}

#[tokio::test]
async fn a_pod_sees_its_own_account_by_all_of_its_names() {
    let linked = Scene::annotated(Some(GOOGLE));
    for name in ["default", GOOGLE, "shop.svc.id.goog"] {
        assert_eq!(linked.asks_for(&format!("/{name}/email")).await, (200, GOOGLE.to_owned()));
        assert_eq!(linked.asks_for(&format!("/{name}/token?scopes=a")).await, PASSED);
        assert_eq!(linked.asks_for(&format!("/{name}/identity?audience=a")).await, PASSED);
    }
    assert_eq!(linked.asks_for("/").await, (200, format!("{GOOGLE}/\ndefault/\n")));
    let unlinked = Scene::annotated(None);
    assert_eq!(unlinked.asks_for("/default/email").await, (200, "shop.svc.id.goog".to_owned()));
}

/// Python's `urljoin` drops a slash of the principal; others keep both, or encode the colons.
#[tokio::test]
async fn a_principal_in_place_of_an_email_is_a_name_of_its_own_account_alone() {
    let pool = |pool: &str| format!("/locations/global/workloadIdentityPools/{pool}/subject/");
    for (federation, project, pool, [own, other]) in [
        (federation::tests::gke("shop"), "12", pool("shop.svc.id.goog"), ["ns/shop/sa/checkout", "ns/shop/sa/token"]),
        (
            federation::tests::elsewhere(),
            "123",
            pool("my-pool"),
            ["system:serviceaccount:shop:checkout", "system:serviceaccount:shop:token"],
        ),
    ] {
        let scene = Scene::of(federation);
        scene.accounts.names.know_project("shop", "12");
        let principal_as_email = Some("true".to_owned());
        scene.workloads.found(&scene.account, "u", &Annotations { principal_as_email, ..Annotations::default() });
        let (_, email) = scene.asks_for("/default/email").await;
        assert_eq!(email, format!("principal://iam.googleapis.com/projects/{project}{pool}{own}"));
        let tree = scene.asks_for("/default/?recursive=true").await;
        for name in [email.clone(), email.replace("//", "/"), email.replace(':', "%3A"), email.replace("//", "///")] {
            assert_eq!(scene.asks_for(&format!("/{name}/email")).await, (200, email.clone()), "{name}");
            assert_eq!(scene.asks_for(&format!("/{name}/?recursive=true")).await, tree);
            assert_eq!(scene.asks_for(&format!("/{name}/")).await.1, "aliases\nemail\nidentity\nscopes\ntoken\n");
            assert_eq!(scene.asks_for(&format!("/{name}")).await.0, 301);
            assert_eq!(scene.asks_for(&format!("/{name}/nothing")).await.0, 404);
            for token in ["token", "identity?audience=a"] {
                let request = scene.request(&format!("{ROOT}/{name}/{token}"));
                let (Endpoint::Token(account) | Endpoint::Identity(account)) = &request.endpoint else {
                    panic!("{:?}", request.endpoint)
                };
                let Principal::Workload(number) = request.principal else { panic!("{}", request.principal) };
                assert_eq!(scene.workloads.is_own(number, account), Some(true));
                assert_eq!(scene.ask(request).await.expect("an answer"), PASSED);
            }
        }
        let others = [other, "checkout", "ns/shop/sa", "ns/shop/sa/checkout2", &format!("{own}/x"), ""];
        for name in others.map(|other| format!("principal://iam.googleapis.com/projects/{project}{pool}{other}")) {
            for below in ["/", "/email", "/token", "/identity?audience=a", "/?recursive=true", "/token/token"] {
                assert_eq!(scene.asks_for(&format!("/{name}{below}")).await.0, 404, "{name}{below}");
            }
        }
        // A Google account's principal is not its name.
        scene.reads(Some(GOOGLE));
        assert_eq!(scene.asks_for(&format!("/{email}/token")).await.0, 404);
    }
}

#[tokio::test]
async fn other_accounts_do_not_exist() {
    let scene = Scene::annotated(None);
    for name in [GOOGLE, "other.svc.id.goog", "123-compute@developer.gserviceaccount.com", "Default"] {
        for value in ["", "/", "/email", "/token", "/identity?audience=a", "/?recursive=true"] {
            let (status, text) = scene.asks_for(&format!("/{name}{value}")).await;
            assert_eq!(status, 404, "{name}{value}: {text}");
            assert!(text.contains("Its own are default and shop.svc.id.goog"), "{text}");
        }
    }
    assert_eq!(scene.asks_for("/default/nothing").await.0, 404);
    assert_eq!(scene.asks_for("/?alt=json").await.0, 400);
    for below in ["email?wait_for_change=true", "token?wait_for_change=true", "token?alt=xml"] {
        assert_eq!(scene.asks_for(&format!("/default/{below}")).await.0, 400, "{below}");
    }
}

#[tokio::test]
async fn the_node_and_other_paths_pass() {
    let scene = Scene::annotated(None);
    let of_node = Box::new(Request { principal: Principal::Node, ..*scene.request(&format!("{ROOT}/x@y/email")) });
    assert_eq!(scene.ask(of_node).await.expect("an answer"), PASSED);
    assert_eq!(scene.ask(scene.request("/computeMetadata/v1/instance/id")).await.expect("an answer"), PASSED);
}

#[tokio::test]
async fn an_annotation_that_cannot_be_used_is_told_in_the_servers_words() {
    let scene = Scene::annotated(Some("checkout"));
    for below in ["/default/?recursive=true", "/default/email"] {
        let error = scene.ask(scene.request(&format!("{ROOT}{below}"))).await.expect_err("malformed");
        assert_eq!(error.status(), StatusCode::FORBIDDEN);
        assert!(error.to_string().starts_with("Annotated service account must be in format of"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_until_the_account_is_read() {
    let scene = Scene::new();
    assert!(!scene.accounts.answers_from_memory(&scene.request(&format!("{ROOT}/default/email"))));
    let (asked, ()) = tokio::join!(scene.asks_for("/default/email"), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        scene.workloads.wanted().await;
        scene.reads(Some(GOOGLE));
    });
    assert_eq!(asked, (200, GOOGLE.to_owned()));
    assert!(scene.accounts.answers_from_memory(&scene.request(&format!("{ROOT}/default/email"))));
    assert!(
        !scene.accounts.answers_from_memory(&scene.request(&format!("{ROOT}/default/token"))),
        "that is the token cache's to say"
    );
}

#[tokio::test(start_paused = true)]
async fn after_a_long_pause_a_request_is_not_answered_from_what_was_known() {
    let scene = Scene::annotated(Some("malformed"));
    tokio::time::sleep(Duration::from_secs(121)).await;
    let request = || scene.request(&format!("{ROOT}/default/email"));
    assert!(!scene.accounts.answers_from_memory(&request()), "it waits");
    let (asked, ()) = tokio::join!(scene.ask(request()), async {
        scene.workloads.wanted().await;
        scene.reads(Some(GOOGLE));
    });
    let error = asked.expect_err("its account has changed");
    assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE, "{error}");
    assert_eq!(scene.ask(request()).await.expect("an answer"), (200, GOOGLE.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn an_account_that_stays_unknown_is_an_error_to_retry_and_a_deleted_one_is_not() {
    let scene = Scene::new();
    let error = scene.ask(scene.request(&format!("{ROOT}/default/email"))).await.expect_err("unknown");
    assert_eq!((error.status(), error.reason()), (StatusCode::SERVICE_UNAVAILABLE, "unknown_account"), "{error}");
    scene.workloads.wanted().await;
    scene.workloads.missing(&scene.account);
    let error = scene.ask(scene.request(&format!("{ROOT}/default/email"))).await.expect_err("deleted");
    assert!(matches!(error, Error::Account(AccountError::Deleted(_))), "{error}");
    assert_eq!((error.status(), error.reason()), (StatusCode::FORBIDDEN, "deleted_account"));
}

#[tokio::test]
async fn a_connection_that_asks_under_an_old_number_is_told_to_retry() {
    let scene = Scene::annotated(None);
    let request = scene.request(&format!("{ROOT}/default/email"));
    scene.reads(Some(GOOGLE));
    let error = scene.ask(request).await.expect_err("outdated");
    assert_eq!((error.status(), error.reason()), (StatusCode::SERVICE_UNAVAILABLE, "changed_account"), "{error}");
    assert_eq!(scene.asks_for("/default/email").await, (200, GOOGLE.to_owned()));
}
