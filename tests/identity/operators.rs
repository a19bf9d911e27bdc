//! Operators see pods, and a pod gets nothing of the node's accounts.

use std::sync::Arc;

use crate::kube::NODE;
use crate::pod::{Asked, Pod};
use crate::process::{BINARY, Process};
use crate::support::needs::{Test, tests};
use crate::world::World;
use telemetry::table::TABLE;

pub const TESTS: &[Test] = tests![pods_are_shown_and_get_nothing_of_the_nodes_accounts];

pub const PAGES: &str = "http://127.0.0.1:989";
const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

fn pods_are_shown_and_get_nothing_of_the_nodes_accounts() {
    let world = World::new();
    let mut api = world.server.admin();
    for account in ["app-0", "agent"] {
        api.create_account("team-0", account);
    }
    // Before the proxy, which uses some pod to find out the rights of its credential.
    let shop = api.create_pod("team-0", "shop", "app-0", NODE);
    let agent = api.create_pod("team-0", "agent", "agent", NODE);
    let proxy = world.proxy(&["--passthrough=team-0/agent", "--audit"]);
    let pod = Pod::start(&world.node, shop, world.address(0));
    let agent = Pod::start(&world.node, agent, world.address(1));
    assert!(get(&pod, "/whoami").contains(r#""pod":"shop""#));
    assert!(get(&agent, "/whoami").contains(r#""pod":"agent""#));

    let refused = get(&pod, TOKEN);
    assert!(refused.contains(" 403 ") && refused.contains("the service account team-0/app-0"), "{refused}");
    let zone = get(&pod, "/computeMetadata/v1/instance/zone");
    assert!(zone.contains(" 200 "), "{zone}");
    let token = get(&agent, TOKEN);
    assert!(token.contains(" 200 ") && token.contains("access_token"), "{token}");
    proxy.line("namespace=\"team-0\" service_account=\"agent\" pod=\"agent\"");

    let namespace = &world.node.namespace;
    let metrics = world.metrics();
    // Pods have no tokens here.
    let is_here = |help: &str| help.contains("Absent without --workload-identity") && !help.contains("no tokens");
    for row in TABLE.iter().filter(|row| is_here(row.help)) {
        assert!(metrics.contains(&format!("\n{}", row.name)), "{} is missing from\n{metrics}", row.name);
    }
    // The sandboxes of other tests on this computer are in the same /proc.
    assert!(world.metric("metadata_proxy_identity_sandboxes") >= 2);
    // The proxy requests this in the background.
    world.comes_to_show("metadata_proxy_identity_rights{state=\"confined\"} 1\n");
    let checked = Process::run(namespace, &["check"]).stdout;
    assert!(checked.contains("(the proxy's credential for the API server): confined ("), "{checked}");
    let page = namespace.curl(&format!("{PAGES}/statusz")).text;
    for shown in ["the proxy's credential: ", ">confined<", "team-0/shop", "team-0/agent", "(acts as the node)"] {
        assert!(page.contains(shown), "{shown} is missing from\n{page}");
    }
    let status = Process::run(namespace, &["status"]).stdout;
    for shown in [
        "ok       gce-metadata-proxy ",
        "reported by the API server at https://",
        "client       team-0/shop (",
        "refused      team-0/shop (",
        "): 1 x 403 no_account, last ",
    ] {
        assert!(status.contains(shown), "{shown} is missing from\n{status}");
    }
    let explained = namespace.sh(&format!("{BINARY} explain --pod team-0/shop"));
    for shown in [&*pod.address.v4.to_string(), "team-0/shop by kernel, account app-0", &pod.object.uid] {
        assert!(explained.contains(shown), "{shown} is missing from\n{explained}");
    }
    let explained = namespace.sh(&format!("{BINARY} explain --pod team-0/nobody"));
    assert!(explained.contains("reports no such pod on this node"), "{explained}");
}

/// The whole answer to a pod.
fn get(pod: &Arc<Pod>, path: &str) -> String {
    let Asked { text, .. } = pod.get(path);
    text
}
