//! [`Leaves`]: all cached values. Fetches each of them at most once at a time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};

use super::leaf::Leaf;
use super::slot::{Answer, Landed, Lookup, Slot};
use crate::error::Error;
use crate::failure::Failure;
use crate::reply::Body;
use base::clock::BootTime;
use base::hook::Hook;
use protocol::metadata::{CommonPath, Endpoint, Principal, Request};

/// Requests a leaf from the server, within the upstream timeout.
type Fetch = dyn Fn(Leaf) -> Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>> + Send + Sync;

/// The cached values.
#[derive(Debug)]
pub struct Leaves {
    /// By path, and then by form: plain and recursive.
    slots: [[Slot; 2]; CommonPath::ALL.len()],
    fetch: Hook<Fetch>,
}

/// A cached value as operators see it.
#[derive(Debug, Clone, Copy)]
pub struct LeafRow {
    pub leaf: Leaf,
    /// 200, or 404 if the server does not have the value.
    pub status: StatusCode,
    /// Time since the request to the server.
    pub age: Duration,
}

impl Leaves {
    /// Caches nothing yet. `fetch` requests a leaf from the server, and must give up after the upstream timeout.
    pub fn new<F, E>(fetch: impl Fn(Leaf) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Response<Body>, E>> + Send + 'static,
        E: Into<Error>,
    {
        let fetch = Arc::new(fetch);
        let fetch = move |leaf| {
            let answer = fetch(leaf);
            Box::pin(async move { answer.await.map_err(Into::into) }) as Pin<Box<dyn Future<Output = _> + Send>>
        };
        Self { slots: Default::default(), fetch: Hook::new(Arc::new(fetch)) }
    }

    /// Caches a response that was just fetched.
    pub fn keep(&self, leaf: Leaf, status: StatusCode, headers: HeaderMap, body: &Bytes) {
        let now = BootTime::now();
        let answer = Answer::copied(status, headers, body, now);
        self.slot(leaf).lock().land(leaf, &Landed::Kept(Arc::new(answer)), now);
    }

    /// Fetches a leaf now, or joins the current flight. Returns whether the server's answer was valid: the value, or
    /// 404 where the value may be missing.
    pub async fn refresh(self: &Arc<Self>, leaf: Leaf) -> bool {
        self.landing(leaf).await.is_final()
    }

    /// Fetches all trees, one after the other.
    pub async fn refresh_trees(self: &Arc<Self>) {
        for leaf in Leaf::all().filter(|leaf| leaf.is_tree()) {
            self.refresh(leaf).await;
        }
    }

    /// Fetches a leaf unless it is cached. Returns the same as [`Leaves::refresh`].
    pub async fn warm(self: &Arc<Self>, leaf: Leaf) -> bool {
        match self.find(leaf, BootTime::now()) {
            Lookup::Known(landed) if landed.is_final() => true,
            _ => self.refresh(leaf).await,
        }
    }

    /// The value of a leaf, if it is known.
    pub fn value(&self, leaf: Leaf) -> Option<Bytes> {
        self.slot(leaf).read().kept()?.value().cloned()
    }

    /// The first value that the server refused when it was last asked for it, and the status of that answer. Trees are left out:
    /// some servers have none.
    pub fn refused(&self) -> Option<(Leaf, StatusCode)> {
        let status = |leaf| self.slot(leaf).read().refused();
        Leaf::all().filter(|leaf| !leaf.is_tree()).find_map(|leaf| Some((leaf, status(leaf)?)))
    }

    /// The cached values and their current age.
    pub fn rows(&self, now: BootTime) -> Vec<LeafRow> {
        let row = |leaf| {
            let known = self.slot(leaf).read();
            let answer = known.kept()?;
            Some(LeafRow { leaf, status: answer.status, age: answer.age(now) })
        };
        Leaf::all().filter_map(row).collect()
    }

    /// The leaf that a request names in a cached form. Requests with any other parameter go to the server.
    ///
    /// Of requests for accounts, only the node's qualify, because the cached responses were given to the node, and
    /// other principals have other accounts. All other values are the same for all principals; from trees, `conceal`
    /// removes the node's accounts. `identify` lets requests of an unknown client pass for what all get alike, so none for
    /// a tree. Python requests its account by the alias first, and then by the email in that response.
    pub(super) fn leaf(&self, request: &Request) -> Option<Leaf> {
        let is_of_an_account = request.endpoint == Endpoint::ServiceAccounts;
        if is_of_an_account && request.principal != Principal::Node {
            return None;
        }
        let path = match request.path.common() {
            Some(path) => path,
            None => self.default_account(request)?,
        };
        Leaf::from_query(path, &request.query)
            .filter(|leaf| !(leaf.is_tree() && request.principal == Principal::Unknown))
    }

    /// [`CommonPath::DefaultAccount`], if a request names that account by its e-mail.
    fn default_account(&self, request: &Request) -> Option<CommonPath> {
        let email = request.path.as_str().strip_prefix(CommonPath::Accounts.as_str())?.strip_suffix('/')?;
        let known = self.value(Leaf::new(CommonPath::DefaultEmail, false)?)?;
        (known == email).then_some(CommonPath::DefaultAccount)
    }

    pub(super) fn find(&self, leaf: Leaf, now: BootTime) -> Lookup {
        self.slot(leaf).read().find(leaf, now)
    }

    /// Waits for the flight of a leaf, which begins now if there is none.
    pub(super) fn landing(self: &Arc<Self>, leaf: Leaf) -> impl Future<Output = Landed> + Send + use<> {
        let leaves = Arc::clone(self);
        let work = move || async move {
            let asked = BootTime::now();
            Landed::new(leaf, (leaves.fetch)(leaf).await, asked)
        };
        let mut landing = self.slot(leaf).lock().join(work, move |known, landed| {
            known.land(leaf, &landed, BootTime::now());
            landed
        });
        async move { landing.result().await.unwrap_or_else(|| Landed::Failed(Arc::new(Failure::Closed.into()))) }
    }

    fn slot(&self, leaf: Leaf) -> &Slot {
        let (path, form) = leaf.place();
        &self.slots[path][form]
    }
}
