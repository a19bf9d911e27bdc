//! [`Audit`]: logs each issued token, but never the token itself.

use std::net::SocketAddr;
use std::sync::Arc;

use super::metrics::TokenOutcome;
use crate::metadata::query::Param;
use crate::telemetry::labels::Label;
use crate::telemetry::logging::AUDIT_TARGET;
use crate::tokens::{TokenKey, TokenKind};

/// Whether issued tokens are logged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Audit {
    /// One line per token.
    On,
    /// No lines.
    #[default]
    Off,
}

/// A request for a token that may be answered.
#[derive(Debug)]
pub struct Asked {
    client: Option<SocketAddr>,
    key: Arc<TokenKey>,
    outcome: TokenOutcome,
}

impl Audit {
    /// Takes note of who asks for what, and how it is answered; nothing where there are no lines.
    pub fn asked(self, client: Option<SocketAddr>, key: &Arc<TokenKey>, outcome: TokenOutcome) -> Option<Asked> {
        (self == Self::On).then(|| Asked { client, key: Arc::clone(key), outcome })
    }
}

impl Asked {
    /// The token was handed out, with so many seconds to live.
    pub fn handed_out(&self, expires_in: u32) {
        let kind = match self.key.kind {
            TokenKind::Access => "access",
            TokenKind::Identity => "identity",
        };
        tracing::info!(
            target: AUDIT_TARGET,
            client = self.client.map(tracing::field::display),
            principal = %self.key.principal,
            kind,
            account = %self.key.account,
            scopes = self.key.param(Param::Scopes),
            audience = self.key.param(Param::Audience),
            cache = self.outcome.label(),
            expires_in,
            "token handed out"
        );
    }
}
