//! [`AccountObject`]: the fields of a service account that the proxy reads.

use serde::Deserialize;

/// A Kubernetes service account, as the API server writes it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct AccountObject {
    pub metadata: AccountMetadata,
}

/// `metadata` of a service account.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct AccountMetadata {
    pub uid: String,
    /// Its Google identity.
    pub annotations: Option<Annotations>,
}

/// The annotations of a service account that name its Google identity, not parsed yet. GKE has the same annotations. An empty one
/// counts as absent: templates write empty ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// The e-mail of a Google service account.
    #[serde(rename = "iam.gke.io/gcp-service-account")]
    pub google_account: Option<String>,
    /// The accounts through which it acts as that one, a list in JSON.
    #[serde(rename = "iam.gke.io/gcp-service-account-delegates")]
    pub delegates: Option<String>,
    /// The project that its calls are charged to.
    #[serde(rename = "iam.gke.io/credential-quota-project")]
    pub quota_project: Option<String>,
    /// Whether its principal is shown in place of an e-mail.
    #[serde(rename = "iam.gke.io/return-principal-id-as-email")]
    pub principal_as_email: Option<String>,
}
