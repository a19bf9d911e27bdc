//! [`PodObject`]: the fields of a pod that the proxy reads. All others are skipped as they are read.

use std::net::IpAddr;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// A pod, as the API server writes it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodObject {
    pub metadata: Metadata,
    /// The requested state.
    pub spec: Spec,
    /// The state that its node has reported.
    pub status: Status,
}

/// `metadata` of a pod.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// Its UID, not parsed yet.
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// Its version, from which a watch can resume.
    pub resource_version: String,
    creation_timestamp: String,
    /// Present once its deletion was requested.
    deletion_timestamp: Option<IgnoredAny>,
    /// Absent unless the owners were requested, since their number is a tenant's choice.
    owner_references: Option<Vec<OwnerReference>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OwnerReference {
    uid: String,
    controller: bool,
}

/// `spec` of a pod.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    pub node_name: String,
    /// Its service account. Empty for the pods that a kubelet reads from a file: they have none.
    pub service_account_name: String,
    /// Whether it shares the node's network.
    pub host_network: bool,
}

/// `status` of a pod.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    phase: String,
    #[serde(rename = "podIP")]
    address: String,
    #[serde(rename = "podIPs")]
    addresses: Option<Vec<Address>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Address {
    ip: String,
}

impl PodObject {
    /// Whether its deletion was requested.
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Creation time, as the digits of the timestamp, which the API server writes in UTC and whole seconds. 0 if there
    /// is none.
    pub fn created(&self) -> u64 {
        let digits = self.metadata.creation_timestamp.bytes().filter(u8::is_ascii_digit).take(14);
        digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
    }

    /// Whether all its containers have ended for good.
    pub fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// The UID of its controller, such as its `DaemonSet`. The API server allows one.
    pub fn controller(&self) -> Option<&str> {
        let mut owners = self.metadata.owner_references.iter().flatten();
        owners.find(|owner| owner.controller && !owner.uid.is_empty()).map(|owner| owner.uid.as_str())
    }

    /// Its addresses, of both families. Invalid ones are left out.
    pub fn addresses(&self) -> Vec<IpAddr> {
        match self.status.addresses.as_deref() {
            Some(addresses) if !addresses.is_empty() => {
                addresses.iter().filter_map(|address| address.ip.parse().ok()).collect()
            }
            _ => self.status.address.parse().into_iter().collect(),
        }
    }
}

/// A list of pods.
#[derive(Debug, Deserialize)]
pub(super) struct PodList {
    pub(super) metadata: ListMetadata,
    pub(super) items: Option<Vec<PodObject>>,
}

/// `metadata` of a list or a bookmark.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ListMetadata {
    pub(super) resource_version: String,
    pub(super) annotations: Option<BookmarkAnnotations>,
}

/// The one annotation of a bookmark that matters.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct BookmarkAnnotations {
    #[serde(rename = "k8s.io/initial-events-end")]
    pub(super) initial_events_end: Option<IgnoredAny>,
}

/// A refusal by the API server.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_both_families_or_the_only_one() {
        let addresses = |status: &str| {
            let object: PodObject = serde_json::from_str(&format!(r#"{{"status":{status}}}"#)).expect("a pod");
            object.addresses().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            addresses(r#"{"podIP":"10.8.0.5","podIPs":[{"ip":"10.8.0.5"},{"ip":"fd00::5"}]}"#),
            ["10.8.0.5", "fd00::5"]
        );
        assert_eq!(addresses(r#"{"podIP":"10.8.0.5"}"#), ["10.8.0.5"]);
        assert_eq!(addresses(r#"{"podIP":"10.8.0.5","podIPs":[]}"#), ["10.8.0.5"]);
        assert_eq!(addresses(r#"{"podIP":"","podIPs":null}"#), Vec::<String>::new());
        assert_eq!(addresses(r#"{"podIPs":[{"ip":"no"},{}]}"#), Vec::<String>::new());
    }

    #[test]
    fn pods_are_as_old_as_their_timestamps_say() {
        let created = |text: &str| {
            let object: PodObject = serde_json::from_str(text).expect("a pod");
            object.created()
        };
        assert_eq!(created(r#"{"metadata":{"creationTimestamp":"2026-01-31T23:59:58Z"}}"#), 20_260_131_235_958);
        assert_eq!(created("{}"), 0);
    }

    #[test]
    fn a_pod_told_to_end_and_one_that_has_ended_differ() {
        let pod = |text: &str| serde_json::from_str::<PodObject>(text).expect("a pod");
        let terminating =
            pod(r#"{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"},"status":{"phase":"Running"}}"#);
        assert!(terminating.is_terminating() && !terminating.has_ended());
        assert!(!pod(r#"{"metadata":{"deletionTimestamp":null}}"#).is_terminating());
        for (phase, has_ended) in [("Pending", false), ("Unknown", false), ("Succeeded", true), ("Failed", true)] {
            assert_eq!(pod(&format!(r#"{{"status":{{"phase":"{phase}"}}}}"#)).has_ended(), has_ended, "{phase}");
        }
    }
}
