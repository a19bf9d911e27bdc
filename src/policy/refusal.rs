//! [`Concealed`]: a refusal by the policy, as sent to the client.

use http::StatusCode;

use super::{Answer, Cause, Policy};
use crate::metadata::MetadataPath;

/// A refusal by policy. Its text is what the client reads.
#[derive(Debug, Clone, thiserror::Error)]
#[error("Refused: {path} is concealed from pods by the policy {policy}: {reason}.")]
pub struct Concealed {
    path: MetadataPath,
    policy: String,
    reason: String,
    answer: Answer,
}

impl Concealed {
    /// The refusal of a path, by this policy, for this cause.
    pub fn new(policy: &Policy, path: &MetadataPath, cause: Cause<'_>) -> Self {
        Self {
            path: path.clone(),
            policy: policy.name().to_owned(),
            reason: cause.to_string(),
            answer: policy.answer(cause),
        }
    }

    /// The status that the policy gives it.
    pub fn status(&self) -> StatusCode {
        self.answer.status()
    }
}
