//! [`Readiness`]: whether the proxy is ready to serve pods.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use strum::Display;
use tokio::sync::SetOnce;
use tokio::time::Instant;

use crate::door_probe::{DoorProbe, DoorTrouble};
use identity::Identity;
use proxy::layers::leaves::{Leaf, Leaves};
use proxy::layers::token_cache::Store;
use proxy::server::Drain;
use proxy::upstream::Health;
use telemetry::{Registry, table};

/// State of the process, and as one line of readable text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Display)]
#[serde(rename_all = "lowercase", tag = "status", content = "reason")]
#[strum(serialize_all = "lowercase")]
pub enum State {
    /// Not serving yet, or warming up the cache.
    Starting,
    /// Unable to identify pods, so that requests get 503. A new version in this state does not replace the previous one.
    #[strum(to_string = "unable: {0}")]
    Unable(String),
    /// Serving.
    Ready,
    /// Serving, but the last upstream request failed, or the proxy's own door does not answer. Still ready: no other node's
    /// proxy can serve this node's pods, and cached values are still served.
    #[strum(to_string = "degraded: {0}")]
    Degraded(String),
    /// Finishing requests in flight and accepting no connections.
    Draining,
}

/// A problem of a serving process. Its text is the reason of [`State::Degraded`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// Pods are not served at one of the proxy's own doors.
    Door(DoorTrouble),
    /// The last request to the metadata server failed.
    Upstream {
        /// The error of that request.
        failure: String,
        /// Time without a successful request.
        lasts: Duration,
    },
    /// The node's token ends or is missing, and the metadata server does not issue another.
    Token {
        /// The error of the last request for one.
        failure: String,
        /// Whether the server answered and refused, so that it does not fail by itself.
        is_refused: bool,
        /// Seconds until it expires, or 0 if there is none.
        expires_in: u32,
        users: TokenUsers,
    },
    /// New pods may be unknown.
    Identity(String),
    /// The values that pods request first are not known yet. With one that the server refuses, and the status of its answer.
    Cold(Option<(Leaf, StatusCode)>),
}

/// The pods that get the node's token. Those with accounts of their own do not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenUsers {
    All,
    /// With Workload Identity, those that act as the node, as `NAMESPACE/NAME`: at least one.
    Only(Vec<String>),
}

/// Maximum time to wait for the warmup, so that a node without a metadata server can start. The wait for the list of pods
/// has no limit: without the list every request is refused, and another process may be able to serve.
const WARM_START: Duration = Duration::from_secs(10);

/// The sources of the state.
#[derive(Debug, Clone)]
pub struct Readiness {
    serving: Arc<AtomicBool>,
    warm: Arc<SetOnce<()>>,
    /// The values that the warmup waits for.
    awaited: Arc<OnceLock<Arc<Leaves>>>,
    began: Instant,
    upstream: Arc<Health>,
    tokens: Arc<Store>,
    identity: Option<Arc<Identity>>,
    door: Arc<DoorProbe>,
    drain: Drain,
}

impl Readiness {
    /// Begins in the state [`Starting`](State::Starting).
    pub fn new(
        upstream: Arc<Health>,
        tokens: Arc<Store>,
        identity: Option<Arc<Identity>>,
        door: Arc<DoorProbe>,
        drain: Drain,
    ) -> Self {
        let (serving, warm, awaited) = (Arc::default(), Arc::default(), Arc::default());
        Self { serving, warm, awaited, began: Instant::now(), upstream, tokens, identity, door, drain }
    }

    /// Records that pods are now served.
    pub fn serving(&self) {
        self.serving.store(true, Ordering::Relaxed);
    }

    /// Records that the warmup waits for these values.
    pub fn awaits(&self, leaves: Arc<Leaves>) {
        // The warmup begins once.
        let _ = self.awaited.set(leaves);
    }

    /// Records that the values that pods request first are now known.
    pub fn warm(&self) {
        // The warmup ends once.
        let _ = self.warm.set(());
    }

    /// Waits until they are known.
    pub async fn warmed(&self) {
        self.warm.wait().await;
    }

    /// Whether pods can be identified, if that is configured.
    fn knows_pods(&self) -> bool {
        self.identity.as_ref().is_none_or(|identity| identity.pods().last_heard().is_some())
    }

    /// The current state.
    pub fn state(&self) -> State {
        let is_warm = self.warm.initialized();
        let is_late = self.began.elapsed() >= WARM_START;
        if self.drain.has_begun() {
            State::Draining
        } else if !(is_late || is_warm && self.knows_pods()) {
            State::Starting
        } else if !self.knows_pods() {
            let why = self.identity.as_ref().and_then(|identity| identity.degraded());
            State::Unable(why.unwrap_or_else(|| "identity: the node's pods were not listed yet".to_owned()))
        } else if !self.serving.load(Ordering::Relaxed) {
            State::Starting
        } else {
            self.troubles().first().map_or(State::Ready, |trouble| State::Degraded(trouble.to_string()))
        }
    }

    /// Registers the gauge of the node's token, which is absent while no pod uses it.
    pub fn observe(&self, registry: &Registry) {
        let readiness = self.clone();
        registry.observe(&table::DEFAULT_TOKEN_EXPIRY, move || {
            TokenUsers::of(readiness.identity.as_deref())?;
            readiness.tokens.default_expires_in().map(u64::from)
        });
    }

    fn token_at_risk(&self) -> Option<Trouble> {
        let (why, expires_in) = self.tokens.default_at_risk()?;
        let users = TokenUsers::of(self.identity.as_deref())?;
        Some(Trouble::Token { failure: why.to_string(), is_refused: !why.is_outage(), expires_in, users })
    }

    /// The current problems, the most important first.
    pub fn troubles(&self) -> Vec<Trouble> {
        let failure = self.upstream.failure().zip(self.upstream.failing_for());
        let degraded = self.identity.as_ref().and_then(|identity| identity.degraded());
        let is_cold = !self.warm.initialized();
        [
            self.door.trouble().map(Trouble::Door),
            failure.map(|(failure, lasts)| Trouble::Upstream { failure, lasts }),
            self.token_at_risk(),
            degraded.map(Trouble::Identity),
            is_cold.then(|| Trouble::Cold(self.awaited.get().and_then(|leaves| leaves.refused()))),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl TokenUsers {
    /// `None` if no pod uses the node's token.
    pub fn of(identity: Option<&Identity>) -> Option<Self> {
        match identity.map(Identity::acting_as_node) {
            None => Some(Self::All),
            Some(pods) => (!pods.is_empty()).then_some(Self::Only(pods)),
        }
    }
}

impl State {
    /// Whether the proxy is ready for pods.
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ready | Self::Degraded(_))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Door(trouble) => trouble.fmt(f),
            Self::Identity(trouble) => f.write_str(trouble),
            Self::Upstream { failure, .. } => write!(f, "metadata server: {failure}"),
            Self::Token { failure, expires_in: 0, users, .. } => {
                write!(
                    f,
                    "there is no valid token of the node's account, and the metadata server issues none{users}: {failure}"
                )
            }
            Self::Token { failure, expires_in, users, .. } => {
                write!(
                    f,
                    "the node's token expires in {expires_in} s, and the metadata server issues no other{users}: {failure}"
                )
            }
            Self::Cold(Some((leaf, status))) => {
                write!(f, "the metadata server answers {} to {leaf}, which pods request first", status.as_u16())
            }
            Self::Cold(None) => {
                f.write_str("the metadata server has not yet provided the default token and common values")
            }
        }
    }
}

/// An addition to a sentence about the token. It has no names, since pods may read it.
impl fmt::Display for TokenUsers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => Ok(()),
            Self::Only(pods) => write!(f, " (needed by {} pods here that act as the node)", pods.len()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;

    use super::*;
    use base::clock::{BootTime, suspend};
    use identity::pods::owners::Attest;
    use identity::pods::{FakeProc, Pod, PodUid, Scans};
    use identity::{AccountName, CutFrom, Forget, Settings};
    use proxy::failure::{Failure, UPSTREAM_TIMEOUT};
    use proxy::layers::token_cache::{DEFAULT_LIMIT_BYTES, Tokens};
    use proxy::shares::Client;
    use proxy::tokens::{Fetched, NoToken, TokenKey, TokenSource, Urgency};

    /// A metadata server that does not answer.
    pub(crate) struct Failing;

    impl TokenSource for Failing {
        fn deadline(&self) -> Duration {
            UPSTREAM_TIMEOUT
        }

        async fn fetch(&self, _: &TokenKey, _: Client, _: Urgency) -> Result<Fetched, NoToken> {
            Err(Failure::Closed.into())
        }
    }

    fn store() -> Arc<Store> {
        Store::new(0, &Registry::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_without_a_metadata_server_is_degraded_after_ten_seconds() {
        let readiness = Readiness::new(Arc::default(), store(), None, Arc::default(), Drain::default());
        readiness.serving();
        tokio::time::sleep(Duration::from_millis(9999)).await;
        assert_eq!(readiness.state(), State::Starting);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(matches!(readiness.state(), State::Degraded(_)));
        readiness.warm();
        assert_eq!(readiness.state(), State::Ready);
    }

    /// An identity that has received no list from the API server yet.
    pub(crate) fn unlisted() -> (FakeProc, Arc<Identity>) {
        let settings = Settings {
            host_proc: PathBuf::new(),
            state_dir: None,
            own_pod: None,
            attest: Attest::Prefer,
            passthrough: AccountName::parse("kube-system/agent").into_iter().collect(),
            federation: None,
            cluster: identity::cluster::Settings {
                node: "n".parse().expect("a name"),
                credential: identity::cluster::Credential::OwnAccount(identity::cluster::Acting::AsItsNode),
            },
        };
        let proc = FakeProc::new();
        let (cut_from, forget) = (CutFrom::new(Arc::new(|_, _| 0)), Forget::new(Arc::new(|_| {})));
        let scans = Scans::in_task(proc.open());
        (proc, Identity::new(&settings, Arc::default(), scans, cut_from, forget, &Registry::default()))
    }

    /// A pod that acts as the node.
    pub(crate) fn agent() -> Pod {
        Pod {
            uid: PodUid::parse(&"1".repeat(32)).expect("32 digits"),
            namespace: "kube-system".into(),
            name: "agent-1".into(),
            account: "agent".into(),
            host_network: false,
            ended: false,
            terminating: false,
            created: 0,
            addresses: Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_s_token_that_no_pod_uses_is_no_trouble_and_has_no_series() {
        let store = Store::new(DEFAULT_LIMIT_BYTES, &Registry::default());
        store.know_default_email("node@b.c");
        Tokens::new(Arc::clone(&store), Failing).warm(TokenKey::default_account()).await.expect_err("no token");
        let (_proc, identity) = unlisted();
        identity.pods().replace([]);
        let seen = |identity| {
            let registry = Registry::default();
            let readiness =
                Readiness::new(Arc::default(), Arc::clone(&store), identity, Arc::default(), Drain::default());
            readiness.observe(&registry);
            readiness.warm();
            let troubles = readiness.troubles().into_iter().map(|trouble| match trouble {
                Trouble::Token { users, .. } => users,
                other => panic!("{other}"),
            });
            let series = registry.render().contains("\nmetadata_proxy_default_token_expiry_seconds 0\n");
            (troubles.collect::<Vec<_>>(), series)
        };
        assert_eq!(seen(None), (vec![TokenUsers::All], true));
        let own = || Some(Arc::clone(&identity));
        assert_eq!(seen(own()), (Vec::new(), false));
        identity.pods().apply(agent());
        assert_eq!(seen(own()), (vec![TokenUsers::Only(vec!["kube-system/agent-1".to_owned()])], true));
    }

    #[tokio::test(start_paused = true)]
    async fn with_identity_it_is_never_ready_before_the_first_list_of_pods() {
        let (_proc, identity) = unlisted();
        let readiness =
            Readiness::new(Arc::default(), store(), Some(Arc::clone(&identity)), Arc::default(), Drain::default());
        readiness.serving();
        readiness.warm();
        assert_eq!(readiness.state(), State::Starting);
        for wait in [WARM_START, Duration::from_secs(3600)] {
            tokio::time::sleep(wait).await;
            assert!(matches!(readiness.state(), State::Unable(_)), "{}", readiness.state());
            assert!(!readiness.state().is_ready());
        }
        identity.pods().replace([]);
        assert_eq!(readiness.state(), State::Ready, "a node may have no pods");
    }

    #[tokio::test(start_paused = true)]
    async fn pods_that_are_known_from_before_are_served_although_the_api_server_is_away() {
        let (_proc, identity) = unlisted();
        let readiness =
            Readiness::new(Arc::default(), store(), Some(Arc::clone(&identity)), Arc::default(), Drain::default());
        readiness.serving();
        readiness.warm();
        identity.pods().restore([], BootTime::now());
        suspend(Duration::from_secs(600));
        assert!(readiness.state().is_ready());
        assert!(readiness.state().to_string().contains("nothing about pods for 600 s"), "{}", readiness.state());
    }

    #[tokio::test]
    async fn it_follows_the_process_from_start_to_end() {
        let drain = Drain::default();
        let readiness = Readiness::new(Arc::default(), store(), None, Arc::default(), drain.clone());
        assert_eq!(readiness.state(), State::Starting);
        assert!(!readiness.state().is_ready());
        readiness.serving();
        assert_eq!(readiness.state(), State::Starting, "not before what pods ask for first is known");
        readiness.warm();
        assert_eq!(readiness.state(), State::Ready);
        drain.finish(Duration::ZERO).await;
        assert_eq!(readiness.state(), State::Draining);
        assert!(!readiness.state().is_ready());
    }
}
