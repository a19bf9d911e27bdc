//! [`State`]: shared by the connections and the [`Handle`](super::Handle).

use std::collections::HashMap;
use std::net::SocketAddr;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::accounts::Accounts;
use super::clock::Clock;
use super::tokens::Tokens;
use super::{Endpoint, Fault, Settings, Workload};

/// The state of one fake Google. No lock is held across an await.
#[derive(Debug)]
pub(super) struct State {
    pub(super) addr: SocketAddr,
    pub(super) settings: Settings,
    pub(super) accounts: Mutex<Accounts>,
    pub(super) tokens: Mutex<Tokens>,
    pub(super) faults: Mutex<HashMap<Endpoint, Fault>>,
    /// Number of requests to each endpoint whose token names this workload, verified or not.
    pub(super) requests: Mutex<HashMap<(Endpoint, Option<Workload>), u64>>,
    pub(super) clock: Clock,
    /// Becomes true when the handle requests a stop. The server has a receiver until everything is closed.
    pub(super) stop: watch::Sender<bool>,
    /// Whether new connections are closed at once. A change ends all others.
    pub(super) away: watch::Sender<bool>,
}

impl State {
    pub(super) fn new(addr: SocketAddr, settings: Settings) -> Self {
        Self {
            addr,
            settings,
            accounts: Mutex::default(),
            tokens: Mutex::default(),
            faults: Mutex::default(),
            requests: Mutex::default(),
            clock: Clock::new(),
            stop: watch::Sender::new(false),
            away: watch::Sender::new(false),
        }
    }
}
