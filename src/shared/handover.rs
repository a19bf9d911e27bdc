//! [`Handover`]: what became of the hand-over, for the log, the metric and the status page.

use std::fmt;

use prometheus::IntCounter;
use tokio::sync::watch;

use telemetry::{Registry, table};

/// What became of the hand-over from the process before.
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
        /// How many.
        tokens: usize,
        /// Accounts of pods whose tokens they are.
        accounts: usize,
        /// Records that were not of use: expired, or of accounts that are gone.
        dropped: usize,
    },
    /// None were taken over, for this reason.
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

/// The state, and who waits for it.
#[derive(Debug)]
pub struct Handover {
    state: watch::Sender<State>,
    taken: IntCounter,
}

impl Handover {
    /// Nothing is known yet, unless it is off.
    pub fn new(is_on: bool, registry: &Registry) -> Self {
        let state = if is_on { State::Pending } else { State::Off };
        Self { state: watch::Sender::new(state), taken: registry.counter(&table::HANDOVER_TOKENS) }
    }

    /// What became of it.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Records what became of it, once.
    pub fn settle(&self, state: State) {
        match &state {
            State::Taken { tokens, accounts, dropped } => {
                self.taken.inc_by(*tokens as u64);
                tracing::info!(tokens, accounts, dropped, "tokens were taken over from the process before");
            }
            State::Cold(why) => tracing::warn!("no tokens were taken over from the process before: {why}"),
            // The operator chose the kernel. A warning at each start would not help.
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

    /// Waits until it is known. What would ask servers for what may be handed over waits for this.
    pub async fn settled(&self) {
        // The sender is in `self`.
        let _ = self.state.subscribe().wait_for(|state| *state != State::Pending).await;
    }
}
