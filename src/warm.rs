//! Cache warmup: fetches the default token and common values before the proxy reports readiness, and keeps
//! the values fresh.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use crate::readiness::{Readiness, TokenUsers};
use crate::shared::Shared;
use base::backoff::Backoff;
use identity::Identity;
use identity::tokens::Sources;
use protocol::metadata::CommonPath;
use proxy::layers::leaves::{Leaf, Leaves, Lifetime};
use proxy::layers::token_cache::{Store, Tokens};
use proxy::tokens::{NoToken, TokenKey, TokenSource};

/// Initial and maximum interval between attempts.
const BACK_OFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));

/// The warmup of all caches.
#[derive(Debug)]
pub struct WarmStart<T> {
    /// Values that every client library requests.
    pub leaves: Arc<Leaves>,
    /// Receives the default account's email.
    pub store: Arc<Store>,
    /// Fetches the default account's token.
    pub tokens: Tokens<T>,
    /// Receives the project's number, and knows which pods use the node's token. `None` if all do.
    pub identity: Option<Arc<Identity>>,
}

impl WarmStart<Sources> {
    /// Fills the caches that connections share.
    pub fn new(shared: &Shared) -> Self {
        Self {
            leaves: Arc::clone(&shared.leaves),
            store: Arc::clone(shared.tokens.store()),
            tokens: shared.tokens.clone(),
            identity: shared.identity.clone(),
        }
    }
}

impl<T: TokenSource> WarmStart<T> {
    /// Fetches everything, reports readiness, and keeps refreshing while polled.
    pub async fn run(self, readiness: Readiness) {
        let warm = Arc::new(self);
        readiness.awaits(Arc::clone(&warm.leaves));
        // A value that cannot be fetched does not keep the others from being refreshed.
        let mut refreshing = JoinSet::new();
        for lifetime in Lifetime::ALL {
            refreshing.spawn(Arc::clone(&warm).refresh(lifetime));
        }
        warm.fetch_all().await;
        readiness.warm();
        tracing::info!("cache warmed up: the default token and common values are cached");
        // Refreshing never ends.
        while let Some(refreshed) = refreshing.join_next().await {
            refreshed.expect("it does not panic");
        }
    }

    /// Fetches everything concurrently, so that it takes only as long as the slowest response. The token is requested
    /// first, because most pods need it.
    async fn fetch_all(self: &Arc<Self>) {
        let mut fetching = JoinSet::new();
        fetching.spawn(Arc::clone(self).fetch_token());
        // Lets the tasks that fetch the token run.
        yield_now().await;
        for leaf in Leaf::all() {
            fetching.spawn(Arc::clone(self).fetch(leaf));
        }
        // It panics if one of them does.
        fetching.join_all().await;
    }

    async fn fetch_token(self: Arc<Self>) {
        let mut failures = 0;
        while !self.has_token().await {
            failed(&mut failures).await;
        }
    }

    async fn fetch(self: Arc<Self>, leaf: Leaf) {
        let (mut failures, mut is_logged) = (0, false);
        // The warmup does not wait for trees: some servers have none.
        while !self.leaves.warm(leaf).await && !leaf.is_tree() {
            // A server that refuses does not fail, so nothing else is logged. It may refuse all values: a line for the first is
            // enough.
            if !is_logged
                && let Some((first, status)) = self.leaves.refused()
                && first == leaf
            {
                is_logged = true;
                let status = status.as_u16();
                tracing::warn!(
                    "the metadata server answers {status} to {leaf}, which pods request first; asking again until it answers 200; is \
                     --upstream the metadata server of this machine?"
                );
            }
            failed(&mut failures).await;
        }
        self.learn(leaf);
    }

    /// Refreshes the values with this lifetime, one after the other. A value whose refresh fails stays.
    async fn refresh(self: Arc<Self>, lifetime: Lifetime) {
        loop {
            sleep(lifetime.refresh_interval()).await;
            for leaf in Leaf::all().filter(|leaf| leaf.lifetime() == lifetime) {
                self.leaves.refresh(leaf).await;
                self.learn(leaf);
            }
        }
    }

    /// Passes on values that other parts need: the default account's email, and the project number.
    fn learn(&self, leaf: Leaf) {
        let text = |path| {
            let value = self.leaves.value(Leaf::new(path, false)?)?;
            String::from_utf8(value.to_vec()).ok()
        };
        match leaf.path() {
            CommonPath::DefaultEmail => {
                if let Some(email) = text(CommonPath::DefaultEmail) {
                    self.store.know_default_email(&email);
                }
            }
            CommonPath::ProjectId | CommonPath::NumericProjectId => {
                let project = text(CommonPath::ProjectId).zip(text(CommonPath::NumericProjectId));
                let names = self.identity.as_ref().and_then(|identity| identity.workloads().names());
                if let (Some(names), Some((id, number))) = (names, project) {
                    names.know_project(&id, &number);
                }
            }
            _ => {}
        }
    }

    /// Whether the token is there, or no pod needs it.
    async fn has_token(&self) -> bool {
        match self.tokens.warm(TokenKey::default_account()).await {
            Ok(()) => true,
            // A machine without a service account.
            Err(NoToken::Refused(refused)) if refused.status == StatusCode::NOT_FOUND => true,
            // The cache goes on asking for it.
            Err(_) => self.identity.as_deref().is_some_and(needs_no_token_of_the_node),
        }
    }
}

/// Whether no pod acts as the node. `false` until the pods are known.
fn needs_no_token_of_the_node(identity: &Identity) -> bool {
    identity.pods().last_heard().is_some() && TokenUsers::of(Some(identity)).is_none()
}

/// Counts a failure, and waits until the next attempt.
async fn failed(failures: &mut u32) {
    *failures = failures.saturating_add(1);
    sleep(BACK_OFF.wait(*failures, 0.0)).await;
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;
    use http::Response;
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::readiness::Trouble;
    use crate::readiness::tests::{Failing, agent, unlisted};
    use protocol::metadata::token::AccessToken;
    use proxy::failure::{Failure, UPSTREAM_TIMEOUT};
    use proxy::layers::token_cache::DEFAULT_LIMIT_BYTES;
    use proxy::reply::Body;
    use proxy::server::Drain;
    use proxy::shares::Client;
    use proxy::tokens::Fetched;
    use telemetry::Registry;

    /// Duration of each response.
    const DELAY: Duration = Duration::from_secs(2);

    /// The requests, in order.
    type Asked = Arc<Mutex<Vec<String>>>;

    struct Source(Asked);

    impl TokenSource for Source {
        fn deadline(&self) -> Duration {
            UPSTREAM_TIMEOUT
        }

        async fn fetch(&self, _: &TokenKey, _: Client, _: proxy::tokens::Urgency) -> Result<Fetched, NoToken> {
            self.0.lock().expect("no panic").push("token".to_owned());
            sleep(DELAY).await;
            let body = br#"{"access_token":"a","expires_in":3599,"token_type":"Bearer"}"#;
            let (token, left) = AccessToken::parse(body).expect("a token");
            Ok(Fetched::Access(token, left))
        }
    }

    /// A warmup in front of a server that responds with these statuses. 0 is an immediate failure.
    fn warmup(status: impl Fn(Leaf, usize) -> u16 + Send + Sync + 'static) -> (Arc<WarmStart<Source>>, Asked) {
        let asked = Asked::default();
        let recorded = Arc::clone(&asked);
        let leaves = Arc::new(Leaves::new(move |leaf| {
            let name = leaf.to_string();
            let mut recorded = recorded.lock().expect("no panic");
            let before = recorded.iter().filter(|other| **other == name).count();
            recorded.push(name);
            let status = status(leaf, before);
            async move {
                let Ok(status) = StatusCode::from_u16(status) else { return Err(Failure::Closed) };
                sleep(DELAY).await;
                let mut response = Response::new(Body::Whole(Bytes::from_static(b"a@b.c")));
                *response.status_mut() = status;
                Ok(response)
            }
        }));
        let store = Store::new(DEFAULT_LIMIT_BYTES, &Registry::default());
        let tokens = Tokens::new(Arc::clone(&store), Source(Arc::clone(&asked)));
        (Arc::new(WarmStart { leaves, store, tokens, identity: None }), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_server_that_refuses_everything_answers_is_said() {
        let refusal = |status, path| {
            format!("the metadata server answers {status} to /computeMetadata/v1/{path}, which pods request first")
        };
        for (status, seen) in [
            (403, refusal(403, "universe/universe-domain")),
            (404, refusal(404, "project/project-id")),
            (503, Trouble::Cold(None).to_string()),
        ] {
            let (warm, _) = warmup(move |_, _| status);
            let readiness =
                Readiness::new(Arc::default(), Arc::clone(&warm.store), None, Arc::default(), Drain::default());
            let running = Arc::into_inner(warm).expect("not shared yet").run(readiness.clone());
            assert!(timeout(Duration::from_secs(60), running).await.is_err(), "it goes on asking");
            let troubles: Vec<_> = readiness.troubles().iter().map(ToString::to_string).collect();
            assert_eq!(troubles, [seen]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_cached_is_refreshed_while_another_value_cannot_be_fetched() {
        let (warm, asked) = warmup(|leaf, _| if leaf.path() == CommonPath::ProjectId { 403 } else { 200 });
        let readiness = Readiness::new(Arc::default(), Arc::clone(&warm.store), None, Arc::default(), Drain::default());
        let running = Arc::into_inner(warm).expect("not shared yet").run(readiness.clone());
        let two_rounds = Lifetime::Attribute.refresh_interval() * 2 + Duration::from_secs(60);
        assert!(timeout(two_rounds, running).await.is_err(), "it goes on");
        assert!(!readiness.troubles().is_empty(), "it is not ready");
        let cluster = Leaf::new(CommonPath::ClusterName, false).expect("a leaf").to_string();
        let count = asked.lock().expect("no panic").iter().filter(|asked| **asked == cluster).count();
        assert_eq!(count, 3, "once at the start, and each minute");
    }

    /// Duration of the warmup, at most a minute.
    async fn duration<T: TokenSource>(warm: &Arc<WarmStart<T>>) -> Duration {
        let began = Instant::now();
        let _ = timeout(Duration::from_secs(60), warm.fetch_all()).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn everything_is_fetched_at_once_and_the_token_first() {
        let (warm, asked) = warmup(|_, _| 200);
        assert_eq!(duration(&warm).await, DELAY);
        let asked = asked.lock().expect("no panic");
        assert_eq!((asked[0].as_str(), asked.len()), ("token", 1 + Leaf::all().count()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_that_may_be_missing_delays_nothing() {
        let (warm, _) = warmup(|leaf, _| if leaf.may_be_missing() { 404 } else { 200 });
        assert_eq!(duration(&warm).await, DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn the_node_s_token_delays_nothing_while_all_pods_have_their_own() {
        let (warm, _) = warmup(|_, _| 200);
        let (_proc, identity) = unlisted();
        let warm = |identity| WarmStart {
            leaves: Arc::clone(&warm.leaves),
            store: Arc::clone(&warm.store),
            tokens: Tokens::new(Store::new(DEFAULT_LIMIT_BYTES, &Registry::default()), Failing),
            identity,
        };
        let own = || Some(Arc::clone(&identity));
        assert_eq!(duration(&Arc::new(warm(own()))).await, Duration::from_secs(60), "the pods are not known yet");
        identity.pods().replace([]);
        assert_eq!(duration(&Arc::new(warm(own()))).await, DELAY);
        identity.pods().apply(agent());
        assert_eq!(duration(&Arc::new(warm(own()))).await, Duration::from_secs(60), "a pod acts as the node");
        assert_eq!(duration(&Arc::new(warm(None))).await, Duration::from_secs(60), "all pods do");
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_is_fetched_again_by_itself() {
        let (warm, asked) = warmup(|leaf, before| match (leaf.path(), before) {
            (CommonPath::Zone, 0) => 0,
            (CommonPath::ProjectId, 0) => 404,
            _ => 200,
        });
        assert_eq!(
            duration(&warm).await,
            DELAY + BACK_OFF.wait(1, 0.0) + DELAY,
            "the zone did not wait for the project"
        );
        assert_eq!(asked.lock().expect("no panic").len(), 1 + Leaf::all().count() + 2);
    }

    #[tokio::test(start_paused = true)]
    async fn attributes_are_refreshed_each_minute_and_the_rest_and_unread_trees_each_ten_minutes() {
        let (warm, asked) = warmup(|_, _| 200);
        warm.fetch_all().await;
        asked.lock().expect("no panic").clear();
        for lifetime in Lifetime::ALL {
            tokio::spawn(Arc::clone(&warm).refresh(lifetime));
        }
        let interval = Lifetime::Attribute.refresh_interval();
        let rest = Duration::from_secs(9 * 60 + 59);
        sleep(interval + rest).await;
        // The values of a round are fetched one after the other.
        let attributes = Leaf::all().filter(|leaf| leaf.lifetime() == Lifetime::Attribute).count();
        let round = interval + DELAY * u32::try_from(attributes).expect("few");
        let rounds = 1 + rest.as_secs() / round.as_secs();
        let asked = asked.lock().expect("no panic");
        let count = |leaf: Option<Leaf>| {
            let name = leaf.expect("a leaf").to_string();
            asked.iter().filter(|asked| **asked == name).count()
        };
        assert_eq!(count(Leaf::new(CommonPath::Zone, false)), 1);
        assert_eq!(count(Leaf::new(CommonPath::Instance, true)), 1);
        assert_eq!(count(Leaf::new(CommonPath::ClusterName, false)) as u64, rounds, "{asked:?}");
    }
}
