//! Judges the API server's answers about the credential, pods and the account.

use std::time::Duration;

use http::StatusCode;

use super::time;
use crate::doctor::commands;
use crate::doctor::patient::{Patient, Unfit};
use crate::doctor::report::{Finding, Step, Tried};
use identity::cluster::{
    ACCOUNT_PREFIX, Acting, BadCertificate, Credential, Failure, NODE_PREFIX, RequestError, Settings, TlsFailure,
    TokenRequestError, User,
};
use identity::pods::{ProcError, Scanned};

/// Part of a refusal to act as the node.
const IMPERSONATION: &str = "impersonat";

/// Part of a refusal to an account that has no pod on the node.
const NO_POD: &str = "no relationship found between node";

/// Part of a refusal by a cluster in which accounts cannot act as their nodes at all.
const LEGACY_IMPERSONATION: &str = "cannot impersonate resource";

/// The user that the API server identifies the credential as.
pub(in crate::doctor) fn api_server(server: &str, settings: &Settings, user: &Result<User, RequestError>) -> Finding {
    let tried = Step::ApiServer.trying(format!("API server {}", server.trim_end_matches('/')).trim_end().to_owned());
    let node = &settings.node;
    let error = match user {
        Ok(user) => return credential(&tried, settings, user),
        Err(error) => error,
    };
    match error.failure() {
        Failure::Refused(StatusCode::UNAUTHORIZED) => {
            let finding = tried.trouble("the API server does not accept the credential").saying(error.to_string());
            match settings.credential {
                Credential::Kubeconfig(_) => finding.advising(
                    "give a kubeconfig whose certificate or token is valid; the kubelet's own is renewed by the kubelet",
                ),
                Credential::OwnAccount(_) => finding
                    .advising("the pod's service account was deleted, or its token has expired: start the pod again")
                    .running("kubectl rollout restart daemonset/gce-metadata-proxy --namespace=kube-system"),
            }
        }
        // It accepts the credential, but does not know this request or does not allow it.
        Failure::Refused(StatusCode::NOT_FOUND | StatusCode::FORBIDDEN) => {
            tried.ok("it answers, but does not say whose credential this is")
        }
        Failure::Refused(_) | Failure::Invalid | Failure::Expired => tried
            .trouble("this address is not an API server, or the API server fails")
            .saying(error.to_string())
            .looking("kubectl get --raw /readyz"),
        Failure::Cluster => tried
            .trouble(error.to_string())
            .advising("correct the kubeconfig, or the service account of the pod, as it says"),
        Failure::Tls(why) => tls(&tried, settings, why).saying(error.to_string()),
        Failure::Connection | Failure::Silent => tried
            .trouble(format!("the API server is not reached from the node {node}"))
            .saying(error.to_string())
            .advising(
                "if it answers from elsewhere, the way from this node to it is blocked: a network policy, a firewall, or \
                 kube-proxy that is not running here",
            )
            .looking("kubectl get --raw /readyz"),
    }
}

/// There is no TLS with the API server, or another server at its address.
fn tls(tried: &Tried, settings: &Settings, why: TlsFailure) -> Finding {
    let finding = tried.trouble(format!("the API server {why}"));
    let address = match &settings.credential {
        Credential::Kubeconfig(file) => format!("the address and port in {} (server)", file.display()),
        Credential::OwnAccount(_) => "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT".to_owned(),
    };
    match why {
        TlsFailure::Certificate(bad) => certificate(finding, settings, bad),
        TlsFailure::NotTls => finding.advising(format!(
            "{address} must lead to the API server's HTTPS port, usually 443 or 6443; check what listens there"
        )),
        TlsFailure::Incompatible => finding.advising(format!(
            "make the API server accept TLS 1.2 or 1.3 with default ciphers (--tls-cipher-suites), if it is the server at {address}"
        )),
        TlsFailure::Other => finding.advising(format!("check that the server at {address} is the API server, and read its log")),
    }
}

/// The certificate of the API server, or of another server at its address, is not one that the credential trusts.
fn certificate(finding: Finding, settings: &Settings, bad: BadCertificate) -> Finding {
    let clock = "or set this machine's clock right, if it is wrong";
    match (bad, &settings.credential) {
        (BadCertificate::Untrusted, Credential::Kubeconfig(file)) => finding.advising(format!(
            "give {} the authority of this cluster (certificate-authority): that of a new authority if it was replaced; if it is \
             right, something else answers at this address",
            file.display()
        )),
        (BadCertificate::Untrusted, Credential::OwnAccount(_)) => finding.advising(
            "the pod's ca.crt, which is from the ConfigMap kube-root-ca.crt, must have the authority of the API server: start the \
             pod again if it was replaced; if it is right, something else answers at this address",
        ),
        (BadCertificate::Expired, _) => {
            finding.advising(format!("renew the API server's certificate, which affects all of its clients; {clock}"))
        }
        (BadCertificate::NotYetValid, _) => finding.advising(format!("wait until it is valid; {clock}")),
        (BadCertificate::WrongName, Credential::Kubeconfig(file)) => finding.advising(format!(
            "name the server in {} as its certificate does (server, or tls-server-name), or add this name to the certificate",
            file.display()
        )),
        (BadCertificate::WrongName, Credential::OwnAccount(_)) => finding.advising(
            "add the name or address in KUBERNETES_SERVICE_HOST to the API server's certificate, or set it to one that this has",
        ),
        (BadCertificate::Other, _) => {
            finding.advising("see what answers at this address, and replace the certificate if it is the API server's")
        }
    }
}

fn credential(tried: &Tried, settings: &Settings, user: &User) -> Finding {
    let (node, name) = (&settings.node, &user.name);
    let accepted = format!("it accepts the credential, as {name}");
    match (&settings.credential, &user.node, name.strip_prefix(NODE_PREFIX)) {
        (_, _, Some(other)) if other != node.as_str() => tried
            .trouble(format!("the kubeconfig is that of the node {other}, and --node-name is {node}"))
            .advising("give the name of the node that this runs on, as its kubelet knows it")
            .looking("kubectl get nodes"),
        (Credential::OwnAccount(Acting::AsItsNode), Some(other), _) if other != node.as_str() => {
            let seen = format!(
                "this pod runs on the node {other}, and --node-name is {node}; it may act as its own node only"
            );
            tried.trouble(seen).advising("set NODE_NAME in the pod's manifest from spec.nodeName (valueFrom, fieldRef)")
        }
        (Credential::OwnAccount(Acting::AsItsNode), None, _) => tried
            .warning(format!("{accepted}, but does not know of which node: acting as its node needs Kubernetes 1.36"))
            .advising("on older clusters, give the kubelet's own kubeconfig (--kubeconfig)"),
        _ => tried.ok(accepted),
    }
}

/// The credential could not be read within this time.
pub(in crate::doctor) fn slow_credential(waited: Duration) -> Finding {
    let seen = format!("the credential could not be read within {}", time(waited));
    let tried = Step::ApiServer.trying("API server");
    tried
        .trouble(seen)
        .advising("find out why reading the files of the kubeconfig or the service account hangs on the node")
}

/// Whether this node's pods can be listed. `listed` is their number, or the error.
pub(in crate::doctor) fn pods(
    settings: &Settings,
    user: Option<&User>,
    listed: Result<usize, &RequestError>,
) -> Finding {
    let node = &settings.node;
    let tried = Step::Pods.trying(format!("pods of the node {node}"));
    match listed {
        Ok(0) => tried
            .trouble("the API server has none, so no pod can be known; is the node's name right?")
            .looking("kubectl get nodes"),
        Ok(pods) => tried.ok(format!("{pods} can be listed")),
        Err(error) => {
            refused(tried.trouble(format!("the pods of {node} cannot be listed")), settings, "list pods", user, error)
        }
    }
}

/// Why there is no account whose token could be tried.
pub(in crate::doctor) fn nobody(unfit: &Unfit, node: &str) -> Finding {
    let pods_of = |name: &dyn std::fmt::Display| Step::Pods.trying(format!("pods of {name} on {node}"));
    let on = |namespace: &str, selector: &str| {
        format!("kubectl get pods --namespace={namespace} --field-selector={selector} --output=wide")
    };
    match unfit {
        Unfit::Nobody => Step::Pods
            .trying(format!("pods on {node}"))
            .trouble("none has a service account and a network of its own")
            .advising("run this on a node with such a pod, or name one there (--account, --pod)"),
        Unfit::NoPodOf(account) => pods_of(account)
            .trouble(format!(
                "no pod of {account} with a network of its own runs here, and the API server gives this node no token for it"
            ))
            .advising("run this on a node where one runs; pods with hostNetwork: true act as the node")
            .looking(on(account.namespace(), &format!("spec.serviceAccountName={}", account.name()))),
        Unfit::NoPod(pod) => pods_of(pod)
            .trouble(format!("no pod {pod} runs here"))
            .advising("run this on its node")
            .looking(on(pod.namespace(), &format!("metadata.name={}", pod.name()))),
        Unfit::NoNetwork(pod) => pods_of(pod)
            .trouble(format!("the pod {pod} has ended, or has the node's network and acts as the node"))
            .advising("remove hostNetwork: true from its manifest, or name another pod"),
        Unfit::NoAccount(pod) => pods_of(pod)
            .trouble(format!(
                "the pod {pod} has no service account: it is a static pod, which the kubelet reads from a file of the node"
            ))
            .advising("run it as a DaemonSet or Deployment if it needs tokens, or name another pod"),
        Unfit::PassedThrough(account) => pods_of(account)
            .trouble(format!("{account} is listed with --passthrough and acts as the node"))
            .advising("remove it from --passthrough, or name another account (--account)"),
    }
}

/// Whether the account can be read. `Ok(false)` if it does not exist.
pub(in crate::doctor) fn account(
    settings: &Settings,
    patient: &Patient,
    user: Option<&User>,
    found: Result<bool, &RequestError>,
) -> Finding {
    let tried = Step::Account.trying(format!("service account {}", patient.name()));
    let Patient { namespace, account, .. } = patient;
    match found {
        Ok(true) => tried.ok(format!("it can be read; the token of its pod {} is tried", patient.pod)),
        Ok(false) => tried
            .trouble(format!("the service account {} was deleted, and its pods are left behind", patient.name()))
            .running(format!("kubectl create serviceaccount {account} --namespace={namespace}")),
        Err(error) => refused(
            tried.trouble(format!("the service account {} cannot be read", patient.name())),
            settings,
            "get serviceaccounts",
            user,
            error,
        ),
    }
}

/// Whether the Kubernetes token was issued.
pub(in crate::doctor) fn token(
    settings: &Settings,
    patient: &Patient,
    audience: &str,
    user: Option<&User>,
    issued: Result<(), &TokenRequestError>,
) -> Finding {
    let name = patient.name();
    let tried = Step::Token.trying(format!("Kubernetes token of {name} for {audience}"));
    match issued {
        Ok(()) => tried.ok(format!("issued, bound to the pod {}", patient.pod)),
        Err(TokenRequestError::Audience(error)) => {
            let seen = format!("nodes may not ask for tokens with the audience {audience}");
            tried.trouble(seen).saying(words(error)).running(commands::allow_audience(audience))
        }
        Err(TokenRequestError::SponsorGone { message, .. }) => tried
            .trouble(format!("the pod {} is gone from this node meanwhile", patient.pod))
            .saying(message)
            .advising("try again"),
        Err(TokenRequestError::Request(error)) => {
            let finding = tried.trouble(format!("the API server issues no token of {name}"));
            refused(finding, settings, "create serviceaccounts/token", user, error)
        }
    }
}

/// Names the missing right, if that is the cause.
fn refused(finding: Finding, settings: &Settings, right: &str, user: Option<&User>, error: &RequestError) -> Finding {
    let said = words(error);
    let finding = finding.saying(&said);
    if error.failure() != Failure::Refused(StatusCode::FORBIDDEN) {
        return finding
            .advising("the API server or the way to it is at fault; try again, and look at the API server's log");
    }
    if said.contains(NO_POD) {
        return finding.advising(
            "the API server has not noticed yet that the account has a pod here, or the pod is gone: try again",
        );
    }
    if said.contains(LEGACY_IMPERSONATION) {
        let seen = format!("{}: this cluster lets no account act as its node", finding.seen);
        return Finding { seen, ..finding }.advising(
            "it needs Kubernetes 1.36, or 1.35 with the feature gate ConstrainedImpersonation; on older clusters give the kubelet's \
             own kubeconfig (--kubeconfig), with the files that it names",
        );
    }
    let name = user.map_or("the credential", |user| user.name.as_str());
    let account = account_in(name).or_else(|| account_in(&said));
    let seen = if said.contains(IMPERSONATION) {
        format!("{}: {name} may not {right} in the name of its node", finding.seen)
    } else {
        format!("{}: {name} may not {right}", finding.seen)
    };
    let finding = Finding { seen, ..finding };
    // A kubeconfig may name the node to act as. Without, the right to act as it has no effect.
    let acts_as_node = settings.credential == Credential::OwnAccount(Acting::AsItsNode) || said.contains(IMPERSONATION);
    match account {
        Some(_) if settings.credential == Credential::OwnAccount(Acting::AsItself) => finding.advising(
            "apply your overlay or the chart with identity-fenced again, which has this right and the policy that bounds it; \
             with Kubernetes 1.36 use identity-own-node in its place, which needs neither",
        ),
        Some((namespace, account)) if acts_as_node => finding.running(commands::act_as_node(namespace, account)),
        _ => finding.advising(
            "give the kubeconfig of this node's own kubelet (system:node:NODE in the group system:nodes); the API server needs \
             --authorization-mode=Node,RBAC",
        ),
    }
}

/// Namespace and name of the service account in a user name or a refusal.
fn account_in(text: &str) -> Option<(&str, &str)> {
    let (_, name) = text.split_once(ACCOUNT_PREFIX)?;
    name.split(['"', ' ']).next()?.split_once(':')
}

/// The API server's message, if it sent one.
fn words(error: &RequestError) -> String {
    match error {
        RequestError::Refused { status, message, .. } => format!("{} {message}", status.as_u16()),
        error => error.to_string(),
    }
}

/// Whether the node's processes can be read.
pub(in crate::doctor) fn proc(
    dir: &str,
    node: &str,
    scanned: Result<Scanned, &ProcError>,
    pods: Option<usize>,
) -> Finding {
    let tried = Step::Proc.trying(format!("the node's processes in {dir}"));
    let mount = "mount the node's /proc read-only, and name that directory: a hostPath volume with path: /proc, a volumeMount \
                 with readOnly: true, and --host-proc";
    match scanned {
        Ok(Scanned { sandboxes: 0, processes, .. }) if pods.is_some_and(|pods| pods > 0) => tried
            .warning(format!(
                "{processes} processes are seen, and none is of a pod, although pods of this node have networks of their own"
            ))
            .advising(
                "if its pods run in gVisor or Kata Containers, this is as it should be; otherwise the directory is another machine's",
            ),
        Ok(Scanned { sandboxes, processes, .. }) => {
            tried.ok(format!("{processes} processes are seen, of {sandboxes} pods"))
        }
        Err(error) => {
            let finding = tried.trouble(format!("the proxy does not start, because {error}"));
            match error {
                ProcError::Hidden(_) => finding.running(commands::on_node(node, "mount -o remount,hidepid=0 /proc")).advising(
                    "on the node, and in its /etc/fstab or systemd unit, so that it stays; or run the proxy with the group of the \
                     option gid",
                ),
                ProcError::File { .. } => finding.advising("let the proxy read it: SELinux or AppArmor may forbid it"),
                ProcError::Directory { .. } | ProcError::NotProc(_) | ProcError::OfContainer(_) => finding.advising(mount),
            }
        }
    }
}

/// The node's processes could not be read within this time.
pub(in crate::doctor) fn slow_proc(dir: &str, waited: Duration) -> Finding {
    let seen = format!("they could not be read within {}, so pods are known late or never", time(waited));
    Step::Proc
        .trying(format!("the node's processes in {dir}"))
        .trouble(seen)
        .advising("find out why reading /proc hangs on the node (a hung process, or far too few CPUs)")
}
