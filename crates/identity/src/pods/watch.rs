//! [`follow`]: keeps [`Pods`] up to date from the API server.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::select;
use tokio::time::{sleep, timeout};

use super::{Pod, PodUid, Pods, object};
use crate::cluster::{Cluster, Event, Events, Failure, MAX_SILENCE, PodObject, RequestError, Since};
use base::backoff::{Backoff, Jitter};
use base::clock::BootTime;

/// Maximum time for a list that comes as events, the same as for a list in one response.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// Initial and maximum pause between attempts. Pods that start while the API server is unreachable are unknown until
/// the watch resumes, so the maximum is short; the jitter keeps the nodes of a cluster apart.
const BACK_OFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5)).with(Jitter(0.5, 1.0));

/// Maximum pause while a pod that the API server has not reported sends requests, and no server answers. So such a pod is
/// known within a second after the API server is back. Few nodes of a cluster have one: while the API server is unreachable,
/// no pod is scheduled. If each of 15,000 had one, they would try to connect 20,000 times a second, 1.3 times each, and each
/// must connect once anyway. A server that answers, if only to refuse, may be overloaded, and gets the long pause.
const MAX_PAUSE_IF_MISSED: Duration = Duration::from_secs(1);

/// Time without an event after which a list is requested for a pod that the API server has not reported and that sends requests.
/// The kubelet learned of it from the API server, so the watch, or a load balancer in front of it, may be dead. Once per
/// [`MAX_SILENCE`], because such a pod may be a static one, which is never reported.
const MAX_SILENCE_IF_MISSED: Duration = Duration::from_secs(5);

/// An event of the watch, for metrics.
#[derive(Debug)]
pub enum WatchEvent<'a> {
    /// A complete list was read: [`Pods`] has these pods and no others.
    Listed { pods: usize },
    /// An attempt failed. Known pods stay.
    Failed {
        error: &'a RequestError,
        /// Whether it was logged: it is the first of its kind since the last success.
        is_logged: bool,
    },
    /// The API server answers again after a failure that was logged.
    Recovered,
}

/// Keeps `pods` as the API server describes them, forever. `on` gets each event of the watch, for metrics. Failures are
/// logged here, each once until the watch recovers.
///
/// A failure leaves `pods` unchanged: [`Pods::age`] says how long the API server has been silent. A new list replaces
/// them only when it is complete.
pub async fn follow(cluster: Cluster, pods: Arc<Pods>, on: impl Fn(WatchEvent<'_>)) -> Infallible {
    let mut watch = Watch {
        cluster,
        pods,
        on,
        version: None,
        streams_lists: true,
        failures: 0,
        reported: Vec::new(),
        listed_early: None,
    };
    loop {
        let ended = watch.run().await;
        watch.failures = watch.failures.saturating_add(1);
        if let Err(error) = &ended {
            watch.failed(error);
        }
        rest(&watch.pods, watch.failures, ended.err()).await;
    }
}

/// Waits until the next attempt, and at least as long as the server demands.
async fn rest(pods: &Pods, failures: u32, error: Option<RequestError>) {
    let random = fastrand::f64();
    let (is_away, demanded) =
        error.map_or((false, Duration::ZERO), |error| (is_away(error.failure()), error.demanded(random)));
    let longest = BACK_OFF.wait(failures, random).max(demanded);
    let shortest = if is_away { BACK_OFF.up_to(MAX_PAUSE_IF_MISSED).wait(failures, random) } else { longest };
    sleep(shortest).await;
    let _ = timeout(longest.saturating_sub(shortest), pods.is_missed()).await;
}

/// Whether the server is unreachable or does not answer.
fn is_away(failure: Failure) -> bool {
    match failure {
        Failure::Connection | Failure::Tls(_) | Failure::Silent => true,
        Failure::Cluster | Failure::Refused(_) | Failure::Expired | Failure::Invalid => false,
    }
}

struct Watch<F> {
    cluster: Cluster,
    pods: Arc<Pods>,
    on: F,
    /// The resource version of `pods`. `None` before the first list, when events since then are lost, and after a long silence.
    version: Option<String>,
    /// Whether the server may send a list as events: Kubernetes 1.34 and later, by default. Not after an event that made no
    /// sense: the list has that object too, with less of it, so that one object does not keep the others from being known.
    streams_lists: bool,
    /// Attempts without an event.
    failures: u32,
    /// The kinds of failures logged since the last success.
    reported: Vec<Failure>,
    /// Time of the last list for a pod that was [missed](MAX_SILENCE_IF_MISSED).
    listed_early: Option<BootTime>,
}

impl<F: Fn(WatchEvent<'_>)> Watch<F> {
    /// Lists if needed, and watches until the watch ends.
    async fn run(&mut self) -> Result<(), RequestError> {
        // A watch that is accepted may say nothing for a minute, and be cut before. A list says at once what is known.
        if self.pods.age() > Some(MAX_SILENCE) {
            self.version = None;
        }
        let mut events = match &self.version {
            Some(version) => self.cluster.node_pods(Since::Version(version)).await?,
            None if self.streams_lists => self.list_by_events().await?,
            None => self.list().await?,
        };
        loop {
            let event = select! {
                event = events.next() => event?,
                // A server that has nothing new says so once a minute. A list says it at once.
                () = self.pods.is_doubted() => {
                    self.version = None;
                    None
                }
                () = self.is_missed_in_silence() => {
                    tracing::debug!("a pod that is not reported sends requests, and the watch is silent: listing this node's pods");
                    (self.version, self.listed_early) = (None, Some(BootTime::now()));
                    None
                }
            };
            let Some(event) = event else { return Ok(()) };
            self.failures = 0;
            self.recovered();
            self.take(event)?;
        }
    }

    /// Waits for a request of a pod that the watch may have failed to report.
    async fn is_missed_in_silence(&self) {
        loop {
            self.pods.is_missed().await;
            let may_list = self.listed_early.is_none_or(|listed| BootTime::now().since(listed) >= MAX_SILENCE);
            if may_list && self.pods.age() >= Some(MAX_SILENCE_IF_MISSED) {
                return;
            }
        }
    }

    /// Reads a list that comes as the first events of a watch.
    async fn list_by_events(&mut self) -> Result<Events, RequestError> {
        let read = async {
            let mut events = self.cluster.node_pods(Since::Beginning).await?;
            let (pods, version) = self.read_list(&mut events).await?;
            Ok::<_, RequestError>((events, pods, version))
        };
        // An older server refuses the parameters, or ignores them and never ends the list.
        let read = timeout(LIST_TIMEOUT, read).await.map_err(|_| RequestError::Silent(LIST_TIMEOUT));
        self.streams_lists = match &read {
            Ok(Err(error)) => {
                !matches!(error.failure(), Failure::Refused(StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY))
            }
            Ok(Ok(_)) => true,
            Err(_) => false,
        };
        match read? {
            Ok((events, pods, version)) => {
                self.replace(pods, version)?;
                Ok(events)
            }
            Err(_) if !self.streams_lists => self.list().await,
            Err(error) => Err(error),
        }
    }

    async fn read_list(&self, events: &mut Events) -> Result<(HashMap<PodUid, Pod>, String), RequestError> {
        let mut pods = HashMap::new();
        while let Some(event) = events.next().await? {
            match event {
                Event::Applied(object) => pods.extend(self.pod(&object).map(|pod| (pod.uid, pod))),
                Event::Deleted(object) => {
                    PodUid::parse(&object.metadata.uid).and_then(|uid| pods.remove(&uid));
                }
                Event::Bookmark { version, ends_list: true } => return Ok((pods, version)),
                Event::Bookmark { .. } => {}
            }
        }
        Err(RequestError::Lost("the list ended before it was whole".to_owned()))
    }

    /// Requests a list, and then a watch from its version on.
    async fn list(&mut self) -> Result<Events, RequestError> {
        let (objects, version) = self.cluster.list().await?;
        let pods = objects.iter().filter_map(|object| self.pod(object)).map(|pod| (pod.uid, pod)).collect();
        // The next attempt resumes from here even if the watch cannot be started now.
        self.replace(pods, version.clone())?;
        self.cluster.node_pods(Since::Version(&version)).await
    }

    fn replace(&mut self, pods: HashMap<PodUid, Pod>, version: String) -> Result<(), RequestError> {
        self.version = Some(versioned(version)?);
        let count = pods.len();
        self.pods.replace(pods.into_values());
        (self.on)(WatchEvent::Listed { pods: count });
        tracing::debug!(pods = count, "this node's pods are known");
        self.recovered();
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), RequestError> {
        let version = match event {
            Event::Applied(object) => {
                match self.pod(&object) {
                    Some(pod) => self.pods.apply(pod),
                    None => self.pods.heard(),
                }
                object.metadata.resource_version
            }
            Event::Deleted(object) => {
                match PodUid::parse(&object.metadata.uid) {
                    Some(uid) => self.pods.remove(uid),
                    None => self.pods.heard(),
                }
                object.metadata.resource_version
            }
            Event::Bookmark { version, .. } => {
                self.pods.heard();
                version
            }
        };
        self.version = Some(versioned(version)?);
        Ok(())
    }

    /// `None` if it is not one of this node's pods, or has no valid UID.
    fn pod(&self, object: &PodObject) -> Option<Pod> {
        object::read(object, self.cluster.node())
    }

    /// Decides how the next attempt begins, and logs changes.
    fn failed(&mut self, error: &RequestError) {
        let failure = error.failure();
        // Expected after a long outage; and it is an answer.
        if failure != Failure::Expired {
            self.pods.unanswered();
        }
        if loses_events(failure) {
            self.version = None;
        }
        self.streams_lists &= failure != Failure::Invalid;
        let is_logged = failure != Failure::Expired && !self.reported.contains(&failure);
        if is_logged {
            self.reported.push(failure);
            let (node, server) = (self.cluster.node(), self.cluster.server());
            tracing::warn!(%server, "cannot watch the pods of node {node}: {error}. Known pods are kept; retrying");
        }
        (self.on)(WatchEvent::Failed { error, is_logged });
    }

    fn recovered(&mut self) {
        if !self.reported.is_empty() {
            self.reported.clear();
            (self.on)(WatchEvent::Recovered);
            tracing::info!("watching the pods of node {} again", self.cluster.node());
        }
    }
}

/// Whether a watch cannot resume at its version after this failure. A new list is cheap, and always correct.
fn loses_events(failure: Failure) -> bool {
    match failure {
        Failure::Cluster | Failure::Connection | Failure::Tls(_) | Failure::Silent => false,
        // The server or the permission may come back. Other refusals may be about the version, such as 504 for one that
        // is in the future because the cluster's store was restored.
        Failure::Refused(status) => !matches!(
            status,
            StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::TOO_MANY_REQUESTS
                | StatusCode::SERVICE_UNAVAILABLE
        ),
        Failure::Expired | Failure::Invalid => true,
    }
}

/// Checks that a watch can resume at this version. Without a version, it would silently begin anywhere.
fn versioned(version: String) -> Result<String, RequestError> {
    if version.is_empty() { Err(RequestError::Invalid("no resourceVersion".to_owned())) } else { Ok(version) }
}

#[cfg(test)]
mod tests;
