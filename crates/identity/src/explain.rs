//! [`Identity::whois`]: the identity of a pod, and the reasons for it.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::Identity;
use super::caller::witness;
use super::visitor::MAX_WAIT;
use crate::pods::owners::{NoOwner, Owner};
use crate::pods::{Pod, PodUid};
use base::clock::BootTime;
use proxy::server::Arrival;
use telemetry::labels::Label;

/// The identity of a pod of this node, the evidence for it, and what is missing. The text is for people: several lines,
/// each with a label. The JSON is for `identity-doctor`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Whois {
    /// The identity at each of its addresses.
    pub addresses: Vec<(IpAddr, Taken)>,
    /// Its identity in words, if it has no address of its own.
    pub without: Option<String>,
    /// The evidence of the API server and of the kernel: labels and texts.
    evidence: Vec<(String, String)>,
}

/// The identity of the clients at an address.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Taken {
    /// The node, because it has the address.
    Node,
    /// A pod.
    Pod {
        /// Namespace and name.
        pod: String,
        account: String,
        /// The source of the evidence.
        evidence: String,
        /// Whether it acts as the node.
        passthrough: bool,
    },
    /// None: their requests get 503.
    Unknown(String),
    /// Its processes began a moment ago.
    TooYoung,
}

impl fmt::Display for Whois {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |label: &dyn fmt::Display, text: &dyn fmt::Display| writeln!(f, "{label:16} {text}");
        self.evidence.iter().try_for_each(|(label, text)| line(label, text))?;
        self.without.iter().try_for_each(|why| line(&"identity", why))?;
        self.addresses.iter().try_for_each(|(addr, taken)| line(addr, taken))
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("is the node's: its clients act as the node"),
            Self::Pod { pod, account, evidence, passthrough } => {
                let acts = if *passthrough { ", and acts as the node (--passthrough)" } else { "" };
                write!(f, "{pod} by {evidence}, account {account}{acts}")
            }
            Self::Unknown(why) => write!(f, "not known: {why}"),
            Self::TooYoung => f.write_str("its processes began just now; ask again"),
        }
    }
}

impl Whois {
    fn said(&mut self, label: &str, text: impl fmt::Display) {
        self.evidence.push((label.to_owned(), text.to_string()));
    }

    fn without(self, why: &str) -> Self {
        Self { without: Some(why.to_owned()), ..self }
    }
}

impl Identity {
    /// The identity of a pod of this node. Waits for a scan of the processes, but not longer than a pod's request does.
    pub async fn whois(&self, namespace: &str, name: &str) -> Whois {
        let mut whois = Whois { addresses: Vec::new(), without: None, evidence: Vec::new() };
        whois.said("pod", format_args!("{namespace}/{name}"));
        let is_asked_for = |pod: &Pod| *pod.namespace == *namespace && *pod.name == *name;
        // An ended pod of this name may still be reported beside its replacement.
        let pods = self.pods.all();
        let found = pods.iter().filter(|pod| is_asked_for(pod)).max_by_key(|pod| !pod.ended);
        let Some(pod) = found else {
            whois.said("API server", self.api_says_nothing());
            return whois.without("none; its requests get 503");
        };
        if timeout(MAX_WAIT, self.scans.since(BootTime::now())).await.is_err() {
            whois.said("kernel", "its processes could not be looked at in time; what follows may be old");
        }
        whois.said("API server", reported(pod));
        let own = self.sandboxes().addresses(pod.uid);
        whois.said("kernel", if self.sandboxes().is_alive(pod.uid) { seen(&own) } else { NOT_SEEN.to_owned() });
        if pod.host_network {
            return whois.without("the node, whose network it shares (hostNetwork)");
        }
        let mut addresses = [own, pod.addresses.clone()].concat();
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.is_empty() {
            return whois.without("none yet: it has no address");
        }
        whois.addresses = addresses.into_iter().map(|addr| (addr, self.taken_for(addr, pod.uid))).collect();
        whois
    }

    fn api_says_nothing(&self) -> String {
        match self.summary().api_age {
            Some(seconds) => format!("reports no such pod on this node; last heard from {seconds} s ago"),
            None => "has not yet listed this node's pods; see the log and /readyz".to_owned(),
        }
    }

    /// The identity that a new connection of this pod from this address would get.
    fn taken_for(&self, addr: IpAddr, uid: PodUid) -> Taken {
        let arrival = Arrival::now((addr, 0).into());
        if self.sandboxes().is_of_node(addr) {
            return Taken::Node;
        }
        // `look_up` would also reset connections of an earlier owner: a query must not change anything.
        let lead = self.sandboxes().anchor(uid).sandbox().filter(|sandbox| self.sandboxes().leads().has(*sandbox));
        match self.owner(arrival, lead, self.sandboxes().holders(addr).as_deref()) {
            Ok(Owner { pod, by, .. }) => Taken::Pod {
                pod: format!("{}/{}", pod.namespace, pod.name),
                account: pod.account.to_string(),
                evidence: witness(by).label().to_owned(),
                passthrough: self.is_passed_through(&pod),
            },
            Err(NoOwner::Unidentified(why)) => Taken::Unknown(why.to_string()),
            Err(NoOwner::Outdated) => Taken::TooYoung,
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
