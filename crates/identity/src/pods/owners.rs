//! [`decide`]: decides which pod has an address, by the evidence of the kernel and the API server. A pure function.
//!
//! The kernel takes precedence: it knows a pod's network from the first packet on, and forgets it with the pod. The API
//! server says which pod a UID is, and decides between pods that claim the same address. Alone, it is believed only
//! about a pod whose processes have no addresses of their own, as in sandboxed runtimes; an address that the API server
//! still reports for a pod that has ended may already be another's.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::sandbox::Sandbox;
use super::sandboxes::Anchor;
use super::{Pod, PodUid, Reported};
use base::clock::BootTime;
use protocol::metadata::{Doubt, Missing};

/// Maximum time since the API server was last heard from for it to be trusted alone.
pub const MAX_API_AGE: Duration = Duration::from_secs(30 * 60);

/// Time after the start of a sandbox at which the API server, if it is heard, reports the sandbox's own address, and no longer
/// that of the pod's sandbox before. The kubelet reports a change at once, and tries again after 10 s.
const SETTLED: Duration = Duration::from_secs(30);

/// A clock tick: the resolution of a process's start in the kernel.
pub const TICK: Duration = Duration::from_millis(10);

/// Whether the API server alone may say which pod has an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, strum::Display, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Attest {
    /// Yes, about a pod whose processes have no addresses of their own.
    #[default]
    Prefer,
    /// No, the kernel must confirm every pod.
    Kernel,
}

/// The evidence about an address, by the last scan. If the scan began after the connection was accepted, the connection's pod is
/// among the holders, since a pod's processes are older than its connections. If not, only [`Evidence::lead`] counts.
#[derive(Debug)]
pub struct Evidence<'a> {
    pub addr: IpAddr,
    /// Live sandboxes that have it.
    pub holders: &'a [Sandbox],
    /// The sandbox that the connection's interface leads to, if that is known.
    pub lead: Option<Sandbox>,
    /// Sandboxes that have it or had it a short time ago, live or not. Without those that have given it to themselves.
    pub recent: &'a [Sandbox],
    /// Pods for which the API server reports it.
    pub reported: &'a [Reported],
    /// Time since the API server was last heard from.
    pub api_age: Duration,
    /// Whether the last attempt to reach it succeeded. Only the message depends on this.
    pub is_answered: bool,
    /// Whether the API server alone may decide.
    pub attest: Attest,
    /// Time at which the connection was accepted.
    pub accepted: BootTime,
    pub now: BootTime,
}

impl Evidence<'_> {
    /// When the API server was last heard from.
    fn heard(&self) -> BootTime {
        self.now - self.api_age
    }
}

/// The pod that has an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub pod: Arc<Pod>,
    /// The source of the decision.
    pub by: Witness,
    /// Start of its sandbox.
    pub began: BootTime,
}

impl Owner {
    /// Its sandbox, if the kernel shows that this has the address.
    pub fn sandbox(&self) -> Option<Sandbox> {
        (self.by == Witness::Kernel).then_some(Sandbox { uid: self.pod.uid, began: self.began })
    }
}

/// The source that says which pod has an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Witness {
    /// The kernel. The API server says which pod the UID is.
    Kernel,
    /// The API server alone.
    Api,
}

/// Reason why no owner is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoOwner {
    /// Not known at this time.
    Unidentified(Missing),
    /// The connection is older than the sandbox that has its address: it belongs to another pod, which has ended.
    Outdated,
}

impl From<Missing> for NoOwner {
    fn from(missing: Missing) -> Self {
        Self::Unidentified(missing)
    }
}

/// Decides which pod has an address. `pod` returns the API server's record of a UID, and `anchor` the kernel's.
pub fn decide(
    evidence: &Evidence<'_>,
    pod: impl Fn(PodUid) -> Option<Arc<Pod>>,
    anchor: impl Fn(PodUid) -> Anchor,
) -> Result<Owner, NoOwner> {
    // The connection comes from this sandbox's network, even if other sandboxes have its address.
    let lead = evidence.lead.filter(|lead| evidence.holders.contains(lead));
    let owner = match (lead, evidence.holders) {
        (Some(lead), _) => by_kernel(lead, pod),
        (None, []) => by_api(evidence, &anchor),
        (None, [only]) => match evidence.reported {
            // A pod without addresses of its own may have it as well.
            [other] if other.pod.uid != only.uid && matches!(anchor(other.pod.uid), Anchor::Bare(_)) => {
                return Err(Missing::Decision { claims: 2 }.into());
            }
            reported => by_kernel(*only, pod).map_err(|missing| of_static_pod(reported).unwrap_or(missing)),
        },
        (None, several) => by_kernel(one_of(several, evidence, &pod)?, pod),
    };
    let owner = owner.map_err(|why| unless_answered(why, evidence))?;
    // A connection accepted in the tick in which the sandbox began may belong to the pod before it.
    if evidence.accepted < owner.began + TICK {
        return Err(NoOwner::Outdated);
    }
    if lead.is_some() {
        return Ok(owner);
    }
    // When a sandbox dies, its containers live on for a while. So the address does not fall back to an older pod, nor to one
    // that has given it to itself, nor does a connection by the interface of the pod that had it become another's.
    let has_others = !owner.pod.addresses.is_empty() && !owner.pod.addresses.contains(&evidence.addr);
    let may_live_on = |other: &Sandbox| {
        other.uid != owner.pod.uid && (has_others || other.began > owner.began || evidence.lead == Some(*other))
    };
    // A younger pod may have hidden that it has the address, but not what the API server reports.
    let reported = || evidence.reported.iter().filter_map(|reported| anchor(reported.pod.uid).sandbox());
    let is_younger = |other: Sandbox| other.uid != owner.pod.uid && other.began > owner.began;
    let is_doubtful = evidence.recent.iter().any(may_live_on) || reported().any(is_younger);
    if is_doubtful { Err(Missing::Decision { claims: 2 }.into()) } else { Ok(owner) }
}

/// Picks one of several sandboxes by the API server's report. The API server reports an address late, and until after
/// the pod's end. So its report does not count while a younger sandbox may be the one that it has not reported yet.
fn one_of(
    several: &[Sandbox],
    evidence: &Evidence<'_>,
    pod: impl Fn(PodUid) -> Option<Arc<Pod>>,
) -> Result<Sandbox, NoOwner> {
    let ambiguous = || Missing::Decision { claims: several.len() };
    let is_reported = |sandbox: &&Sandbox| evidence.reported.iter().any(|reported| reported.pod.uid == sandbox.uid);
    let mut reported = several.iter().filter(is_reported);
    let (Some(one), None) = (reported.next(), reported.next()) else { return Err(ambiguous().into()) };
    let may_be_next = |other: &Sandbox| {
        // A pod with other addresses has given itself this one.
        let has_others = pod(other.uid).is_some_and(|pod| !pod.addresses.is_empty());
        other.uid != one.uid && other.began >= one.began && !has_others
    };
    if several.iter().any(may_be_next) { Err(ambiguous().into()) } else { Ok(*one) }
}

/// Replaces the reason if the API server does not answer: the pod may exist without being reported. Only the message
/// depends on this.
fn unless_answered(why: NoOwner, evidence: &Evidence<'_>) -> NoOwner {
    let uid = match &why {
        NoOwner::Unidentified(Missing::Pod { uid }) if !evidence.is_answered => Some(uid.clone()),
        NoOwner::Unidentified(Missing::Claim) if !evidence.is_answered => None,
        _ => return why,
    };
    let silence = (evidence.api_age != Duration::MAX).then_some(evidence.api_age.as_secs());
    Missing::Answer { uid, silence }.into()
}

fn by_kernel(sandbox: Sandbox, pod: impl Fn(PodUid) -> Option<Arc<Pod>>) -> Result<Owner, NoOwner> {
    let pod = pod(sandbox.uid).filter(|pod| pod.has_identity());
    let pod = pod.ok_or_else(|| Missing::Pod { uid: sandbox.uid.to_string() })?;
    Ok(Owner { pod, by: Witness::Kernel, began: sandbox.began })
}

/// The reason in case of a static pod: the kernel knows it by a UID that the kubelet has derived from its file, and the
/// API server has it as another pod, the mirror pod, which cannot have an account. Only the message depends on this.
fn of_static_pod(reported: &[Reported]) -> Option<NoOwner> {
    let [Reported { pod, .. }] = reported else { return None };
    pod.account.is_empty().then(|| Missing::Account { pod: format!("{}/{}", pod.namespace, pod.name) }.into())
}

fn by_api(evidence: &Evidence<'_>, anchor: impl Fn(PodUid) -> Anchor) -> Result<Owner, NoOwner> {
    let (pod, since) = match evidence.reported {
        [] => return Err(Missing::Claim.into()),
        // The address of a terminating pod may already belong to another pod, which is not known.
        [Reported { pod, since }] if pod.has_identity() && !pod.terminating => (pod, *since),
        [Reported { pod, .. }] => {
            let missing = || Missing::Pod { uid: pod.uid.to_string() }.into();
            return Err(of_static_pod(evidence.reported).unwrap_or_else(missing));
        }
        several => return Err(Missing::Decision { claims: several.len() }.into()),
    };
    let doubt = |because| {
        let pod = format!("{}/{}", pod.namespace, pod.name);
        Err(Missing::Confirmation { pod, because }.into())
    };
    if evidence.attest == Attest::Kernel {
        return doubt(Doubt::Required);
    }
    if evidence.api_age > MAX_API_AGE {
        return doubt(Doubt::Stale(evidence.api_age.as_secs()));
    }
    match anchor(pod.uid) {
        // A sandbox that was made again may have another address, and the one before be another pod's.
        Anchor::Bare(sandbox)
            if since.is_none_or(|since| since < sandbox.began) && evidence.heard() < sandbox.began + SETTLED =>
        {
            let left = (sandbox.began + SETTLED).since(evidence.now);
            doubt(Doubt::Unsettled(left.as_secs() + u64::from(left.subsec_nanos() > 0)))
        }
        Anchor::Bare(sandbox) => Ok(Owner { pod: Arc::clone(pod), by: Witness::Api, began: sandbox.began }),
        Anchor::Networked(_) | Anchor::None => doubt(Doubt::Contradicted),
    }
}

#[cfg(test)]
mod tests;
