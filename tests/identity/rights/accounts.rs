//! Service accounts, by the kubelet's credential before Kubernetes 1.34.

use identity::cluster::{Cluster, Credential, Settings};

use super::eventually;
use crate::kube::{ApiServer, BEFORE_1_34, NODE};

pub(super) fn before_1_34_a_node_reads_accounts_with_one_right_more() {
    let mut server = ApiServer::start(None);
    server.restart_as_before_1_34();
    let mut admin = server.admin();
    admin.create_account("a", "app");
    admin.create_account("a", "stranger");
    admin.create_pod("a", "own", "app", NODE);
    let kubeconfig = server.node_kubeconfig(server.addr());
    let settings = Settings { node: NODE.parse().expect("a name"), credential: Credential::Kubeconfig(kubeconfig) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let cluster = runtime.block_on(Cluster::connect(&settings)).expect("a kubeconfig");
    let read = |account| runtime.block_on(cluster.service_account("a", account));

    let refused = read("app").expect_err("no right").to_string();
    assert!(refused.contains("403") && refused.contains(BEFORE_1_34[0]), "{refused}");
    admin.apply(BEFORE_1_34, "any");
    eventually(|| read("app").map(|account| assert!(account.is_some())));
    // As the documentation says.
    assert!(read("stranger").expect("it may").is_some());
    assert!(read("nobody").expect("in the API server's words").is_none());
    assert_eq!(server.node().patiently("GET", "/api/v1/serviceaccounts", None).status, 403);
}
