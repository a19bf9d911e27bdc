//! [`Ward`]: a node, an API server and a Google, which are healthy until a test breaks them.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tokio::time::timeout;

use super::api::{ACCOUNT, Api, NAMESPACE, NODE, POD_UID};
use super::proxy::Proxy;
use crate::doctor::{Deadline, Report, Whose, examine, examine_until};
use identity::Settings;
use identity::cluster::{self, Credential};
use identity::pods::FakeProc;
use identity::pods::owners::Attest;
use identity::workloads::{ClusterUri, Endpoint, Federation, Prefetch, Provider, Trust, WorkloadPool};
use mock::google::{Google, Handle, Pool, Settings as GoogleSettings, Workload};

/// Nothing listens there.
pub(super) const ISSUER: &str = "https://127.0.0.1:9/cluster";
pub(super) const PROVIDER: &str =
    "//iam.googleapis.com/projects/123/locations/global/workloadIdentityPools/my-pool/providers/cluster-1";
pub(super) const CLUSTER: &str =
    "https://container.googleapis.com/v1/projects/shop/locations/europe-west3/clusters/one";
pub(super) const GOOGLE_ACCOUNT: &str = "app@shop.iam.gserviceaccount.com";

/// A server that does not answer.
pub(super) const NOBODY: &str = "https://127.0.0.1:9";

pub(super) fn endpoint(url: &str) -> Endpoint {
    Endpoint::parse(url).expect("a URL")
}

/// What Google trusts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A provider of a pool.
    Provider,
    /// A GKE cluster.
    Gke,
}

/// A node with a pod, an API server and a Google.
pub(super) struct Ward {
    pub(super) api: Api,
    pub(super) google: Handle,
    pub(super) settings: Settings,
    pub(super) whose: Whose,
    pub(super) proc: FakeProc,
    pub(super) proxy: Proxy,
    dir: PathBuf,
}

impl Ward {
    /// All is well, for a linked account.
    pub(super) async fn healthy(kind: Kind, name: &str) -> Self {
        let issuer = if kind == Kind::Gke { CLUSTER } else { ISSUER };
        let api = Api::start(issuer).await;
        let pools = vec![Pool::provider(PROVIDER, ISSUER), Pool::gke("shop.svc.id.goog", CLUSTER)];
        let mut jwks = None;
        api.change(|state| {
            state.annotation = GOOGLE_ACCOUNT;
            jwks = Some(state.issuer.jwks());
        });
        let jwks = jwks.expect("set above");
        let google =
            Google::start(GoogleSettings { pools: pools.clone(), jwks, ..GoogleSettings::new(pools[0].clone()) }).await;
        google.bind(Workload::new(NAMESPACE, ACCOUNT), GOOGLE_ACCOUNT);
        let dir = std::env::temp_dir().join(format!("doctor-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        std::fs::write(dir.join("ca.pem"), google.ca_pem()).expect("a temporary file");
        let proc = FakeProc::new();
        proc.network("pod", &["10.8.0.5"]);
        proc.of_pod(10, 50, POD_UID, "pod");
        let settings = settings(kind, &dir, &google.url(), &proc);
        let ward = Self { api, google, settings, whose: Whose::Any, proc, proxy: Proxy::start().await, dir };
        ward.connect_to(&ward.api.addr.to_string());
        ward
    }

    /// The kubeconfig names this address of an API server.
    pub(super) fn connect_to(&self, addr: &str) {
        self.connect(&json!({"server": format!("http://{addr}"), "insecure-skip-tls-verify": true}));
    }

    /// The kubeconfig names a server that speaks TLS, with a certificate of the fake Google's authority for
    /// `127.0.0.1`, the authority that it trusts, and the name of the server.
    pub(super) fn connect_by_tls(&self, authority: &str, name: &str) {
        let authority = STANDARD.encode(authority);
        let server = self.google.url();
        self.connect(&json!({"server": server, "certificate-authority-data": authority, "tls-server-name": name}));
    }

    pub(super) fn connect(&self, cluster: &serde_json::Value) {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "t", "as": format!("system:node:{NODE}")}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(self.dir.join("kubeconfig"), kubeconfig.to_string()).expect("a temporary file");
    }

    /// Changes what is configured.
    pub(super) fn federation(&mut self) -> &mut Federation {
        self.settings.federation.as_mut().expect("a pool or a provider")
    }

    pub(super) async fn examine(&self) -> Report {
        // A thread that reads files may have to wait for a processor for seconds.
        self.examine_within(Duration::from_secs(300), Duration::from_secs(60)).await
    }

    /// With these limits of all steps, and of each.
    pub(super) async fn examine_within(&self, total: Duration, step: Duration) -> Report {
        examine_until(Deadline::new(total, step), self.proxy.addr, &self.settings, &self.whose).await
    }

    /// Like [`Self::examine`], where something hangs and the limits decide. `None` if nothing ends it.
    pub(super) async fn examine_what_hangs(&self) -> Option<Report> {
        timeout(Duration::from_secs(120), examine(self.proxy.addr, &self.settings, &self.whose)).await.ok()
    }
}

impl Drop for Ward {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub(super) fn trust(kind: Kind) -> Trust {
    match kind {
        Kind::Provider => Trust::Provider(Provider::parse(PROVIDER).expect("a provider")),
        Kind::Gke => {
            let pool = WorkloadPool::parse("shop.svc.id.goog").expect("a pool");
            Trust::Pool(pool, ClusterUri::parse(CLUSTER).expect("a URI"))
        }
    }
}

fn settings(kind: Kind, dir: &std::path::Path, google: &str, proc: &FakeProc) -> Settings {
    let endpoint = endpoint(google);
    let federation = Federation {
        trust: trust(kind),
        token_audience: None,
        sts: endpoint.clone(),
        iam: endpoint,
        google_ca: Some(dir.join("ca.pem")),
        prefetch: Prefetch::default(),
        bound_tokens: false,
    };
    Settings {
        host_proc: proc.dir().to_owned(),
        state_dir: None,
        own_pod: None,
        attest: Attest::default(),
        passthrough: Vec::new(),
        federation: Some(federation),
        cluster: cluster::Settings {
            node: NODE.parse().expect("a name"),
            credential: Credential::Kubeconfig(dir.join("kubeconfig")),
        },
    }
}
