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
use super::{Concealment, Mode, OwnEmail, layer};
use crate::error::Error;
use crate::policy::{Choice, LivePolicy, Recursive, Source};
use crate::reply::{self, Body};
use crate::room::Room;
use base::hook::Hook;
use protocol::metadata::{MetadataPath, Principal, Query, Request, WorkloadId};

/// The accounts of two pods that are linked to Google's.
const LINKED: [&str; 2] = ["checkout@shop.iam.gserviceaccount.com", "search@shop.iam.gserviceaccount.com"];

/// A pool's name is the e-mail of an account that is not linked.
const POOL: &str = "shop.svc.id.goog";

/// Pods, and the e-mail of each. The fourth's account cannot be used, the next pod has ended, and the last is not known.
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
    let concealment = Concealment::new(policy, mode, room, Arc::default()).with_accounts(Some(emails()));
    let concealment = Arc::new(concealment);
    let is_instance = target.contains("/instance/");
    for (principal, own) in PODS {
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
