//! [`Audit`]: logs each issued token, but never the token itself.

use std::net::SocketAddr;
use std::sync::Arc;

use super::metrics::TokenOutcome;
use crate::tokens::{TokenKey, TokenKind};
use protocol::metadata::query::Param;
use protocol::metadata::{CallingPod, Request};
use telemetry::labels::Label;
use telemetry::logging::AUDIT_TARGET;

/// Whether issued tokens are logged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Audit {
    /// One line per token.
    On,
    /// No lines.
    #[default]
    Off,
}

impl From<bool> for Audit {
    fn from(is_on: bool) -> Self {
        if is_on { Self::On } else { Self::Off }
    }
}

/// The audit line of a token request. Written if the request is answered with a token.
#[derive(Debug)]
pub struct AuditLine {
    client: Option<SocketAddr>,
    pod: Option<Arc<CallingPod>>,
    key: Arc<TokenKey>,
    outcome: TokenOutcome,
}

impl Audit {
    /// The line for a request, or `None` if the audit is off.
    pub fn line(self, request: &Request, key: &Arc<TokenKey>, outcome: TokenOutcome) -> Option<AuditLine> {
        (self == Self::On).then(|| AuditLine {
            client: request.peer,
            pod: request.pod.clone(),
            key: Arc::clone(key),
            outcome,
        })
    }
}

impl AuditLine {
    /// Logs that the token was issued, with this many seconds until it expires.
    pub fn issued(&self, expires_in: u32) {
        let kind = match self.key.kind {
            TokenKind::Access => "access",
            TokenKind::Identity => "identity",
        };
        let pod = self.pod.as_deref();
        tracing::info!(
            target: AUDIT_TARGET,
            client = self.client.map(tracing::field::display),
            namespace = pod.map(|pod| &*pod.namespace),
            service_account = pod.map(|pod| &*pod.service_account),
            pod = pod.map(|pod| &*pod.name),
            pod_uid = pod.map(|pod| &*pod.uid),
            principal = %self.key.principal,
            kind,
            account = %self.key.account,
            scopes = self.key.param(Param::Scopes),
            audience = self.key.param(Param::Audience),
            bound_to = self.key.bound_to.as_deref().map(tracing::field::display),
            cache = self.outcome.label(),
            expires_in,
            "token handed out"
        );
    }
}
