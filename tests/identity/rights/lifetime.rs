//! Lifetime of the tokens that a node gets for Google: unlimited, unless `identity-short-tokens` limits it.

use serde_json::{Value, json};

use super::findings::of_kubeconfig;
use super::{AUDIENCE, Way, ask, bound, eventually};
use crate::kube::{ApiServer, Client, NODE, PodObject, SHORT_TOKENS};

/// A hundred years.
const CENTURY: u64 = 3_153_600_000;

fn spec(pod: &PodObject, audiences: &[&str], seconds: u64) -> Value {
    let mut spec = bound(pod, AUDIENCE);
    spec["audiences"] = json!(audiences);
    spec["expirationSeconds"] = json!(seconds);
    spec
}

/// Lifetime of a token according to the API server, in seconds. It forgets a policy of an earlier way a moment later.
fn life(client: &mut Client, pod: &PodObject, seconds: u64) -> u64 {
    let target = format!("/api/v1/namespaces/{}/serviceaccounts/{}/token", pod.namespace, pod.account);
    eventually(|| {
        let answer = client.patiently("POST", &target, Some(&json!({"spec": spec(pod, &[AUDIENCE], seconds)})));
        answer.body["spec"]["expirationSeconds"].as_u64().ok_or(answer)
    })
}

pub(super) fn a_node_gets_tokens_for_a_century_unless_a_policy_bounds_them() {
    let server = ApiServer::start(None);
    let mut admin = server.admin();
    let token = admin.own_token(NODE);
    admin.create_account("a", "app");
    let pod = admin.create_pod("a", "own", "app", NODE);
    for way in [Way::OwnNode, Way::Kubelet] {
        let mut client = way.client(&server, &token);
        way.apply(&mut admin, &mut client, &pod, AUDIENCE);
        assert_eq!(life(&mut client, &pod, CENTURY), CENTURY, "{way:?}");

        admin.apply(SHORT_TOKENS, AUDIENCE);
        eventually(|| match ask(&mut client, &pod, &spec(&pod, &[AUDIENCE], CENTURY)) {
            422 => Ok(()),
            status => Err((way, status)),
        });
        for (what, audiences, seconds, status) in [
            ("what the proxy asks for", &[AUDIENCE][..], 3600, 201),
            ("a second more", &[AUDIENCE], 3601, 422),
            // The policy would refuse it; the API server lets nodes request one audience only.
            ("for two audiences", &[AUDIENCE, AUDIENCE], 3601, 403),
            // The kubelet mounts such tokens for an hour and some seconds.
            ("for the API server", &[], 3607, 201),
        ] {
            assert_eq!(ask(&mut client, &pod, &spec(&pod, audiences, seconds)), status, "{way:?}: {what}");
        }
        // The proxy distinguishes it from a missing right.
        let kubeconfig = match way {
            Way::OwnNode => server.own_account_kubeconfig(server.addr(), &token, true),
            Way::Kubelet | Way::Fenced => server.node_kubeconfig(server.addr()),
        };
        let found = of_kubeconfig(&kubeconfig, NODE, AUDIENCE).findings;
        assert!(found.is_empty(), "{way:?}: {found:?}");
        // The policy does not concern clients that are no nodes.
        assert_eq!(ask(&mut admin, &pod, &spec(&pod, &[AUDIENCE], CENTURY)), 201);
        admin.unapply(SHORT_TOKENS);
        admin.unapply(way.files());
    }
}
