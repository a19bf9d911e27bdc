//! [`Handover`]: the result of the hand-over, for the log, the metric and the status page.

use prometheus::IntCounter;
use strum::Display;
use tokio::sync::watch;

use telemetry::{Registry, table};

/// The result of the hand-over from the predecessor.
#[derive(Debug, Clone, PartialEq, Eq, Display)]
pub enum State {
    /// `--handover` is not given.
    #[strum(to_string = "off")]
    Off,
    /// This kernel cannot attest processes, for this reason.
    #[strum(to_string = "off: {0}")]
    Unsupported(String),
    #[strum(to_string = "not yet")]
    Pending,
    #[strum(to_string = "no tokens taken over: no other process serves pods")]
    Alone,
    #[strum(to_string = "{tokens} tokens of {accounts} accounts taken over, {dropped} records dropped")]
    Taken {
        tokens: usize,
        /// Number of pods' accounts that they belong to.
        accounts: usize,
        /// Number of records that were not used: expired, or of accounts that no longer exist.
        dropped: usize,
    },
    #[strum(to_string = "no tokens taken over: {0}")]
    Cold(String),
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

    /// No other process serves pods, so there is no result to wait for, unless one is there already.
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
