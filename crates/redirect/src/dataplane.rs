//! Detects dataplanes that may bypass netfilter, by their traces on the node.
//!
//! No rule sees packets that bypass netfilter, so none can block or count them. eBPF and tc send a packet from the pod's
//! interface to the uplink before any hook of netfilter. The hook `egress` of the uplink does not help: the kernel skips it
//! for packets that tc redirected (`nf_skip_egress`). Our own filters of tc would come after those of the dataplane, or
//! interfere with them. So a trace is only a hint. A test from a pod is certain: `check`, or the canary on each node
//! (`check --interval`).

use std::path::Path;

/// Interfaces of networks that may do so, each with advice: those that Cilium and OVN-Kubernetes have with any settings, and one that
/// Calico has only with its eBPF data plane.
const TRACES: [(&str, &str); 3] = [
    (
        "cilium_host",
        "this node's network is Cilium's. With eBPF host routing ('cilium-dbg status': Host: BPF), pods' packets bypass \
         these rules, and pods reach the metadata server itself. If they do, this node's canary is not ready \
         (components/canary, Helm: canary.enabled), and 'gce-metadata-proxy check' in a pod says so. Then set \
         bpf.hostLegacyRouting=true in Cilium's values, or use deploy/overlays/cilium",
    ),
    (
        "bpfin.cali",
        "this node's network is Calico's, with its eBPF data plane. It may send pods' packets past these rules, and pods then \
         reach the metadata server itself. If they do, this node's canary is not ready (components/canary, Helm: \
         canary.enabled), and 'gce-metadata-proxy check' in a pod says so. Then set bpfEnabled: false in Calico's \
         FelixConfiguration (of its operator: linuxDataplane: Iptables or Nftables)",
    ),
    (
        "ovn-k8s-mp0",
        "this node's network is OVN-Kubernetes. In its gateway mode 'shared', pods' packets bypass these rules, and pods \
         may reach the metadata server itself. If they do, this node's canary is not ready (components/canary, Helm: \
         canary.enabled), and 'gce-metadata-proxy check' in a pod says so. Then set the gateway mode 'local' (OpenShift: \
         routingViaHost: true). On OpenShift, rules in each pod's own network refuse 169.254.169.254 before these",
    ),
];

/// Reason why the rules may have no effect on this node, with advice. `None` if there is no sign of it.
pub(super) fn doubt() -> Option<&'static str> {
    let exists = |interface: &str| Path::new("/sys/class/net").join(interface).exists();
    TRACES.into_iter().find(|(interface, _)| exists(interface)).map(|(_, advice)| advice)
}
