//! The trees of pods: each has its own accounts, and nobody else's.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;
use tokio::runtime::Builder;
use tower::{Layer, ServiceExt, service_fn};

use std::sync::Arc;

use http::{Response, StatusCode};
use http_body_util::BodyExt;

use super::trees::{ATTRIBUTES, REAL, render, tree};
use super::{Concealment, Mode, layer};
use crate::error::Error;
use crate::hook::Hook;
use crate::identity::tests::pod;
use crate::layers::accounts::Accounts;
use crate::metadata::{MetadataPath, Principal, Query, Request, WorkloadId};
use crate::policy::{Choice, LivePolicy, Recursive, Source};
use crate::reply::{self, Body};
use crate::room::Room;
use crate::workloads::{Annotations, Workloads};

/// The accounts of two pods that are linked to Google's.
const LINKED: [&str; 2] = ["checkout@shop.iam.gserviceaccount.com", "search@shop.iam.gserviceaccount.com"];

/// A pool's name is the e-mail of an account that is not linked.
const POOL: &str = "shop.svc.id.goog";

/// Pods, and the e-mail of each.
fn pods() -> (Arc<Accounts>, Vec<(Principal, Option<&'static str>)>) {
    let workloads = Arc::new(Workloads::new(Some(crate::workloads::federation::tests::gke("shop"))));
    let accounts = [("checkout", Some(LINKED[0])), ("search", Some(LINKED[1])), ("plain", None), ("odd", Some("odd"))];
    let mut pods: Vec<_> = accounts
        .into_iter()
        .zip(1..)
        .map(|((name, google_account), number)| {
            let account = workloads.of_pod(&pod(number, "shop", name));
            workloads.found(&account, "u", &Annotations { google_account, ..Annotations::default() });
            let email = if name == "odd" { None } else { Some(google_account.unwrap_or(POOL)) };
            (account.principal(), email)
        })
        .collect();
    // One that has ended, and one that is not known.
    pods.extend([(Principal::Workload(WorkloadId(99)), None), (Principal::Unknown, None)]);
    (Arc::new(Accounts::new(&workloads).expect("a federation")), pods)
}

/// The answer to a request of this principal, in front of a server that answers with this tree.
async fn ask(concealment: &Arc<Concealment>, principal: Principal, target: &str, tree: &str) -> String {
    let server = service_fn(|_: Box<Request>| {
        let tree = tree.to_owned();
        async move { Ok::<Response<Body>, Error>(reply::local(StatusCode::OK, reply::APPLICATION_TEXT, tree)) }
    });
    let target: http::uri::PathAndQuery = target.parse().expect("a target");
    let query = Query::parse(target.query()).expect("a query");
    let request = Request { principal, ..Request::get(MetadataPath::parse(&target).expect("a path"), query) };
    let answer = layer(concealment).layer(server).oneshot(Box::new(request)).await.expect("a tree");
    let bytes = answer.into_body().collect().await.expect("it is in memory").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}

async fn check(tree: &str, of_node: &[String], policy: &str, mode: Mode, target: &str) -> Result<(), TestCaseError> {
    let choice = Choice { source: Source::parse(policy), recursive: Some(Recursive::Redact) };
    let policy = Arc::new(LivePolicy::load(choice).await.expect("built in"));
    let room = Room::new(1 << 20, Hook::new(Arc::new(|_| false)));
    let (accounts, pods) = pods();
    let concealment = Concealment::new(policy, mode, room, Arc::default()).with_accounts(Some(accounts));
    let concealment = Arc::new(concealment);
    let is_instance = target.contains("/instance/");
    for (principal, own) in pods {
        let shown = ask(&concealment, principal, target, tree).await;
        for others in LINKED.iter().chain([&POOL]).filter(|email| own != Some(**email)) {
            prop_assert!(!shown.contains(*others), "{} of {:?}", shown, own);
        }
        for mark in of_node {
            prop_assert!(!shown.contains(mark.as_str()), "{} in {} of {:?}", mark, shown, own);
        }
        if target.ends_with("alt=text") {
            let above = if is_instance { "" } else { "instance/" };
            let line = |own: &str| format!("{above}service-accounts/default/email {own}\n");
            prop_assert!(own.is_none_or(|own| shown.contains(&line(own))), "{} of {:?}", shown, own);
            prop_assert!(own.is_some() || !shown.contains("service-accounts"), "{}", shown);
            continue;
        }
        let json: Value = serde_json::from_str(&shown).expect("JSON");
        let accounts = if is_instance { &json["serviceAccounts"] } else { &json["instance"]["serviceAccounts"] };
        let names = accounts.as_object().expect("always a directory").keys().map(String::as_str);
        let mut expected: Vec<&str> = own.into_iter().flat_map(|own| [own, "default"]).collect();
        expected.sort_unstable();
        prop_assert_eq!(names.collect::<Vec<_>>(), expected, "{}", shown);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_pods_tree_has_its_own_accounts_and_no_others(
        tree in tree(REAL, ATTRIBUTES),
        policy in select(vec!["compat", "strict"]),
        mode in select(vec![Mode::Enforce, Mode::Audit]),
        directory in select(vec!["", "instance/"]),
        format in select(vec!["", "&alt=json", "&alt=text"]),
    ) {
        let mut leaves = Vec::new();
        let mut rendered = render(&tree, "", &mut leaves);
        if directory == "instance/" {
            rendered = rendered["instance"].take();
        }
        let of_accounts = leaves.into_iter().filter(|(path, ..)| path.starts_with("instance/service-accounts/"));
        let of_node: Vec<String> = of_accounts.map(|(_, mark, _)| mark).chain(["a@b.c".to_owned()]).collect();
        let target = format!("/computeMetadata/v1/{directory}?recursive=true{format}");
        let runtime = Builder::new_current_thread().enable_time().build().expect("it needs nothing");
        runtime.block_on(check(&rendered.to_string(), &of_node, policy, mode, &target))?;
    }
}
