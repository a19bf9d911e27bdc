//! [`Concealed`]: a refusal by the policy, as sent to the client.

use http::StatusCode;

use super::{Answer, Cause, Policy};
use crate::metadata::{MetadataPath, Query};

/// A refusal by the policy. The text is sent to the client.
#[derive(Debug, Clone, thiserror::Error)]
#[error("Refused: {path} is concealed from pods by the policy {policy}: {reason}.")]
pub struct Concealed {
    path: MetadataPath,
    policy: String,
    reason: String,
    answer: Answer,
}

impl Concealed {
    /// Refuses a path by this policy, for this cause. The query affects only the status.
    pub fn new(policy: &Policy, path: &MetadataPath, query: &Query, cause: Cause<'_>) -> Self {
        Self {
            path: path.clone(),
            policy: policy.name().to_owned(),
            reason: cause.to_string(),
            answer: policy.answer(cause, query),
        }
    }

    pub fn path(&self) -> &MetadataPath {
        &self.path
    }

    /// The HTTP status of the response.
    pub fn status(&self) -> StatusCode {
        self.answer.status()
    }
}
