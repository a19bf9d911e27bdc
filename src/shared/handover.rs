//! [`Handover`]: the result of the hand-over, for the log, the metric and the status page.

use std::fmt;

use prometheus::IntCounter;
use tokio::sync::watch;

use telemetry::{Registry, table};

/// The result of the hand-over from the predecessor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// `--handover` is not given.
    Off,
    /// This kernel cannot attest processes, for this reason.
    Unsupported(String),
    /// Not known yet.
    Pending,
    /// No other process served pods.
    Alone,
    /// Tokens were taken over.
    Taken {
        /// Number of tokens.
        tokens: usize,
        /// Number of pods' accounts that they belong to.
        accounts: usize,
        /// Number of records that were not used: expired, or of accounts that no longer exist.
        dropped: usize,
    },
    /// No tokens were taken over, for this reason.
    Cold(String),
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Unsupported(why) => write!(f, "off: {why}"),
            Self::Pending => f.write_str("not yet"),
            Self::Alone => f.write_str("no tokens taken over: no other process served pods"),
            Self::Taken { tokens, accounts, dropped } => {
                write!(f, "{tokens} tokens of {accounts} accounts taken over, {dropped} records dropped")
            }
            Self::Cold(why) => write!(f, "no tokens taken over: {why}"),
        }
    }
}

/// The result, for all that wait for it.
#[derive(Debug)]
pub struct Handover {
    state: watch::Sender<State>,
    taken: IntCounter,
}

impl Handover {
    /// Pending, unless it is off.
    pub fn new(is_on: bool, registry: &Registry) -> Self {
        let state = if is_on { State::Pending } else { State::Off };
        Self { state: watch::Sender::new(state), taken: registry.counter(&table::HANDOVER_TOKENS) }
    }

    /// The current state.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Records and logs the result, once.
    pub fn settle(&self, state: State) {
        match &state {
            State::Taken { tokens, accounts, dropped } => {
                self.taken.inc_by(*tokens as u64);
                tracing::info!(tokens, accounts, dropped, "took over tokens from the predecessor");
            }
            State::Cold(why) => tracing::warn!("took over no tokens from the predecessor: {why}"),
            // Not a warning: it would appear at each start, until the node gets another kernel.
            State::Unsupported(why) => tracing::info!(
                "--handover has no effect: {why}. After an update, tokens are fetched again. To change that, update the node's kernel"
            ),
            State::Off | State::Pending | State::Alone => {}
        }
        self.state.send_replace(state);
    }

    /// No other process served pods.
    pub fn is_alone(&self) {
        if self.state() == State::Pending {
            self.settle(State::Alone);
        }
    }

    /// Waits for the result. Requests for tokens that may be handed over wait for this first.
    pub async fn settled(&self) {
        // The sender is in `self`.
        let _ = self.state.subscribe().wait_for(|state| *state != State::Pending).await;
    }
}
