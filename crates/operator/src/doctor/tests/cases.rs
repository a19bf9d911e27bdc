//! [`Case`]: a broken set-up. Those of Kubernetes and the node.

use super::api::Ask;
use super::ward::{Kind, Ward};
use crate::doctor::{Step, Whose};
use identity::AccountName;
use mock::google::Authority;
use serde_json::json;

/// A broken set-up.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) breaks: fn(&mut Ward),
    pub(super) step: Step,
    /// Parts of the sentence.
    pub(super) seen: &'static str,
    /// A part of the commands, or of the advice.
    pub(super) todo: &'static str,
}

/// A set-up with a provider.
pub(super) fn case(
    name: &'static str,
    breaks: fn(&mut Ward),
    step: Step,
    seen: &'static str,
    todo: &'static str,
) -> Case {
    Case { name, kind: Kind::Provider, breaks, step, seen, todo }
}

pub(super) fn refuse(ward: &Ward, ask: Ask, code: u16, message: &'static str) {
    ward.api.change(|state| {
        state.refuses.insert(ask, (code, message));
    });
}

/// Refusals of the API server have its own words.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn of_kubernetes() -> Vec<Case> {
    vec![
        case(
            "API server away",
            |ward| ward.connect_to("127.0.0.1:9"),
            Step::ApiServer,
            "the API server is not reached from the node node-1",
            "kubectl get --raw /readyz",
        ),
        case(
            "API server with a certificate of another authority",
            |ward| ward.connect_by_tls(Authority::ANOTHER.pem, "127.0.0.1"),
            Step::ApiServer,
            "the API server has a certificate that is of an authority that is not trusted",
            "the authority of this cluster (certificate-authority)",
        ),
        case(
            "API server with a certificate of another name",
            |ward| ward.connect_by_tls(ward.google.ca_pem(), "kubernetes.invalid"),
            Step::ApiServer,
            "the API server has a certificate that is for another name",
            "as its certificate does (server, or tls-server-name)",
        ),
        case(
            "API server without TLS",
            |ward| ward.connect(&json!({"server": format!("https://{}", ward.api.addr)})),
            Step::ApiServer,
            "the API server answers, but does not speak TLS (HTTPS)",
            "check what listens there",
        ),
        case(
            "kubeconfig missing",
            |ward| ward.settings.cluster.credential = identity::cluster::Credential::Kubeconfig("/none".into()),
            Step::ApiServer,
            "kubeconfig /none: ",
            "correct the kubeconfig",
        ),
        case(
            "credential expired",
            |ward| refuse(ward, Ask::User, 401, "Unauthorized"),
            Step::ApiServer,
            "the API server does not accept the credential",
            "give a kubeconfig whose certificate or token is valid",
        ),
        case(
            "kubeconfig of another node",
            |ward| ward.api.change(|state| state.user = "system:node:node-2"),
            Step::ApiServer,
            "the kubeconfig is that of the node node-2, and --node-name is node-1",
            "kubectl get nodes",
        ),
        case(
            "no right to list pods",
            |ward| {
                refuse(
                    ward,
                    Ask::Pods,
                    403,
                    r#"pods is forbidden: User "x" cannot list resource "pods" in API group """#,
                );
            },
            Step::Pods,
            "the pods of node-1 cannot be listed: system:serviceaccount:kube-system:gce-metadata-proxy may not list pods",
            "give the kubeconfig of this node's own kubelet",
        ),
        case(
            "no right to act as the node",
            |ward| {
                refuse(
                    ward,
                    Ask::Pods,
                    403,
                    r#"pods is forbidden: User "x" cannot impersonate-on:associated-node:list resource "pods""#,
                );
            },
            Step::Pods,
            "may not list pods in the name of its node",
            r#""resources":["nodes"],"verbs":["impersonate:associated-node"]"#,
        ),
        case(
            "no right, and nobody says who it is",
            |ward| {
                refuse(ward, Ask::User, 403, "forbidden");
                refuse(ward, Ask::Pods, 403, r#"pods is forbidden: User "system:serviceaccount:a:b" cannot list"#);
            },
            Step::Pods,
            "the pods of node-1 cannot be listed: the credential may not list pods",
            "give the kubeconfig of this node's own kubelet",
        ),
        case(
            "a cluster before 1.36",
            |ward| {
                refuse(
                    ward,
                    Ask::Pods,
                    403,
                    r#"users "system:node:node-1" is forbidden: User "x" cannot impersonate resource "users""#,
                );
            },
            Step::Pods,
            "this cluster lets no account act as its node",
            "give the kubelet's own kubeconfig (--kubeconfig)",
        ),
        case(
            "impersonation rule missing",
            |ward| {
                refuse(
                    ward,
                    Ask::Token,
                    403,
                    r#"serviceaccounts "checkout" is forbidden: cannot impersonate-on:associated-node:create"#,
                );
            },
            Step::Token,
            "may not create serviceaccounts/token in the name of its node",
            r#""resources":["serviceaccounts/token"],"verbs":["impersonate-on:associated-node:create"]"#,
        ),
        case(
            "account not readable",
            |ward| refuse(ward, Ask::Account, 403, r#"serviceaccounts "checkout" is forbidden: cannot get"#),
            Step::Account,
            "the service account shop/checkout cannot be read: ",
            "give the kubeconfig of this node's own kubelet",
        ),
        case(
            "account deleted",
            |ward| {
                refuse(ward, Ask::Account, 404, r#"serviceaccounts "checkout" not found"#);
                refuse(ward, Ask::Token, 404, r#"serviceaccounts "checkout" not found"#);
            },
            Step::Account,
            "the service account shop/checkout was deleted",
            "kubectl create serviceaccount checkout --namespace=shop",
        ),
        case(
            "no pod of the account here",
            |ward| ward.whose = Whose::Account(AccountName::parse("shop/orders").expect("a name")),
            Step::Pods,
            "no pod of shop/orders with a network of its own runs here",
            "kubectl get pods --namespace=shop --field-selector=spec.serviceAccountName=orders --output=wide",
        ),
        case(
            "pod elsewhere",
            |ward| ward.whose = Whose::Pod(AccountName::parse("shop/orders-1").expect("a name")),
            Step::Pods,
            "no pod shop/orders-1 runs here",
            "--field-selector=metadata.name=orders-1",
        ),
        case(
            "pods with the node's network only",
            |ward| ward.api.change(|state| state.host_network = true),
            Step::Pods,
            "none has a service account and a network of its own",
            "name one there",
        ),
        case(
            "audience not granted",
            |ward| {
                refuse(
                    ward,
                    Ask::Token,
                    403,
                    r#"serviceaccounts "checkout" is forbidden: audience "x" not found in pod spec volume, system:node:node-1 is not authorized to request tokens for this audience"#,
                );
            },
            Step::Token,
            "nodes may not ask for tokens with the audience //iam.googleapis.com/projects/123/",
            r#""verbs":["request-serviceaccounts-token-audience"]"#,
        ),
        case(
            "/proc with hidepid",
            |ward| ward.proc.end(1),
            Step::Proc,
            "hides the processes of other users (mount option hidepid)",
            "kubectl debug node/node-1 -it --profile=sysadmin --image=busybox -- chroot /host sh -c 'mount -o remount,hidepid=0 /proc'",
        ),
        case(
            "/proc not mounted",
            |ward| ward.settings.host_proc = "/none".into(),
            Step::Proc,
            "/none cannot be read",
            "mount the node's /proc read-only",
        ),
    ]
}
