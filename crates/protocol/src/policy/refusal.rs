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
    rule: usize,
    /// The path alone is to blame.
    is_path: bool,
}

impl Concealed {
    /// Refuses a path by this policy, for this cause. The query affects only the status.
    pub fn new(policy: &Policy, path: &MetadataPath, query: &Query, cause: Cause<'_>) -> Self {
        Self {
            path: path.clone(),
            policy: policy.name().to_owned(),
            reason: cause.to_string(),
            answer: policy.answer(cause, query),
            rule: policy.place_of(cause),
            is_path: matches!(cause, Cause::Rule(_) | Cause::Unmatched),
        }
    }

    pub fn path(&self) -> &MetadataPath {
        &self.path
    }

    /// The number of the rule in the policy that refused it, or 0.
    pub fn rule(&self) -> usize {
        self.rule
    }

    /// What was refused, if it is not the path.
    pub fn besides_path(&self) -> Option<&str> {
        (!self.is_path).then_some(&*self.reason)
    }

    /// The HTTP status of the response.
    pub fn status(&self) -> StatusCode {
        self.answer.status()
    }
}
