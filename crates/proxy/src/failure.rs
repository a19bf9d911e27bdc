//! [`Failure`]: a failed upstream request. [`TokenFailure`]: a source that returned no token. [`Withheld`]: one that refused it.

use std::io;
use std::time::Duration;

use http::StatusCode;

use protocol::metadata::token::TokenError;

/// Timeout of an upstream response (its head, and its body if it is buffered). Python's and Node's libraries give up
/// after 3 s, and a 503 is clearer to them than a timeout.
pub const UPSTREAM_TIMEOUT: Duration = Duration::from_millis(2500);

/// Maximum head of an upstream response, in bytes.
pub const MAX_HEAD_BYTES: usize = 4 * 1024;

/// Whether a server with this status says that it cannot serve. One that refuses has not failed.
pub fn is_failure(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

/// Reason why the upstream returned no complete response. The text is sent to the client and logged.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No connection was made.
    #[error("cannot connect to {address} ({error})")]
    Connect {
        /// Host and port, as configured.
        address: String,
        /// The operating system's error.
        error: io::Error,
    },
    /// No complete response arrived within this time.
    #[error("it did not answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The response began, but was not read to its end within this time.
    #[error("its response was not read to its end within {} ms", .0.as_millis())]
    Slow(Duration),
    /// The connection was closed before the response head.
    #[error("it closed the connection without a response")]
    Closed,
    /// The connection was closed before the end of the response.
    #[error("its response was cut short")]
    CutShort,
    /// The response is not HTTP/1.
    #[error("its response is not HTTP")]
    NotHttp,
    /// A head larger than [`MAX_HEAD_BYTES`].
    #[error("its response has more than {MAX_HEAD_BYTES} bytes of headers")]
    HeadTooLarge,
    /// A body larger than this many bytes where only a small one is valid.
    #[error("its response is larger than {0} bytes")]
    TooLarge(usize),
    /// A request for the node's accounts on behalf of another principal.
    #[error("the node's accounts are requested only for the node")]
    Foreign,
    /// 502 or 504, as from a gateway that does not reach the metadata server.
    #[error("it, or a gateway in front of it, answers {}", .0.as_u16())]
    Gateway(StatusCode),
    /// A successful response without `Metadata-Flavor: Google`: a different server listens at its address.
    #[error("its response lacks `Metadata-Flavor: Google`, so a different server answers at its address")]
    NoFlavor,
}

impl Failure {
    /// A label from a fixed set, for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "upstream_connect",
            Self::TimedOut(_) | Self::Slow(_) => "upstream_timeout",
            Self::Closed => "upstream_closed",
            Self::CutShort => "upstream_cut_short",
            Self::NotHttp => "upstream_not_http",
            Self::TooLarge(_) | Self::HeadTooLarge => "upstream_too_large",
            Self::Gateway(_) => "upstream_gateway",
            Self::NoFlavor => "upstream_no_flavor",
            Self::Foreign => "foreign_principal",
        }
    }
}

/// Beginning of the messages that say why a pod has no token of its own.
pub const OWN_TOKEN: &str = "The pod's own token";

/// Reason why a source returned no token. The text is sent to the client and logged.
#[derive(Debug, thiserror::Error)]
pub enum TokenFailure {
    /// The source's server returned no complete response.
    #[error(transparent)]
    Upstream(#[from] Failure),
    /// A successful response that is not a token.
    #[error("its response is not a token: {0}")]
    NotAToken(#[from] TokenError),
    /// A token that had already expired on arrival, or when a waiting request received it.
    #[error("it had expired when it arrived")]
    Expired,
    /// The server failed several times in a row, and gets no requests for a short time.
    #[error("it failed several times in a row and will be retried shortly")]
    Resting,
    /// The source has no tokens for this caller.
    #[error("it has no tokens for this caller")]
    ForeignPrincipal,
    /// A step of the exchange for a pod's own token failed, and is not tried again for this time.
    #[error("{0}")]
    Exchange(ExchangeFailure, Duration),
}

impl From<ExchangeFailure> for TokenFailure {
    fn from(failure: ExchangeFailure) -> Self {
        Self::Exchange(failure, Duration::ZERO)
    }
}

/// The step of the exchange for a pod's own token that failed, and the reason.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ExchangeFailure {
    /// The pod's service account is unknown.
    #[error("{0}")]
    Account(String),
    /// The API server issued no token for the service account.
    #[error("no Kubernetes token for the pod's service account: {0}")]
    Kubernetes(String),
    /// Tokens of this service account are not to be had of the API server. It may issue those of others.
    #[error("no Kubernetes token for the pod's service account: {0}")]
    KubernetesRefused(String),
    /// Google's Security Token Service did not exchange that token.
    #[error("Google's Security Token Service: {0}")]
    Sts(String),
    /// Google's IAM Service Account Credentials API issued no token.
    #[error("Google's IAM Credentials API: {0}")]
    Iam(String),
    /// A step is still in progress, at this server if it is known. The next request waits for it.
    #[error("{}", slow(*.0, *.1))]
    Slow(Option<TokenServer>, Duration),
}

/// A server that takes part in the exchange for a pod's own token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
pub enum TokenServer {
    /// Issues Kubernetes tokens.
    #[strum(serialize = "the API server")]
    Kubernetes,
    /// Exchanges Kubernetes tokens for federated tokens.
    #[strum(serialize = "Google's Security Token Service")]
    Sts,
    /// Issues tokens of Google accounts for federated tokens.
    #[strum(serialize = "Google's IAM Credentials API")]
    Iam,
}

fn slow(server: Option<TokenServer>, time: Duration) -> String {
    let millis = time.as_millis();
    match server {
        Some(server) => format!("{server} did not answer within {millis} ms; its answer is still being waited for"),
        None => format!("no answer came within {millis} ms; it is still being waited for"),
    }
}

impl TokenFailure {
    /// A label from a fixed set, for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Upstream(failure) => failure.label(),
            Self::NotAToken(_) => "upstream_not_a_token",
            Self::Expired => "token_expired",
            Self::Resting => "upstream_resting",
            Self::ForeignPrincipal => "foreign_principal",
            Self::Exchange(failure, _) => failure.label(),
        }
    }

    /// Advice for operators, as the end of a sentence, or an empty string.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Exchange(failure, _) if !matches!(failure, ExchangeFailure::Account(_)) => {
                "; `gce-metadata-proxy identity doctor` on this node says which step fails"
            }
            _ => "",
        }
    }

    /// Time for which requests fail in the same way, if that is known. At most 90 s, as the steps of an exchange rest.
    pub fn rests(&self) -> Duration {
        match self {
            Self::Exchange(_, rests) => *rests,
            Self::Upstream(_) | Self::NotAToken(_) | Self::Expired | Self::Resting | Self::ForeignPrincipal => {
                Duration::ZERO
            }
        }
    }

    /// The subject of the sentence that something is not available.
    pub fn what(&self) -> &'static str {
        match self {
            Self::Exchange(..) => OWN_TOKEN,
            Self::Expired => "The token",
            Self::Upstream(_) | Self::NotAToken(_) | Self::Resting | Self::ForeignPrincipal => "The metadata server",
        }
    }
}

impl ExchangeFailure {
    /// A label from a fixed set, for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Account(_) => "exchange_account",
            Self::Kubernetes(_) | Self::KubernetesRefused(_) => "exchange_kubernetes",
            Self::Sts(_) => "exchange_sts",
            Self::Iam(_) => "exchange_iam",
            Self::Slow(..) => "exchange_slow",
        }
    }
}

/// Reason why a pod's own token was refused. The response passes on the server's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withheld {
    /// Google accepts no token of this cluster: no pod gets one.
    Untrusted,
    /// The quota that all accounts share is used up.
    Quota,
    /// Google refuses this account, or what its pod asked for. Others are not affected.
    Account,
    /// The quota of this account's own project is used up.
    Project,
    /// The account's pods ask for more than this proxy lets them.
    Pace,
}

impl Withheld {
    /// A label from a fixed set, for metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Untrusted => "exchange_untrusted",
            Self::Quota => "exchange_quota",
            Self::Account => "account_refused",
            Self::Project | Self::Pace => "account_pace",
        }
    }

    /// Whether all pods are affected, not only this account's.
    pub fn affects_all(self) -> bool {
        match self {
            Self::Untrusted | Self::Quota => true,
            Self::Account | Self::Project | Self::Pace => false,
        }
    }
}
