//! [`Pod`]: a pod that runs, and its client, which compares the proxy's answers with the facts about the pod.

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mock::google::{Subject, Workload};
use serde_json::Value;
use tokio::time::Instant;

use crate::kube::{PodObject, pause};
use crate::namespace::Kept;
use crate::sandbox::{Address, Node, Sandbox};
use crate::tally::Tally;

/// The port on which proxies listen.
pub const PORT: u16 = 988;

/// Path of a pod's token. One in this number of requests is for it.
const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";
const TOKENS: u8 = 4;

/// Path of a pod's identity.
const WHOAMI: &str = "/whoami";

/// A pod whose sandbox was made.
pub struct Pod {
    pub object: PodObject,
    pub address: Address,
    pub began: Instant,
    node: [SocketAddr; 2],
    sandbox: Mutex<Sandbox>,
    /// Set once requests may fail.
    is_ending: AtomicBool,
    /// Set once its clients end.
    is_over: AtomicBool,
}

/// A response to a pod.
#[derive(Debug)]
pub struct Asked {
    pub status: u16,
    pub body: String,
    /// Headers and body.
    pub text: String,
}

impl Asked {
    pub fn read(text: String) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Self { status, body: body.to_owned(), text }
    }
}

/// An answer to a pod, compared with the facts about it.
#[derive(Debug)]
pub enum Told {
    /// The pod's own identity.
    Itself,
    /// 503: not known, or ambiguous.
    Unavailable,
    /// No response.
    Broken(ErrorKind),
    /// The identity of another.
    Somebody(String),
    /// Another response.
    Odd(String),
}

impl Pod {
    /// Makes the sandbox of a pod.
    pub fn start(node: &Arc<Node>, object: PodObject, address: Address) -> Arc<Self> {
        let sandbox = Mutex::new(Sandbox::start(node, &object.uid, address));
        let (began, of_node) = (Instant::now(), node.network.node());
        let node = of_node.both().map(|ip| (ip, PORT).into());
        let (is_ending, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { object, address, began, node, sandbox, is_ending, is_over })
    }

    pub fn sandbox(&self) -> MutexGuard<'_, Sandbox> {
        self.sandbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The proxy's address, by IPv4.
    pub fn proxy(&self) -> SocketAddr {
        self.node[0]
    }

    /// Opens a connection to the proxy. From a thread that is in the pod's network.
    pub fn connect(&self) -> Option<Kept> {
        Kept::open(self.node[usize::from(fastrand::bool())])
    }

    /// Requests the pod's identity. From a thread that is in the pod's network.
    pub fn ask(&self, connection: &mut Kept) -> Told {
        self.compare(connection, WHOAMI, |body| serde_json::from_str(body).is_ok_and(|told| self.is(&told)))
    }

    /// Requests a token, which names its subject. From a thread that is in the pod's network.
    pub fn ask_for_token(&self, connection: &mut Kept) -> Told {
        self.compare(connection, TOKEN, |body| {
            let token =
                serde_json::from_str(body).ok().and_then(|body: Value| Subject::read(body["access_token"].as_str()?));
            let own = Workload::new(&self.object.namespace, &self.object.account);
            token.is_some_and(|subject| subject.workload == own)
        })
    }

    /// Sends a request, and compares the response with the facts about this pod.
    fn compare(&self, connection: &mut Kept, path: &str, is_own: impl FnOnce(&str) -> bool) -> Told {
        let answer = match connection.ask(path) {
            Ok(answer) => answer,
            Err(error) => return Told::Broken(error),
        };
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        match head.split(' ').nth(1) {
            Some("503") => Told::Unavailable,
            Some("200") if is_own(body) => Told::Itself,
            Some("200") => Told::Somebody(format!("{self} was told {body}")),
            _ => Told::Odd(answer),
        }
    }

    fn is(&self, told: &Value) -> bool {
        let PodObject { namespace, name, account, uid } = &self.object;
        let told = ["namespace", "pod", "serviceAccount", "uid"].map(|key| told[key].as_str());
        told == [namespace, name, account, uid].map(|text| Some(text.as_str()))
    }

    /// The response to a request on a new connection. A connection of the clock tick in which the pod's first process
    /// began is reset.
    pub fn get(self: &Arc<Self>, path: &str) -> Asked {
        let path = path.to_owned();
        let text = self.inside(move |pod| {
            let began = Instant::now();
            loop {
                match pod.connect().expect("the proxy listens").ask(&path) {
                    Ok(answer) => return answer,
                    Err(error) => assert!(began.elapsed() < Duration::from_secs(10), "{error}"),
                }
            }
        });
        Asked::read(text)
    }

    /// Runs work on a thread in the pod's network.
    pub fn inside<T: Send + 'static>(self: &Arc<Self>, work: impl FnOnce(&Self) -> T + Send + 'static) -> T {
        self.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Waits until the proxy knows the pod. Returns a connection of it.
    pub fn become_known(self: &Arc<Self>) -> Kept {
        self.inside(|pod| {
            let began = Instant::now();
            loop {
                let mut connection = pod.connect().expect("the proxy listens");
                match pod.ask(&mut connection) {
                    Told::Itself => return connection,
                    told => assert!(began.elapsed() < Duration::from_secs(20), "{pod} got {told:?}"),
                }
            }
        })
    }

    /// Runs work on a thread in the pod's network, and does not wait for it.
    pub fn spawn<T: Send + 'static>(self: &Arc<Self>, work: impl FnOnce(&Self) -> T + Send + 'static) -> JoinHandle<T> {
        let pod = Arc::clone(self);
        self.sandbox().spawn(move || work(&pod))
    }

    /// Sends requests on a thread in the pod's network until the pod is over, on connections that it keeps for a while,
    /// with pauses of this average length. With tokens, it requests these, too.
    pub fn live(self: &Arc<Self>, gap: Duration, has_tokens: bool, tally: &Arc<Tally>) -> JoinHandle<()> {
        let (pod, tally) = (Arc::clone(self), Arc::clone(tally));
        let began = tally.heard();
        self.sandbox().spawn(move || {
            let mut kept = None;
            for asked in 0.. {
                if pod.is_over.load(Relaxed) || tally.is_complete() {
                    return;
                }
                if fastrand::u8(..3) == 0 {
                    kept = None;
                }
                kept = pod.ask_once(kept, has_tokens && fastrand::u8(..TOKENS) == 0, began, &tally);
                // A pod's first requests come as soon as it runs.
                if asked >= 5 || kept.is_none() {
                    pause(gap.mul_f64(fastrand::f64() * 2.0));
                }
            }
        })
    }

    /// Sends a request and counts the answer. Returns the connection if it lives. `began`: for how long the API server had
    /// been heard then.
    fn ask_once(&self, kept: Option<Kept>, is_for_token: bool, began: Duration, tally: &Tally) -> Option<Kept> {
        let is_known = tally.must_know(began);
        let mut connection = kept.or_else(|| self.connect());
        let told = match &mut connection {
            Some(open) if is_for_token => self.ask_for_token(open),
            Some(open) => self.ask(open),
            None => Told::Broken(ErrorKind::ConnectionRefused),
        };
        let is_alive = matches!(told, Told::Itself | Told::Unavailable);
        tally.count(told, is_known && !self.is_ending.load(Relaxed));
        connection.filter(|_| is_alive)
    }

    /// From now on it may get no response.
    pub fn begins_to_end(&self) {
        self.is_ending.store(true, Relaxed);
    }

    /// Stops its client after the request that it has sent.
    pub fn stop_asking(&self) {
        self.begins_to_end();
        self.is_over.store(true, Relaxed);
    }

    /// Ends the processes of its sandbox.
    pub fn kill(&self) {
        self.begins_to_end();
        self.sandbox().kill();
    }

    /// Frees its address, which its network keeps.
    pub fn stick(&self) {
        self.begins_to_end();
        self.sandbox().stick();
    }

    /// Takes its network away.
    pub fn unplug(&self) {
        self.begins_to_end();
        self.sandbox().unplug();
    }
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PodObject { namespace, name, account, uid } = &self.object;
        let (address, age) = (self.address.v4, self.began.elapsed());
        write!(f, "{namespace}/{name} ({account}, {uid}), at {address} for {age:.1?},")
    }
}
