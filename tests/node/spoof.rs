//! Pods that send from addresses of others.

use crate::support::needs::{Test, tests};
use crate::world::{SERVER, TOKEN, World, is_protected, redirect, succeeds};

/// The tests of this module.
pub const TESTS: &[Test] = tests![a_pod_cannot_ask_from_another_pod_s_address];

/// Each tool, and the command that removes the rule.
const TOOLS: [(&str, &str); 2] = [
    ("nft", "nft flush chain inet gce_metadata_proxy no_spoofing"),
    ("iptables", "iptables -t mangle -F GCE-METADATA-PROXY-SPOOF"),
];

/// The responses to a spoofed packet go to the owner of its address, so the packets that arrive are counted instead.
fn a_pod_cannot_ask_from_another_pod_s_address() {
    let world = World::new();
    let _proxy = world.proxy(&[]);
    let attacker = &world.pods[1];
    attacker.ip("addr add 10.8.1.2/32 dev eth0");
    // Turns off the kernel's own check, which may be on.
    world.node.sh("for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $file; done
        nft add table inet seen
        nft add chain inet seen in '{ type filter hook input priority 100; }'");
    let attack = || {
        world.node.sh("nft flush chain inet seen in
            nft add rule inet seen in iifname pod2 ip saddr 10.8.1.2 tcp dport 988 counter");
        attacker.sh(&format!("curl -s --max-time 1 --interface 10.8.1.2 {SERVER}{TOKEN} || true"));
        !world.node.sh("nft list table inet seen").contains("packets 0 ")
    };
    for (tool, without) in TOOLS {
        succeeds(&redirect(&world.node, &format!("install --tool {tool} --redirect-drop-spoofed")));
        assert!(!attack(), "{tool}: a packet from another pod's address reaches the proxy");
        is_protected(attacker);
        is_protected(&world.pods[0]);
        world.node.sh(without);
        assert!(attack(), "{tool}: an attack that works, were there no rule");
    }
}
