//! The rights of the credentials of `deploy/components/identity-*`, with the API server's own answer for each, and the
//! proxy's findings about them.

mod accounts;
pub mod files;
mod findings;
mod lifetime;
mod matrix;
mod own;
mod race;

use serde_json::{Value, json};

use crate::kube::{ApiServer, Client, FENCED, KUBELET, NODE, OWN_NODE, PodObject, pause};
use crate::support::needs::{Test, tests};
use accounts::before_1_34_a_node_reads_accounts_with_one_right_more;
use findings::{
    a_right_that_is_missing_is_named, a_way_as_it_is_shipped_lacks_nothing_and_is_not_dangerous,
    nodes_that_are_not_confined_are_found, rights_over_others_are_found, the_fence_is_found_and_so_is_each_hole_in_it,
};
use lifetime::a_node_gets_tokens_for_a_century_unless_a_policy_bounds_them;
use matrix::each_way_mints_what_its_file_says;
use own::the_proxy_serves_pods_with_its_own_account_either_way;
use race::pods_that_were_just_created_elsewhere_get_no_tokens;

pub const TESTS: &[Test] = tests![
    each_way_mints_what_its_file_says,
    a_node_gets_tokens_for_a_century_unless_a_policy_bounds_them,
    pods_that_were_just_created_elsewhere_get_no_tokens,
    a_way_as_it_is_shipped_lacks_nothing_and_is_not_dangerous,
    a_right_that_is_missing_is_named,
    the_fence_is_found_and_so_is_each_hole_in_it,
    rights_over_others_are_found,
    nodes_that_are_not_confined_are_found,
    before_1_34_a_node_reads_accounts_with_one_right_more,
    the_proxy_serves_pods_with_its_own_account_either_way,
];

/// The audience of pods' tokens.
const AUDIENCE: &str = "shop.svc.id.goog";

/// The other node.
const ELSEWHERE: &str = "node-2";

/// A credential, by the component that gives it its rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    OwnNode,
    Kubelet,
    Fenced,
}

const WAYS: [Way; 3] = [Way::OwnNode, Way::Kubelet, Way::Fenced];

impl Way {
    fn files(self) -> &'static [&'static str] {
        match self {
            Self::OwnNode => OWN_NODE,
            Self::Kubelet => KUBELET,
            Self::Fenced => FENCED,
        }
    }

    /// A thief's client on [`NODE`], with a token of the account that is bound to its pod there.
    fn client(self, server: &ApiServer, token: &str) -> Client {
        match self {
            Self::OwnNode => server.own_account(token, NODE),
            Self::Kubelet => server.node(),
            Self::Fenced => server.own_account_itself(token),
        }
    }

    /// Gives it its rights, for this audience, and waits until they are in force.
    fn apply(self, admin: &mut Client, client: &mut Client, own: &PodObject, audience: &str) {
        admin.apply(self.files(), audience);
        eventually(|| match ask(client, own, &bound(own, audience)) {
            201 => Ok(()),
            status => Err(status),
        });
        // The policy takes effect about a second after it was created. Until then, what it forbids is minted.
        eventually(|| match ask(client, own, &json!({"audiences": [audience], "expirationSeconds": 3600})) {
            403 | 422 => Ok(()),
            status => Err(status),
        });
    }
}

/// A request for a token that is bound to a pod, as the proxy sends it.
fn bound(pod: &PodObject, audience: &str) -> Value {
    let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid});
    json!({"audiences": [audience], "expirationSeconds": 3600, "boundObjectRef": reference})
}

/// The status of a request for a token of a pod's account.
fn ask(client: &mut Client, pod: &PodObject, spec: &Value) -> u16 {
    let target = format!("/api/v1/namespaces/{}/serviceaccounts/{}/token", pod.namespace, pod.account);
    let answer = client.patiently("POST", &target, Some(&json!({"spec": spec})));
    let has_token = answer.body["status"]["token"].is_string();
    assert_eq!(has_token, answer.status == 201, "{answer:?}");
    answer.status
}

/// Retries until it succeeds. The API server's caches lag by moments, and what it has allowed once it allows for seconds.
pub fn eventually<T, E: std::fmt::Debug>(mut is_so: impl FnMut() -> Result<T, E>) -> T {
    let began = tokio::time::Instant::now();
    loop {
        match is_so() {
            Ok(so) => return so,
            Err(error) => assert!(began.elapsed().as_secs() < 60, "not within a minute: {error:#?}"),
        }
        pause(std::time::Duration::from_millis(100));
    }
}
