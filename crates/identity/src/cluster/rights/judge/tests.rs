use super::super::{Report, Severity};
use super::*;
use crate::cluster::User;

const ACCOUNT: &str = "system:serviceaccount:kube-system:gce-metadata-proxy";

/// The facts if everything is as the component of this way has it.
fn facts(way: Way) -> Facts {
    let name = if way == Way::Kubelet { "system:node:node-1" } else { ACCOUNT };
    let refused = || Outcome::Refused("no".to_owned());
    let attempts = match way {
        Way::OwnNode | Way::Kubelet => vec![(Attempt::AsNode, Outcome::Passed), (Attempt::UnboundAsNode, refused())],
        Way::Itself => vec![
            (Attempt::AsAsked, Outcome::Passed),
            (Attempt::ForTheApiServer, refused()),
            (Attempt::ForHours, refused()),
            (Attempt::BoundToNoPod, refused()),
        ],
    };
    Facts {
        node: "node-1".parse().expect("a name"),
        has_tokens: true,
        user: User { name: name.to_owned(), node: Some("node-1".to_owned()), pod: None },
        way,
        allowed: needs(way, true),
        attempts,
        change: None,
    }
}

impl Facts {
    fn with(mut self, right: &[Right]) -> Self {
        self.allowed.extend_from_slice(right);
        self
    }

    fn without(mut self, right: Right) -> Self {
        self.allowed.retain(|had| *had != right);
        self
    }

    fn attempt(mut self, attempt: Attempt, outcome: Outcome) -> Self {
        self.attempts.retain(|(made, _)| *made != attempt);
        self.attempts.push((attempt, outcome));
        self
    }

    fn refused(self, attempt: Attempt, message: &str) -> Self {
        self.attempt(attempt, Outcome::Refused(message.to_owned()))
    }
}

fn said(facts: &Facts) -> Vec<String> {
    judge(facts).iter().map(ToString::to_string).collect()
}

/// The text of the only finding.
fn only(facts: &Facts) -> String {
    let said = said(facts);
    let [one] = &said[..] else { panic!("{said:#?}") };
    one.clone()
}

#[test]
fn each_way_is_as_its_component_has_it() {
    assert_eq!(judge(&facts(Way::OwnNode)), []);
    assert_eq!(judge(&facts(Way::Kubelet)), []);
    assert_eq!(judge(&facts(Way::Itself)), [Finding::LastResort]);
}

#[test]
fn changes_to_nodes_must_be_fenced() {
    let changes = |change| Facts { change, ..facts(Way::OwnNode).with(&[PATCH_NODES]) };
    assert_eq!(judge(&changes(Some(Outcome::Refused("a policy".to_owned())))), []);
    assert_eq!(judge(&changes(None)), [], "there is no such node");
    let said = only(&changes(Some(Outcome::Passed)));
    assert!(said.contains("change the labels and taints of every node"), "{said}");
}

#[test]
fn each_right_that_is_missing_is_named() {
    let mut rights = 0;
    for way in [Way::OwnNode, Way::Itself] {
        for right in needs(way, true) {
            rights += 1;
            let facts = facts(way).without(right);
            let findings = judge(&facts);
            let lacks: Vec<_> = findings.iter().filter(|found| found.severity() == Severity::Missing).collect();
            let [Finding::Lack { user, lack: Lack::Right { right: named, way: component } }] = lacks[..] else {
                panic!("{right}: {findings:?}")
            };
            assert_eq!((user.as_str(), *named, *component), (ACCOUNT, right, way.manifest()));
            let said = lacks[0].to_string();
            for part in [ACCOUNT, right.verb, right.resource, &format!("deploy/components/{component}")] {
                assert!(said.contains(part), "{part} is missing from {said}");
            }
        }
    }
    assert_eq!(rights, 9);
}

#[test]
fn what_is_only_for_tokens_is_not_missing_where_pods_have_none() {
    let lacks = |way| {
        let facts = Facts { has_tokens: false, allowed: needs(way, false), attempts: Vec::new(), ..facts(way) };
        judge(&facts)
    };
    assert_eq!(lacks(Way::OwnNode), [Finding::Untried]);
    assert_eq!(lacks(Way::Itself), []);
    assert_eq!(needs(Way::OwnNode, false).len(), 3);
    assert_eq!(needs(Way::Itself, false).len(), 2);
}

#[test]
fn a_fence_with_a_hole_is_none() {
    for (attempt, hole) in [
        (Attempt::ForTheApiServer, "also for the API server itself"),
        (Attempt::BoundToNoPod, "also bound to no pod"),
        (Attempt::ForHours, "also for more than an hour"),
    ] {
        let said = only(&facts(Way::Itself).attempt(attempt, Outcome::Passed));
        assert!(said.starts_with("whoever takes over this node can get tokens of every service account"), "{said}");
        assert!(said.contains(hole) && said.matches(", also ").count() == 1, "{said}");
        assert!(said.contains("identity-own-node") && said.contains("identity-fenced/admission.yaml"), "{said}");
    }
    // No attempt was made, so nothing is known to refuse it.
    let untried = Facts { attempts: Vec::new(), ..facts(Way::Itself) };
    assert_eq!(only(&untried).matches(", also ").count(), 3);
}

#[test]
fn an_account_that_acts_as_its_node_may_not_have_rights_of_its_own_besides() {
    let cluster_wide = facts(Way::OwnNode).with(&[CREATE_TOKENS]);
    assert!(only(&cluster_wide).contains("of every service account of the cluster"));
    let fenced = [Attempt::ForTheApiServer, Attempt::ForHours, Attempt::BoundToNoPod]
        .into_iter()
        .fold(cluster_wide, |facts, attempt| facts.refused(attempt, "denied request"));
    assert_eq!(judge(&fenced), [Finding::LastResort]);
}

#[test]
fn rights_that_lead_to_the_tokens_of_others_are_dangerous() {
    for way in [Way::OwnNode, Way::Kubelet] {
        let any_node = facts(way).with(&ACT_AS_ANY_NODE);
        assert_eq!(judge(&any_node), [Finding::Danger(Danger::ActsAsAnyNode)]);
        for right in [ACT_AS_USERS, ACT_AS_ACCOUNTS] {
            assert_eq!(judge(&facts(way).with(&[right])), [Finding::Danger(Danger::ActsAsOthers)]);
        }
        assert_eq!(judge(&facts(way).with(&[GET_SECRETS])), [Finding::Danger(Danger::AllSecrets)]);
        // One of the two alone has no effect.
        for half in ACT_AS_ANY_NODE {
            assert_eq!(judge(&facts(way).with(&[half])), []);
        }
    }
}

#[test]
fn a_node_is_confined_by_what_refuses_it_not_by_rbac() {
    assert_eq!(judge(&facts(Way::Kubelet).with(&[CREATE_TOKENS])), []);
    let open = facts(Way::Kubelet).attempt(Attempt::UnboundAsNode, Outcome::Passed);
    assert!(only(&open).contains("NodeRestriction"));
}

#[test]
fn what_was_not_tried_is_not_called_confined() {
    let untried = Facts { attempts: Vec::new(), ..facts(Way::Kubelet) };
    assert_eq!(judge(&untried), [Finding::Untried]);
    assert_eq!(judge(&untried.with(&[GET_SECRETS])), [Finding::Danger(Danger::AllSecrets)]);
}

#[test]
fn what_refuses_tokens_is_named() {
    let audience =
        "audience \"a\" not found in pod spec volume, system:node:node-1 is not authorized to request tokens";
    for (way, attempt, message, parts) in [
        (Way::OwnNode, Attempt::AsNode, audience, ["system:nodes", "deploy/components/identity-own-node"]),
        (
            Way::Kubelet,
            Attempt::AsNode,
            audience,
            ["request-serviceaccounts-token-audience", "deploy/components/identity-kubelet"],
        ),
        (Way::OwnNode, Attempt::AsNode, "cannot impersonate resource \"users\"", ["1.36", "ConstrainedImpersonation"]),
        (Way::OwnNode, Attempt::AsNode, "a webhook", ["pods get none", "a webhook"]),
    ] {
        let said = only(&facts(way).refused(attempt, message));
        for part in parts.into_iter().chain([message]) {
            assert!(said.contains(part), "{part} is missing from {said}");
        }
    }
    let findings = judge(&facts(Way::Itself).refused(Attempt::AsAsked, "only for the audience b"));
    let report = Report { user: ACCOUNT.to_owned(), findings };
    assert_eq!(report.severity(), Some(Severity::Missing));
    assert!(report.findings[0].to_string().contains("only for the audience b"));
}

#[test]
fn a_credential_of_another_node_explains_all_else() {
    for way in [Way::OwnNode, Way::Kubelet] {
        let mut other = facts(way).refused(Attempt::AsNode, "cannot impersonate-on:arbitrary-node:create");
        other.user.node = Some("node-2".to_owned());
        let said = only(&other);
        assert!(said.contains("node-2, but --node-name is node-1"), "{said}");
    }
    let mut unbound = facts(Way::OwnNode);
    unbound.user.node = None;
    assert!(only(&unbound).contains("names no node"));
    // An administrator's kubeconfig names no node.
    let mut person = facts(Way::Itself);
    person.user.node = None;
    assert_eq!(judge(&person), [Finding::LastResort]);
}
