//! [`Account`]: a service account with running pods on this node, and its known state.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::Workload;
use base::backoff::{Backoff, Jitter};
use base::clock::BootTime;
use protocol::metadata::{Principal, WorkloadId};

/// Age from which an account is read again when it is requested.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(60);

/// Time after which a read that is due is overdue: a request then waits for it.
const OVERDUE: Duration = MAX_AGE;

/// Initial and maximum pause after a failed read. The first is short, because the API server grants a node the right to
/// read an account some milliseconds after the account's first pod was scheduled here.
const BACK_OFF: Backoff = Backoff::new(Duration::from_millis(250), MAX_AGE).with(Jitter(0.6, 1.0));

/// Maximum pause before an account that cannot be used is read again: pods wait for it.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Why an account is not known while no read has failed.
pub(super) const NOT_ANSWERED: &str = "the API server has not answered yet";

/// A Kubernetes service account with running pods on this node.
#[derive(Debug)]
pub struct Account {
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
    /// The number in `state`, for requests. Written after it.
    number: AtomicU64,
    /// Whether it was requested since it was last read.
    is_asked: AtomicBool,
    pub(super) state: watch::Sender<State>,
}

/// State of an account.
#[derive(Debug)]
pub(super) struct State {
    /// Changes when the account does.
    pub(super) number: WorkloadId,
    pub(super) known: Known,
    /// The error of the last read, if it failed.
    pub(super) failure: Option<Arc<str>>,
    /// Failures since the last read that succeeded.
    failures: u32,
    /// Earliest time of the next read. It takes place then if the account was requested.
    pub(super) due: BootTime,
    /// Whether that is what the API server demands, so that nothing else brings it forward.
    is_put_off: bool,
    pub(super) reading: Reading,
}

/// Result of the last read that succeeded.
#[derive(Debug, Clone, Default)]
pub(super) enum Known {
    /// Not read yet.
    #[default]
    Nothing,
    /// It exists.
    Workload(Arc<Workload>),
    /// It does not exist any more.
    Deleted,
}

impl Known {
    /// Maximum time until the next read. The same after a failure as after a success: an API server in trouble is not read more often
    /// than one in health.
    fn max_age(&self) -> Duration {
        match self {
            Self::Workload(_) => MAX_AGE,
            // It may be created again at any moment.
            Self::Nothing | Self::Deleted => MAX_PAUSE,
        }
    }
}

/// State of its reads. At most one is in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    Idle,
    Wanted,
    UnderWay,
}

impl State {
    /// Whether what is known is so old that a request waits until it is read again. A read that failed is repeated until one succeeds,
    /// and no request waits for it.
    pub(super) fn is_overdue(&self, now: BootTime) -> bool {
        self.failure.is_none() && !matches!(self.known, Known::Nothing) && now > self.due + OVERDUE
    }
}

impl Account {
    pub(super) fn new(namespace: Arc<str>, name: Arc<str>, number: WorkloadId, now: BootTime) -> Self {
        let state = State {
            number,
            known: Known::Nothing,
            failure: None,
            failures: 0,
            due: now,
            is_put_off: false,
            reading: Reading::Wanted,
        };
        Self {
            namespace,
            name,
            number: AtomicU64::new(number.0),
            is_asked: AtomicBool::new(false),
            state: watch::Sender::new(state),
        }
    }

    /// The current principal of its pods.
    pub fn principal(&self) -> Principal {
        Principal::Workload(self.number())
    }

    /// Records a request about the account, so that it is read again if the last read was long ago.
    pub(super) fn requested(&self) {
        // Nearly always set already, and then not written: all cores read it.
        if !self.is_asked.load(Ordering::Relaxed) {
            self.is_asked.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn number(&self) -> WorkloadId {
        WorkloadId(self.number.load(Ordering::Acquire))
    }

    /// Requests a read, unless one is requested or in progress. Returns whether it did.
    pub(super) fn want(&self) -> bool {
        self.state.send_if_modified(|state| {
            let is_idle = state.reading == Reading::Idle;
            if is_idle {
                state.reading = Reading::Wanted;
            }
            is_idle
        })
    }

    /// Whether the last read was long ago.
    pub(super) fn is_due(&self, now: BootTime) -> bool {
        now >= self.state.borrow().due
    }

    /// Requests a read if one is due and the account was requested.
    pub(super) fn want_if_due(&self, now: BootTime) -> bool {
        let is_due = {
            let state = self.state.borrow();
            // An unread account is read even if it is not requested, so that its pods' first request need not wait.
            let is_needed = matches!(state.known, Known::Nothing) || self.is_asked.load(Ordering::Relaxed);
            state.reading == Reading::Idle && now >= state.due && is_needed
        };
        is_due && self.want()
    }

    /// Requests a read if all reads so far have failed, unless the API server demands that it waits.
    pub(super) fn want_if_unread(&self, now: BootTime) -> bool {
        let is_unread = {
            let state = self.state.borrow();
            let is_put_off = state.is_put_off && now < state.due;
            matches!(state.known, Known::Nothing) && state.failure.is_some() && !is_put_off
        };
        is_unread && self.want()
    }

    /// Records that a request waited for a read in vain. No other one waits until a read succeeds.
    pub(super) fn waited(&self) {
        self.state.send_modify(|state| {
            state.failure.get_or_insert_with(|| NOT_ANSWERED.into());
        });
    }

    /// Begins a requested read. Returns whether there was one.
    pub(super) fn begin(&self) -> bool {
        self.state.send_if_modified(|state| {
            let is_wanted = state.reading == Reading::Wanted;
            if is_wanted {
                state.reading = Reading::UnderWay;
            }
            is_wanted
        })
    }

    /// Records the result of a read, and the number for it.
    pub(super) fn learned(&self, known: Known, number: WorkloadId, now: BootTime) {
        self.is_asked.store(false, Ordering::Relaxed);
        let due = now + known.max_age();
        let state = State { number, known, failure: None, failures: 0, due, is_put_off: false, reading: Reading::Idle };
        self.state.send_replace(state);
        self.number.store(number.0, Ordering::Release);
    }

    /// Takes over what another process knows, if nothing is known here. Returns whether it did.
    pub(super) fn take_over(&self, workload: &Workload, due: BootTime) -> bool {
        self.state.send_if_modified(|state| {
            let is_unknown = matches!(state.known, Known::Nothing);
            if is_unknown {
                state.known = Known::Workload(Arc::new(workload.clone()));
                // The read stays wanted: the other process may have read it long ago.
                (state.failure, state.failures, state.due, state.is_put_off) = (None, 0, due, false);
            }
            is_unknown
        })
    }

    /// Records a failed read, after which the API server demands this time. The known state stays in effect. Returns the number of
    /// failures since it was last read. `jitter` is between 0 and 1.
    pub(super) fn failed(&self, why: &str, demanded: Duration, now: BootTime, jitter: f64) -> u32 {
        self.state.send_modify(|state| {
            state.failures = state.failures.saturating_add(1);
            state.failure = Some(why.into());
            let pause = BACK_OFF.up_to(state.known.max_age()).wait(state.failures, jitter);
            state.due = now + pause.max(demanded);
            state.is_put_off = !demanded.is_zero();
            state.reading = Reading::Idle;
        });
        self.state.borrow().failures
    }

    /// The account as it was last read, if it has this number and no read is overdue.
    pub(super) fn recent(&self, number: WorkloadId, now: BootTime) -> Option<Arc<Workload>> {
        let state = self.state.borrow();
        match &state.known {
            Known::Workload(workload) if state.number == number && !state.is_overdue(now) => Some(Arc::clone(workload)),
            Known::Workload(_) | Known::Nothing | Known::Deleted => None,
        }
    }

    /// The account as it was last read, if it has this number.
    pub(super) fn workload_of(&self, number: WorkloadId) -> Option<Arc<Workload>> {
        self.workload().filter(|(known, _)| *known == number).map(|(_, workload)| workload)
    }

    /// The account as it was last read, and its number.
    pub(super) fn workload(&self) -> Option<(WorkloadId, Arc<Workload>)> {
        let state = self.state.borrow();
        match &state.known {
            Known::Workload(workload) => Some((state.number, Arc::clone(workload))),
            Known::Nothing | Known::Deleted => None,
        }
    }
}

/// `NAMESPACE/NAME`.
impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
