//! [`State`]: shared by the connections and the [`Handle`](super::Handle).

use std::net::SocketAddr;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::watch;

use super::journal::Journal;
use super::script::Script;
use super::token::TokenStore;
use super::tree::Tree;

/// The state of one mock. No lock is held across an await.
#[derive(Debug)]
pub(super) struct State {
    pub(super) addr: SocketAddr,
    pub(super) journal: Journal,
    pub(super) script: Script,
    pub(super) tokens: Mutex<TokenStore>,
    /// Becomes true when the handle requests a stop. The server has a receiver until everything is closed.
    pub(super) stop: watch::Sender<bool>,
    /// Notified whenever the tree changes.
    pub(super) changes: watch::Sender<()>,
    tree: RwLock<Tree>,
}

impl State {
    pub(super) fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            journal: Journal::default(),
            script: Script::default(),
            tokens: Mutex::default(),
            stop: watch::Sender::new(false),
            changes: watch::Sender::new(()),
            tree: RwLock::new(Tree::new()),
        }
    }

    /// The tree, for reading.
    pub(super) fn tree(&self) -> RwLockReadGuard<'_, Tree> {
        self.tree.read()
    }

    /// Changes the tree and wakes requests that wait for a change.
    pub(super) fn change(&self, change: impl FnOnce(&mut Tree)) {
        change(&mut self.tree.write());
        self.changes.send_replace(());
    }
}
