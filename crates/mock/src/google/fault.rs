//! [`Fault`]: ways in which Google fails.

use std::time::Duration;

/// A way in which Google fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Responds with 429, a quota that is used up, and this `Retry-After` in whole seconds.
    Quota(Duration),
    /// Responds with 400 in STS's error format.
    Oauth {
        /// For example `invalid_target`.
        error: String,
        description: String,
    },
    /// Responds with 403: the API is not enabled in the project with this number.
    Disabled(u64),
    /// Responds as usual, after this delay.
    Slow(Duration),
    /// Does not respond.
    Hang,
}
