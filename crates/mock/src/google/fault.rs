//! [`Fault`]: ways in which Google fails, and [`Script`], which determines when.

use std::time::Duration;

use http::StatusCode;

use super::{Endpoint, Workload};
use crate::script;

/// A way in which Google fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Responds with this status, in the format and wording of Google's APIs: 403 from IAM is a missing permission, 429
    /// a quota. 502 is a page of Google's front end.
    Status {
        status: StatusCode,
        /// Whole seconds for `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// Responds with 400 in STS's error format.
    Oauth {
        /// For example `invalid_target`.
        error: String,
        description: String,
    },
    /// Responds with 403: the API is not enabled in the project with this number.
    Disabled(u64),
    /// Responds with 200 and this text instead of JSON.
    Body(String),
    /// Responds as usual, after this delay.
    Slow(Duration),
    /// Does not respond until the client disconnects, or until [`Handle::heal`](super::Handle::heal); then responds as
    /// usual.
    Hang,
    /// Closes the connection instead of responding.
    Cut,
    /// Closes the connection in the middle of the usual response's body.
    CutBody,
}

impl Fault {
    /// Fails with this status. An invalid status becomes 500.
    pub fn status(status: u16) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::Status { status, retry_after: None }
    }

    /// 429 with `Retry-After`.
    pub fn quota(retry_after: Duration) -> Self {
        Self::Status { status: StatusCode::TOO_MANY_REQUESTS, retry_after: Some(retry_after) }
    }
}

/// Which requests get a fault. The default is all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Target {
    /// Only requests to this endpoint.
    pub endpoint: Option<Endpoint>,
    /// Only requests of this Kubernetes service account, according to their tokens.
    pub workload: Option<Workload>,
}

impl Target {
    /// Every request.
    pub fn all() -> Self {
        Self::default()
    }
}

impl script::Target for Target {
    type Request<'a> = (Endpoint, Option<&'a Workload>);

    fn holds(&self, (endpoint, workload): (Endpoint, Option<&Workload>)) -> bool {
        self.endpoint.is_none_or(|only| only == endpoint)
            && self.workload.as_ref().is_none_or(|only| workload == Some(only))
    }

    fn precision(&self) -> usize {
        usize::from(self.endpoint.is_some()) + 2 * usize::from(self.workload.is_some())
    }
}

impl From<Endpoint> for Target {
    fn from(endpoint: Endpoint) -> Self {
        Self { endpoint: Some(endpoint), workload: None }
    }
}

impl From<Workload> for Target {
    fn from(workload: Workload) -> Self {
        Self { endpoint: None, workload: Some(workload) }
    }
}

impl From<(Endpoint, Workload)> for Target {
    fn from((endpoint, workload): (Endpoint, Workload)) -> Self {
        Self { endpoint: Some(endpoint), workload: Some(workload) }
    }
}

/// Faults by endpoint and account.
pub(super) type Script = script::Script<Target, Fault>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_requests_go_first_then_the_most_precise_target() {
        let script = Script::default();
        let [app, job] = ["app", "job"].map(|name| Workload::new("a", name));
        let take = |endpoint, workload| script.take((endpoint, workload)).map(|(fault, _)| fault);
        let faults = [401, 402, 403, 404, 405].map(Fault::status);
        let [all, sts, of_app, sts_of_app, next] = &faults;
        script.stand(Target::all(), Fault::Hang);
        script.stand(Target::all(), all.clone());
        script.stand((Endpoint::Sts, app.clone()).into(), sts_of_app.clone());
        script.stand(Endpoint::Sts.into(), sts.clone());
        script.stand(app.clone().into(), of_app.clone());
        script.next(2, Endpoint::Sts.into(), next.clone());
        script.next(1, Target::all(), Fault::Cut);
        assert_eq!(take(Endpoint::IdToken, Some(&app)), Some(Fault::Cut), "the next of another endpoint stay");
        assert_eq!(take(Endpoint::Sts, None).as_ref(), Some(next));
        assert_eq!(take(Endpoint::Sts, Some(&app)).as_ref(), Some(next));
        assert_eq!(take(Endpoint::Sts, Some(&app)).as_ref(), Some(sts_of_app));
        assert_eq!(take(Endpoint::IdToken, Some(&app)).as_ref(), Some(of_app));
        assert_eq!(take(Endpoint::Sts, Some(&job)).as_ref(), Some(sts));
        assert_eq!(take(Endpoint::IdToken, None).as_ref(), Some(all));
        script.heal();
        assert_eq!(take(Endpoint::Sts, Some(&app)), None);
    }

    #[tokio::test]
    async fn a_heal_before_the_wait_is_not_missed() {
        let script = Script::default();
        script.stand(Target::all(), Fault::Hang);
        let (_, since) = script.take((Endpoint::Sts, None)).expect("a fault");
        script.heal();
        script.healed(since).await;
    }
}
