//! The trees of pods: each contains its own accounts, and no others.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::task::yield_now;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

use std::sync::Arc;

use http::{Response, StatusCode};
use http_body_util::BodyExt;
use parking_lot::Mutex;

use super::trees::{ATTRIBUTES, Leaf as Marked, REAL, is_served, render, tree};
use super::{Concealment, Mode, OwnEmail, layer};
use crate::error::Error;
use crate::failure::Failure;
use crate::layers::filter;
use crate::layers::leaves::Leaves;
use crate::policy::{Choice, LivePolicy, Policy, Recursive, Source};
use crate::reply::{self, Body};
use crate::room::Room;
use base::hook::Hook;
use protocol::metadata::{CommonPath, MetadataPath, Principal, Query, Request, WorkloadId};

/// The accounts of two pods that are linked to Google service accounts.
const LINKED: [&str; 2] = ["checkout@shop.iam.gserviceaccount.com", "search@shop.iam.gserviceaccount.com"];

/// A pool's name is the e-mail of an account that is not linked.
const POOL: &str = "shop.svc.id.goog";

/// Pods, and the e-mail of each. The fourth pod's account cannot be used, the next pod has ended, and the last is
/// unknown.
const PODS: [(Principal, Option<&str>); 6] = [
    (Principal::Workload(WorkloadId(1)), Some(LINKED[0])),
    (Principal::Workload(WorkloadId(2)), Some(LINKED[1])),
    (Principal::Workload(WorkloadId(3)), Some(POOL)),
    (Principal::Workload(WorkloadId(4)), None),
    (Principal::Workload(WorkloadId(99)), None),
    (Principal::Unknown, None),
];

fn emails() -> OwnEmail {
    Hook::new(Arc::new(|id| {
        let email =
            PODS.iter().find(|(principal, _)| *principal == Principal::Workload(id)).and_then(|(_, email)| *email);
        Box::pin(async move { email.map(str::to_owned) })
    }))
}

/// A proxy in front of a server with one tree. It has only the layers that see trees.
struct Proxy {
    concealment: Arc<Concealment>,
    leaves: Arc<Leaves>,
    tree: Arc<str>,
}

impl Proxy {
    fn new(concealment: Concealment, tree: &str) -> Self {
        let concealment = Arc::new(concealment.with_accounts(Some(emails())));
        let (keeps, whole) = (Arc::clone(&concealment), Arc::<str>::from(tree));
        let fetched = Arc::clone(&whole);
        let leaves = Leaves::new(move |leaf| {
            let (keeps, fetched) = (Arc::clone(&keeps), answer(&fetched));
            async move {
                if leaf.is_tree() { keeps.kept_tree(&leaf.request(), async { Ok(fetched) }).await } else { Ok(fetched) }
            }
        });
        Self { concealment, leaves: Arc::new(leaves), tree: whole }
    }

    /// The body of the response to a request of this principal, or an empty string for a refusal.
    async fn ask(&self, principal: Principal, target: &str) -> String {
        let tree = Arc::clone(&self.tree);
        let server = service_fn(move |request: Box<Request>| {
            // Like `Forward`.
            let is_foreign = request.principal != Principal::Node && request.path.concerns_accounts();
            let answer: Result<_, Error> = if is_foreign { Err(Failure::Foreign.into()) } else { Ok(answer(&tree)) };
            async { answer }
        });
        let stack = ServiceBuilder::new()
            .layer(layer(&self.concealment))
            .layer(filter::layer(Arc::clone(&self.leaves)))
            .service(server);
        let target: http::uri::PathAndQuery = target.parse().expect("a target");
        let query = Query::parse(target.query()).expect("a query");
        let request = Request { principal, ..Request::get(MetadataPath::parse(&target).expect("a path"), query) };
        let Ok(answer) = stack.oneshot(Box::new(request)).await else { return String::new() };
        let bytes = answer.into_body().collect().await.expect("it is in memory").to_bytes();
        String::from_utf8(bytes.to_vec()).expect("text")
    }
}

fn answer(tree: &str) -> Response<Body> {
    reply::local(StatusCode::OK, reply::APPLICATION_TEXT, tree.to_owned())
}

/// A request, and the policy and mode that apply to it.
#[derive(Debug, Clone, Copy)]
struct Read {
    policy: &'static str,
    mode: Mode,
    directory: &'static str,
    query: &'static str,
}

impl Read {
    /// Marks that no pod may see: of the node's accounts, and of concealed values.
    fn hidden<'a>(self, leaves: &'a [Marked], policy: &Policy) -> Vec<&'a str> {
        let is_hidden = |path: &str| {
            let is_concealed = self.mode == Mode::Enforce && !is_served(policy, path);
            path.starts_with("instance/service-accounts/") || is_concealed
        };
        leaves.iter().filter(|(path, ..)| is_hidden(path)).map(|(_, mark, _)| mark.as_str()).chain(["a@b.c"]).collect()
    }

    async fn check(self, leaves: &[Marked], tree: &str) -> Result<(), TestCaseError> {
        let choice = Choice { source: Source::parse(self.policy), recursive: Some(Recursive::Redact) };
        let policy = Arc::new(LivePolicy::load(choice).await.expect("built in"));
        let room = Room::new(1 << 20, Hook::new(Arc::new(|_| false)));
        let proxy = Proxy::new(Concealment::new(Arc::clone(&policy), self.mode, room, Arc::default()), tree);
        let policy = policy.hold();
        let hidden = self.hidden(leaves, &policy);
        let target = format!("/computeMetadata/v1/{}?{}", self.directory, self.query);
        // The node reads first, so that its tree is cached.
        proxy.ask(Principal::Node, &target).await;
        for (principal, own) in PODS {
            let shown = proxy.ask(principal, &target).await;
            for others in LINKED.iter().chain([&POOL]).filter(|email| own != Some(**email)) {
                prop_assert!(!shown.contains(*others), "{} of {:?}", shown, own);
            }
            for mark in &hidden {
                prop_assert!(!shown.contains(mark), "{} in {} of {:?}, {:?}", mark, shown, own, self);
            }
            self.check_accounts(&shown, own)?;
        }
        Ok(())
    }

    /// The pod's own accounts are in the place of the node's.
    fn check_accounts(self, shown: &str, own: Option<&str>) -> Result<(), TestCaseError> {
        let above = match self.directory {
            "" => "instance/",
            "instance/" => "",
            _ => return Ok(()),
        };
        if self.query.contains("alt=text") {
            let line = |own: &str| format!("{above}service-accounts/default/email {own}\n");
            prop_assert!(own.is_none_or(|own| shown.contains(&line(own))), "{} of {:?}", shown, own);
            prop_assert!(own.is_some() || !shown.contains("service-accounts"), "{}", shown);
            return Ok(());
        }
        let json: Value = serde_json::from_str(shown).expect("JSON");
        let accounts = if above.is_empty() { &json["serviceAccounts"] } else { &json["instance"]["serviceAccounts"] };
        let names = accounts.as_object().expect("always a directory").keys().map(String::as_str);
        let mut expected: Vec<&str> = own.into_iter().flat_map(|own| [own, "default"]).collect();
        expected.sort_unstable();
        prop_assert_eq!(names.collect::<Vec<_>>(), expected, "{}", shown);
        Ok(())
    }
}

/// So that nobody needs to know who asks for one.
#[tokio::test]
async fn a_listing_is_the_same_for_all() {
    for (policy, mode) in [("compat", Mode::Enforce), ("strict", Mode::Enforce), ("strict", Mode::Audit)] {
        for (directory, listing) in [
            ("", "instance/\noslogin/\nproject/\n"),
            ("instance/", "attributes/\ndisks/\nid\nservice-accounts/\nserviceAccounts/\nzone\n"),
            ("instance/attributes/", "cluster-name\nkube-env\n"),
            ("project/", "attributes/\nproject-id\n"),
        ] {
            let choice = Choice { source: Source::parse(policy), recursive: Some(Recursive::Redact) };
            let policy = Arc::new(LivePolicy::load(choice).await.expect("built in"));
            let room = Room::new(1 << 20, Hook::new(Arc::new(|_| false)));
            let proxy = Proxy::new(Concealment::new(policy, mode, room, Arc::default()), listing);
            let target = format!("/computeMetadata/v1/{directory}");
            let of_node = proxy.ask(Principal::Node, &target).await;
            assert!(!of_node.is_empty() && (mode == Mode::Enforce || of_node == listing), "{target}: {of_node}");
            for (principal, _) in PODS {
                assert_eq!(proxy.ask(principal, &target).await, of_node, "{target} of {principal}");
            }
        }
    }
}

/// The answer may come hours later.
#[tokio::test]
async fn a_pod_that_waits_for_a_change_gets_the_account_that_it_has_then() {
    for (query, shown) in [("recursive=true", "now"), ("recursive=true&wait_for_change=true", "then")] {
        let email = Arc::new(Mutex::new("now@b.c"));
        let emails: OwnEmail = Hook::new(Arc::new({
            let email = Arc::clone(&email);
            move |_| {
                let email = *email.lock();
                Box::pin(async move { Some(email.to_owned()) })
            }
        }));
        let policy = Arc::new(LivePolicy::load(Choice::default()).await.expect("built in"));
        let room = Room::new(1 << 20, Hook::new(Arc::new(|_| false)));
        let concealment =
            Arc::new(Concealment::new(policy, Mode::Enforce, room, Arc::default()).with_accounts(Some(emails)));
        let server = service_fn(move |_: Box<Request>| {
            let email = Arc::clone(&email);
            async move {
                yield_now().await;
                *email.lock() = "then@b.c";
                Ok::<_, Error>(answer("{}"))
            }
        });
        let query = Query::parse(Some(query)).expect("a query");
        let path = CommonPath::Instance.into();
        let request = Request { principal: Principal::Workload(WorkloadId(1)), ..Request::get(path, query) };
        let got = layer(&concealment).layer(server).oneshot(Box::new(request)).await.expect("an answer");
        let bytes = got.into_body().collect().await.expect("it is in memory").to_bytes();
        let json: Value = serde_json::from_slice(&bytes).expect("JSON");
        assert_eq!(json["serviceAccounts"]["default"]["email"], format!("{shown}@b.c"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_tree_of_a_pod_has_the_nodes_accounts_a_concealed_value_or_another_pods(
        tree in tree(REAL, ATTRIBUTES),
        policy in select(vec!["compat", "strict"]),
        mode in select(vec![Mode::Enforce, Mode::Audit]),
        directory in select(vec!["", "instance/", "project/", "instance/service-accounts/", "instance/attributes/"]),
        query in select(vec![
            "recursive=true",
            "recursive=True&alt=json",
            "alt=json&recursive=1",
            "recursive=true&alt=text",
            "alt=text&recursive=yes",
            "recursive",
        ]),
    ) {
        let mut leaves = Vec::new();
        let mut rendered = render(&tree, "", &mut leaves);
        for key in directory.split_terminator('/') {
            rendered = rendered[if key == "service-accounts" { "serviceAccounts" } else { key }].take();
        }
        let runtime = Builder::new_current_thread().enable_time().build().expect("it needs nothing");
        let read = Read { policy, mode, directory, query };
        runtime.block_on(read.check(&leaves, &rendered.to_string()))?;
    }
}
