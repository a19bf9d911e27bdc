//! Each credential against all requests that a thief would send.

use serde_json::{Value, json};

use super::{AUDIENCE, ELSEWHERE, WAYS, Way, ask, bound, eventually};
use crate::kube::{ApiServer, Client, NODE, PodObject};

/// The pods of two nodes.
struct Pods {
    /// Of the account `app`, here and elsewhere. The one here has a volume with a token for the API server.
    own: PodObject,
    foreign: PodObject,
    /// Of the account `app`, here, without such a volume.
    plain: PodObject,
    /// Of an account that has no pod here.
    stranger: PodObject,
    /// `recreated` is another pod under the name of this one.
    before: PodObject,
    recreated: PodObject,
    deleted: PodObject,
}

impl Pods {
    fn new(admin: &mut Client) -> Self {
        for account in ["app", "stranger"] {
            admin.create_account("a", account);
        }
        let before = admin.create_pod("a", "recreated", "app", NODE);
        let deleted = admin.create_pod("a", "deleted", "app", NODE);
        admin.delete_pod(&before, 0);
        admin.delete_pod(&deleted, 0);
        Self {
            own: admin.create_pod("a", "own", "app", NODE),
            foreign: admin.create_pod("a", "foreign", "app", ELSEWHERE),
            plain: admin.create_pod_with("a", "plain", "app", NODE, false),
            stranger: admin.create_pod("a", "stranger", "stranger", ELSEWHERE),
            recreated: admin.create_pod("a", "recreated", "app", NODE),
            before,
            deleted,
        }
    }
}

/// A request, and the status that each way gets: own node, kubelet, fenced.
type Row = (&'static str, fn(&mut Client, &Pods) -> u16, [u16; 3]);

const ROWS: &[Row] = &[
    ("token of a pod here", |client, pods| ask(client, &pods.own, &bound(&pods.own, AUDIENCE)), [201; 3]),
    (
        "token of a pod that was recreated",
        |client, pods| ask(client, &pods.recreated, &bound(&pods.recreated, AUDIENCE)),
        [201, 201, 201],
    ),
    (
        "token of a pod elsewhere",
        |client, pods| ask(client, &pods.foreign, &bound(&pods.foreign, AUDIENCE)),
        [403, 403, 201],
    ),
    (
        "of an account without a pod here",
        |client, pods| ask(client, &pods.stranger, &bound(&pods.stranger, AUDIENCE)),
        [403, 403, 201],
    ),
    (
        "for another audience",
        |client, pods| ask(client, &pods.own, &bound(&pods.own, "https://other.example")),
        [403, 403, 422],
    ),
    (
        "for the API server; the pod mounts such a token",
        |client, pods| ask(client, &pods.own, &for_the_api_server(&pods.own)),
        [201, 201, 422],
    ),
    (
        "for the API server; the pod mounts none",
        |client, pods| ask(client, &pods.plain, &for_the_api_server(&pods.plain)),
        [403, 403, 422],
    ),
    (
        "bound to no pod",
        |client, pods| ask(client, &pods.own, &with(&pods.own, "boundObjectRef", Value::Null)),
        [403, 403, 422],
    ),
    (
        "bound to the node",
        |client, pods| ask(client, &pods.own, &with(&pods.own, "boundObjectRef", a("Node", NODE))),
        [403, 403, 422],
    ),
    (
        "without the pod's UID",
        |client, pods| ask(client, &pods.own, &with(&pods.own, "boundObjectRef", a("Pod", "own"))),
        [403, 403, 422],
    ),
    (
        "with another pod's UID",
        |client, pods| {
            let wrong = PodObject { uid: pods.foreign.uid.clone(), ..pods.own.clone() };
            ask(client, &wrong, &bound(&wrong, AUDIENCE))
        },
        [403, 403, 409],
    ),
    (
        "with the UID before the pod was recreated",
        |client, pods| ask(client, &pods.before, &bound(&pods.before, AUDIENCE)),
        [403, 403, 409],
    ),
    ("of a pod that was deleted", |client, pods| ask(client, &pods.deleted, &bound(&pods.deleted, AUDIENCE)), [404; 3]),
    (
        "for ten hours",
        |client, pods| ask(client, &pods.own, &with(&pods.own, "expirationSeconds", json!(36_000))),
        [201, 201, 422],
    ),
    ("the pods here", |client, _| client.pods_of(NODE).status, [200; 3]),
    ("the pods elsewhere", |client, _| client.pods_of(ELSEWHERE).status, [403, 403, 200]),
    ("all pods", |client, _| get(client, "/api/v1/pods"), [403, 403, 200]),
    ("an account with a pod here", |client, _| get(client, "/api/v1/namespaces/a/serviceaccounts/app"), [200; 3]),
    ("an account without", |client, _| get(client, "/api/v1/namespaces/a/serviceaccounts/stranger"), [403, 403, 200]),
    ("all accounts", |client, _| get(client, "/api/v1/serviceaccounts"), [403; 3]),
    ("a Secret of no pod here", |client, _| get(client, "/api/v1/namespaces/a/secrets/secret"), [403; 3]),
    ("all Secrets", |client, _| get(client, "/api/v1/secrets"), [403; 3]),
    ("another node", |client, _| get(client, &format!("/api/v1/nodes/{ELSEWHERE}")), [403; 3]),
];

fn get(client: &mut Client, target: &str) -> u16 {
    client.patiently("GET", target, None).status
}

fn a(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "name": name})
}

fn with(pod: &PodObject, field: &str, value: Value) -> Value {
    let mut spec = bound(pod, AUDIENCE);
    spec[field] = value;
    spec
}

fn for_the_api_server(pod: &PodObject) -> Value {
    with(pod, "audiences", json!([]))
}

pub(super) fn each_way_mints_what_its_file_says() {
    let server = ApiServer::start(None);
    let mut admin = server.admin();
    let token = admin.own_token(NODE);
    let pods = Pods::new(&mut admin);
    admin.create("/api/v1/nodes", &json!({"metadata": {"name": ELSEWHERE}}));
    admin.create("/api/v1/namespaces/a/secrets", &json!({"metadata": {"name": "secret"}}));

    let table = WAYS.map(|way| {
        let mut client = way.client(&server, &token);
        way.apply(&mut admin, &mut client, &pods.own, AUDIENCE);
        let statuses: Vec<u16> = ROWS.iter().map(|(_, ask, _)| ask(&mut client, &pods)).collect();
        of_no_use_elsewhere(way, &server, &mut admin, &token, &pods);
        admin.unapply(way.files());
        statuses
    });
    println!("{:50} {:>8} {:>8} {:>8}", "", "own node", "kubelet", "fenced");
    for (at, (what, _, expected)) in ROWS.iter().enumerate() {
        let got = [table[0][at], table[1][at], table[2][at]];
        println!("{what:50} {:>8} {:>8} {:>8}", got[0], got[1], got[2]);
        assert_eq!(got, *expected, "{what}");
    }
}

/// A token of the account that is bound to no pod is worth nothing, nor is any credential in the name of another node.
fn of_no_use_elsewhere(way: Way, server: &ApiServer, admin: &mut Client, token: &str, pods: &Pods) {
    let unbound = admin.own_token_with(&json!({"expirationSeconds": 3600}));
    let spec = bound(&pods.own, AUDIENCE);
    let (mut as_the_other, mut of_no_pod, refused) = match way {
        Way::OwnNode => (server.own_account(token, ELSEWHERE), server.own_account(&unbound, NODE), 403),
        // It has rights without acting as a node, and none to act as one.
        Way::Fenced => (server.own_account(token, NODE), server.own_account_itself(&unbound), 422),
        Way::Kubelet => (server.own_account(token, NODE), server.own_account_itself(&unbound), 403),
    };
    // The account's earlier rights as its node are remembered for some seconds.
    eventually(|| match ask(&mut as_the_other, &pods.own, &spec) {
        403 => Ok(()),
        status => Err((way, status)),
    });
    assert_eq!(ask(&mut of_no_pod, &pods.own, &spec), refused, "{way:?}");
    if way == Way::OwnNode {
        assert_eq!(ask(&mut as_the_other, &pods.foreign, &bound(&pods.foreign, AUDIENCE)), 403);
    }
}
