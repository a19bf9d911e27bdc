//! [`Identity::explain`]: whom a pod is taken for, and why.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use tokio::time::timeout;

use super::Identity;
use super::caller::witness;
use super::visitor::MAX_WAIT;
use crate::clock::BootTime;
use crate::pods::Pod;
use crate::pods::owners::{NoOwner, Owner};
use crate::server::Arrival;
use crate::telemetry::labels::Label;

/// A report of lines, each with a label.
struct Report(String);

impl Report {
    fn line(&mut self, label: impl fmt::Display, text: impl fmt::Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{label:16} {text}");
    }
}

impl Identity {
    /// Explains whom a pod of this node is taken for, by which evidence, and what is missing. For people; several lines.
    /// Waits for a look at the processes, but not longer than a pod does.
    pub async fn explain(&self, namespace: &str, name: &str) -> String {
        let mut report = Report(String::new());
        report.line("pod", format_args!("{namespace}/{name}"));
        let is_asked_for = |pod: &Pod| *pod.namespace == *namespace && *pod.name == *name;
        // A pod of this name that ended may still be reported beside the one that replaced it.
        let pods = self.pods.all();
        let found = pods.iter().filter(|pod| is_asked_for(pod)).max_by_key(|pod| !pod.ended);
        let Some(pod) = found else {
            report.line("API server", self.api_says_nothing());
            report.line("identity", "none; its requests get 503");
            return report.0;
        };
        if timeout(MAX_WAIT, self.lookout.since(BootTime::now())).await.is_err() {
            report.line("kernel", "its processes could not be looked at in time; what follows may be old");
        }
        report.line("API server", reported(pod));
        let own = self.sandboxes().addresses(pod.uid);
        report.line("kernel", if self.sandboxes().is_alive(pod.uid) { seen(&own) } else { NOT_SEEN.to_owned() });
        if pod.host_network {
            report.line("identity", "the node, whose network it shares (hostNetwork)");
            return report.0;
        }
        let mut addresses = [own, pod.addresses.clone()].concat();
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.is_empty() {
            report.line("identity", "none yet: it has no address");
        }
        for addr in addresses {
            report.line(addr, self.taken_for(addr));
        }
        report.0
    }

    fn api_says_nothing(&self) -> String {
        match self.summary().api_age {
            Some(seconds) => format!("reports no such pod on this node; last heard from {seconds} s ago"),
            None => "has not yet listed this node's pods; see the log and /readyz".to_owned(),
        }
    }

    /// Whom a new connection from this address would be of.
    fn taken_for(&self, addr: IpAddr) -> String {
        let arrival = Arrival { peer: (addr, 0).into(), accepted: BootTime::now() };
        if self.sandboxes().is_of_node(addr) {
            return "is the node's: its clients act as the node".to_owned();
        }
        // `look_up` would also reset connections of an earlier owner: a question must not change anything.
        match self.owner(arrival) {
            Ok(Owner { pod, by, .. }) => {
                let acts = if self.is_passed_through(&pod) { ", and acts as the node (--passthrough)" } else { "" };
                format!("{}/{} by {}, account {}{acts}", pod.namespace, pod.name, witness(by).label(), pod.account)
            }
            Err(NoOwner::Unidentified(why)) => format!("not known: {why}"),
            Err(NoOwner::Outdated) => "its processes began just now; ask again".to_owned(),
        }
    }
}

const NOT_SEEN: &str = "shows no live process of it in --host-proc";

fn reported(pod: &Pod) -> String {
    let state = match (pod.ended, pod.terminating) {
        (true, _) => "ended",
        (false, true) => "terminating",
        (false, false) => "running or starting",
    };
    let addresses = list(&pod.addresses);
    let account = if pod.account.is_empty() { "none, as static pods" } else { &*pod.account };
    format!("reports it as {state}, UID {}, service account {account}, addresses: {addresses}", pod.uid)
}

fn seen(addresses: &[IpAddr]) -> String {
    format!("shows live processes, addresses of their own: {}", list(addresses))
}

fn list(addresses: &[IpAddr]) -> String {
    if addresses.is_empty() {
        return "none".to_owned();
    }
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
