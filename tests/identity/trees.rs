//! Pods read trees: each sees its own accounts, and none the node's or another pod's.

use std::sync::Arc;

use mock::google::Workload;
use mock::{DEFAULT_ACCOUNT, SECRET_MARKER};
use serde_json::Value;

use crate::google::{POOL, world_with_google};
use crate::kube::NODE;
use crate::pod::Pod;
use crate::support::needs::{Test, tests};
use crate::tokens::{email, proxy};
use crate::world::World;

pub const TESTS: &[Test] =
    tests![the_trees_of_pods_have_their_own_accounts, the_trees_of_pods_without_accounts_have_none];

/// Paths that a pod reads, and the place of the accounts in their trees.
const TREES: [(&str, &str); 3] = [
    ("/computeMetadata/v1/?recursive=true", "/instance/serviceAccounts"),
    ("/computeMetadata/v1/instance/?recursive=true", "/serviceAccounts"),
    ("/computeMetadata/v1/instance/?recursive=true&alt=json", "/serviceAccounts"),
];

const TEXTS: [&str; 2] =
    ["/computeMetadata/v1/?recursive=true&alt=text", "/computeMetadata/v1/instance/?recursive=true&alt=text"];

/// The names of the accounts in all trees of a pod, which are the same in each.
fn accounts(pod: &Arc<Pod>) -> Vec<String> {
    let names = TREES.map(|(tree, place)| {
        let asked = pod.get(tree);
        assert_eq!(asked.status, 200, "{tree}: {}", asked.body);
        assert_of_nobody_else(&asked.body);
        let json: Value = serde_json::from_str(&asked.body).expect("JSON");
        let accounts = json.pointer(place).and_then(Value::as_object).expect("a directory");
        accounts.keys().cloned().collect::<Vec<_>>()
    });
    assert!(names.iter().all(|each| *each == names[0]), "{names:?}");
    names[0].clone()
}

fn assert_of_nobody_else(tree: &str) {
    assert!(!tree.contains(DEFAULT_ACCOUNT), "the node's account: {tree}");
    assert!(!tree.contains(&format!("{SECRET_MARKER}-kube-env")), "a concealed value: {tree}");
}

fn the_trees_of_pods_have_their_own_accounts() {
    let (world, mut api, google) = world_with_google();
    for (account, annotation) in [("one", Some(email("one"))), ("two", Some(email("two"))), ("plain", None)] {
        api.create_account("team-0", account);
        if let Some(annotation) = annotation {
            api.annotate_account("team-0", account, "iam.gke.io/gcp-service-account", &annotation);
            google.bind(Workload::new("team-0", account), &annotation);
        }
    }
    api.create_account("team-0", "odd");
    api.annotate_account("team-0", "odd", "iam.gke.io/gcp-service-account", "nonsense");
    let _proxy = proxy(&world, &google, &[]);
    for (number, account, own) in [
        (0, "one", Some(email("one"))),
        (1, "two", Some(email("two"))),
        (2, "plain", Some(POOL.to_owned())),
        (3, "odd", None),
    ] {
        let pod = Pod::start(&world.node, api.create_pod("team-0", account, account, NODE), world.address(number));
        let mut expected: Vec<String> = own.iter().flat_map(|own| [own.clone(), "default".to_owned()]).collect();
        expected.sort();
        assert_eq!(accounts(&pod), expected, "{account}");
        for text in TEXTS {
            let asked = pod.get(text);
            assert_eq!(asked.status, 200, "{text}: {}", asked.body);
            assert_of_nobody_else(&asked.body);
            let lines = asked.body.lines().filter(|line| line.contains("service-accounts/default/email "));
            let emails: Vec<_> = lines.filter_map(|line| line.rsplit(' ').next()).collect();
            assert_eq!(emails, own.iter().collect::<Vec<_>>(), "{}", asked.body);
        }
        let project = pod.get("/computeMetadata/v1/project/?recursive=true");
        assert!(project.status == 200 && project.body.contains("\"projectId\""), "{}", project.body);
    }
}

fn the_trees_of_pods_without_accounts_have_none() {
    let (world, mut api) = World::with_account();
    let _proxy = world.proxy(&["--policy=strict"]);
    let pod = world.pod(&mut api, "pod", world.address(0));
    assert_eq!(accounts(&pod), [""; 0]);
    for text in TEXTS {
        let asked = pod.get(text);
        assert!(asked.status == 200 && !asked.body.contains("service-accounts"), "{}", asked.body);
        assert!(asked.body.contains("zone "), "{}", asked.body);
    }
}
