//! Dataplanes that may bypass netfilter, known by the marks that they leave.
//!
//! No rule sees the packets that they take past it, so none can close them or count them. eBPF and tc send a packet from the
//! pod's interface to the uplink before any hook of netfilter. The hook `egress` of the uplink does not help: the kernel
//! skips it for packets that tc redirected (`nf_skip_egress`). Filters of tc would come after those of the dataplane, or in
//! their way. So a mark is only a hint; a pod can find out: `check`, or on each node the canary (`check --interval`).

use std::path::Path;

/// Cilium's own interface, with any of its settings.
const CILIUM: &str = "/sys/class/net/cilium_host";

/// Why these rules may have no effect on this node, and what to do. `None` if nothing points to it.
pub(super) fn doubt() -> Option<&'static str> {
    Path::new(CILIUM).exists().then_some(
        "this node's network is Cilium's. With eBPF host routing ('cilium-dbg status': Host: BPF), pods' packets bypass \
         these rules, and pods reach the metadata server itself. If they do, this node's canary is not ready \
         (components/canary, Helm: canary.enabled), and 'gce-metadata-proxy check' in a pod says so. Then set \
         bpf.hostLegacyRouting=true in Cilium's values, or use deploy/overlays/cilium",
    )
}
