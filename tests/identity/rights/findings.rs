//! The proxy's findings about its credential.

use std::path::Path;

use identity::cluster::rights::{Report, Severity};
use identity::cluster::{Cluster, Credential, Settings};
use serde_json::{Value, json};

use super::{AUDIENCE, eventually};
use crate::kube::{ApiServer, Client, FENCED, KUBELET, NODE, OWN_ACCOUNT, OWN_NODE, STARTUP_TAINT, manifest};

/// An API server, and a token of the proxy's account on [`NODE`].
struct Lab {
    server: ApiServer,
    admin: Client,
    token: String,
}

/// A file below `deploy/components`, an object in it, and a change to that.
type Change<'a> = (&'a str, &'a str, &'a dyn Fn(&mut Value));

impl Lab {
    fn new() -> Self {
        let server = ApiServer::start(None);
        let mut admin = server.admin();
        let token = admin.own_token(NODE);
        Self { server, admin, token }
    }

    /// The findings about the proxy's account, acting as its node or as itself.
    fn of_account(&self, acts_as_node: bool) -> Report {
        let file = self.server.own_account_kubeconfig(self.server.addr(), &self.token, acts_as_node);
        of_kubeconfig(&file, NODE, AUDIENCE)
    }

    fn of_kubelet(&self) -> Report {
        of_kubeconfig(&self.server.node_kubeconfig(self.server.addr()), NODE, AUDIENCE)
    }

    /// Applies a file with a change to the object of this kind.
    fn change(&mut self, (file, kind, change): Change<'_>) {
        for mut object in manifest(file, AUDIENCE).into_iter().filter(|object| object["kind"] == kind) {
            change(&mut object);
            self.admin.put(&object);
        }
    }

    /// Gives the proxy's account more rights: group, resource, verb.
    fn give(&mut self, rights: &[[&str; 3]]) -> [Value; 2] {
        let kind = "rbac.authorization.k8s.io";
        let metadata = json!({"name": "too-much"});
        let rule = |[group, resource, verb]: &[&str; 3]| json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]});
        let rules: Vec<Value> = rights.iter().map(rule).collect();
        let subject = json!({"kind": "ServiceAccount", "namespace": "kube-system", "name": OWN_ACCOUNT});
        let objects = [
            json!({
                "apiVersion": format!("{kind}/v1"), "kind": "ClusterRole", "metadata": metadata, "rules": rules,
            }),
            json!({
                "apiVersion": format!("{kind}/v1"), "kind": "ClusterRoleBinding", "metadata": metadata,
                "roleRef": {"apiGroup": kind, "kind": "ClusterRole", "name": "too-much"}, "subjects": [subject],
            }),
        ];
        for object in &objects {
            self.admin.put(object);
        }
        objects
    }

    /// Number of tokens issued so far. The proxy must not add to them to find out what it could get.
    fn issued(&mut self) -> u64 {
        // Not JSON, so it is read as text.
        let metrics = self.admin.text("/metrics");
        let counts = metrics.lines().filter(|line| {
            line.starts_with("apiserver_request_total{")
                && [r#"code="201""#, r#"resource="serviceaccounts""#, r#"subresource="token""#]
                    .iter()
                    .all(|label| line.contains(label))
        });
        counts.map(|line| line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).expect("a count")).sum()
    }
}

pub(super) fn of_kubeconfig(file: &Path, node: &str, audience: &str) -> Report {
    let settings =
        Settings { node: node.parse().expect("a name"), credential: Credential::Kubeconfig(file.to_owned()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let cluster = Cluster::connect(&settings).await.expect("a kubeconfig");
        cluster.rights(Some(audience)).await.expect("the API server answers")
    })
}

fn said(report: &Report) -> Vec<String> {
    report.findings.iter().map(ToString::to_string).collect()
}

/// Reviews until there is no finding.
fn eventually_nothing(ask: impl Fn() -> Report) {
    eventually(|| {
        let report = ask();
        if report.findings.is_empty() { Ok(()) } else { Err(said(&report)) }
    });
}

/// Reviews until there is one finding, with this severity and these words.
fn eventually_only(severity: Severity, words: &[&str], ask: impl Fn() -> Report) {
    eventually(|| {
        let report = ask();
        let found = said(&report);
        match &found[..] {
            [one] if report.severity() == Some(severity) && words.iter().all(|word| one.contains(word)) => Ok(()),
            _ => Err(found),
        }
    });
}

pub(super) fn a_way_as_it_is_shipped_lacks_nothing_and_is_not_dangerous() {
    let mut lab = Lab::new();
    let issued = lab.issued();
    assert!(issued > 0, "the account's own token is among them");
    lab.admin.apply(OWN_NODE, AUDIENCE);
    eventually_nothing(|| lab.of_account(true));
    assert_eq!(lab.of_account(true).user, format!("system:serviceaccount:kube-system:{OWN_ACCOUNT}"));
    lab.admin.unapply(OWN_NODE);

    lab.admin.apply(KUBELET, AUDIENCE);
    eventually_nothing(|| lab.of_kubelet());
    assert_eq!(lab.of_kubelet().user, format!("system:node:{NODE}"));
    lab.admin.unapply(KUBELET);

    lab.admin.apply(FENCED, AUDIENCE);
    eventually_only(Severity::Notice, &["the last resort", "every service account"], || lab.of_account(false));
    assert_eq!(lab.issued(), issued, "nothing was minted to find out");
}

pub(super) fn a_right_that_is_missing_is_named() {
    let mut lab = Lab::new();
    for (way, acts_as_node) in [(OWN_NODE, true), (FENCED, false)] {
        lab.admin.apply(way, AUDIENCE);
        let rbac = way[way.len() - 1];
        let role = &manifest(rbac, AUDIENCE)[0];
        let rules = role["rules"].as_array().expect("rules");
        for (at, rule) in rules.iter().enumerate() {
            for verb in rule["verbs"].as_array().expect("verbs") {
                let without = |role: &mut Value| {
                    let verbs = role["rules"][at]["verbs"].as_array_mut().expect("verbs");
                    verbs.retain(|had| had != verb);
                    // A rule without verbs is invalid.
                    if verbs.is_empty() {
                        role["rules"].as_array_mut().expect("rules").remove(at);
                    }
                };
                let of_the_account = |object: &mut Value| {
                    if object["metadata"] == role["metadata"] {
                        without(object);
                    }
                };
                lab.change((rbac, "ClusterRole", &of_the_account));
                let [verb, resource] = [verb, &rule["resources"][0]].map(|text| text.as_str().expect("text"));
                let exact = format!("lacks the verb {verb} for {resource} in the API group {}", rule["apiGroups"][0]);
                let words = [exact.as_str(), OWN_ACCOUNT, component(rbac)];
                eventually(|| {
                    let found = said(&lab.of_account(acts_as_node));
                    let missing: Vec<_> = found.iter().filter(|found| !found.contains("the last resort")).collect();
                    match &missing[..] {
                        [one] if words.iter().all(|word| one.contains(word)) => Ok(()),
                        _ => Err(found),
                    }
                });
            }
        }
        lab.admin.unapply(way);
    }

    // A right that the nodes lack, not the account.
    for way in [OWN_NODE, KUBELET] {
        lab.admin.apply(way, "another-audience");
        let ask = || if way == OWN_NODE { lab.of_account(true) } else { lab.of_kubelet() };
        let words = ["system:nodes", "request-serviceaccounts-token-audience", AUDIENCE, component(way[0])];
        eventually_only(Severity::Missing, &words, ask);
        lab.admin.unapply(way);
    }
    lab.admin.apply(FENCED, "another-audience");
    let words = ["admission policy", "another-audience", "--token-audience"];
    eventually(|| {
        let found = said(&lab.of_account(false));
        let is_named = found.iter().any(|found| words.iter().all(|word| found.contains(word)));
        if is_named && found.len() == 2 { Ok(()) } else { Err(found) }
    });

    let file = lab.server.node_kubeconfig(lab.server.addr());
    let found = said(&of_kubeconfig(&file, "node-9", AUDIENCE));
    assert!(found.len() == 1 && found[0].contains(&format!("{NODE}, but --node-name is node-9")), "{found:?}");
}

/// The folder of a file of a component.
fn component(file: &str) -> &str {
    file.split_once('/').expect("a folder and a file").0
}

pub(super) fn the_fence_is_found_and_so_is_each_hole_in_it() {
    let mut lab = Lab::new();
    let issued = lab.issued();
    lab.admin.apply(&FENCED[1..], AUDIENCE);
    let wide = ["every service account", "for the API server itself", "bound to no pod", "for more than an hour"];
    eventually_only(Severity::Dangerous, &wide, || lab.of_account(false));
    lab.admin.apply(&FENCED[..1], AUDIENCE);
    eventually_only(Severity::Notice, &["the last resort"], || lab.of_account(false));

    // The validations after the first, which is about the requesting token.
    let holes = [(1, "for the API server itself"), (2, "bound to no pod"), (3, "for more than an hour")];
    for (at, hole) in holes {
        let open = |policy: &mut Value| drop(policy["spec"]["validations"].as_array_mut().map(|all| all.remove(at)));
        lab.change((FENCED[0], "ValidatingAdmissionPolicy", &open));
        eventually_only(Severity::Dangerous, &[hole], || lab.of_account(false));
        let said = said(&lab.of_account(false)).remove(0);
        assert_eq!(said.matches(", also ").count(), 1, "{said}");
    }
    let warning = |binding: &mut Value| binding["spec"]["validationActions"] = json!(["Warn"]);
    lab.admin.apply(&FENCED[..1], AUDIENCE);
    lab.change((FENCED[0], "ValidatingAdmissionPolicyBinding", &warning));
    eventually_only(Severity::Dangerous, &wide, || lab.of_account(false));
    assert_eq!(lab.issued(), issued, "nothing was minted to find out");
}

pub(super) fn rights_over_others_are_found() {
    let mut lab = Lab::new();
    lab.admin.apply(OWN_NODE, AUDIENCE);
    eventually_nothing(|| lab.of_account(true));
    let any_node = [
        ["authentication.k8s.io", "nodes", "impersonate:arbitrary-node"],
        ["", "serviceaccounts/token", "impersonate-on:arbitrary-node:create"],
    ];
    let rights: [(&[[&str; 3]], _); 5] = [
        (&[["", "serviceaccounts/token", "create"]], ["tokens of every service account", "the API server itself"]),
        (&[["", "secrets", "get"]], ["every Secret", "the verb get for secrets"]),
        (&[["", "users", "impersonate"]], ["act as other users", "the verb impersonate"]),
        (&[["", "serviceaccounts", "impersonate"]], ["or service accounts", "the verb impersonate"]),
        (&any_node, ["act as any node", "impersonate:arbitrary-node"]),
    ];
    for (rights, words) in rights {
        let given = lab.give(rights);
        eventually_only(Severity::Dangerous, &words, || lab.of_account(true));
        for object in &given {
            lab.admin.remove(object);
        }
        eventually_nothing(|| lab.of_account(true));
    }
    // The startup taint's right is limited by its policy.
    lab.admin.apply(&STARTUP_TAINT[1..], "");
    eventually_only(Severity::Dangerous, &["taints of every node", "the verb patch for nodes"], || {
        lab.of_account(true)
    });
    lab.admin.apply(&STARTUP_TAINT[..1], "");
    eventually_nothing(|| lab.of_account(true));
    let node = lab.admin.patiently("GET", &format!("/api/v1/nodes/{NODE}"), None).body;
    assert_eq!(node["metadata"]["annotations"], Value::Null, "nothing was changed to find out");

    // An administrator may do all of that, and nothing limits that.
    let report = of_kubeconfig(&lab.server.admin_kubeconfig(), NODE, AUDIENCE);
    let found = said(&report);
    assert_eq!((found.len(), report.severity()), (5, Some(Severity::Dangerous)), "{found:#?}");
}

pub(super) fn nodes_that_are_not_confined_are_found() {
    let mut lab = Lab::new();
    lab.server.restart_with_free_nodes();
    lab.admin.apply(KUBELET, AUDIENCE);
    let words = ["bound to no pod", "NodeRestriction"];
    eventually_only(Severity::Dangerous, &words, || lab.of_kubelet());
    lab.admin.apply(OWN_NODE, AUDIENCE);
    eventually_only(Severity::Dangerous, &words, || lab.of_account(true));
}
