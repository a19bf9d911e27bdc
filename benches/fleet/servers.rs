//! The servers that all nodes share: Google's Security Token Service with its quota, IAM, and the API server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_client::ClientError;
use identity::cluster::fake::{Asked, Fake};
use tokio::time::{Instant, sleep};

/// Lifetime of all tokens.
const LIFE: Duration = Duration::from_secs(3600);

/// The time of all of IAM's answers, and the end of its tokens: the proxy reads the life of one by the server's clock.
const DATE: &str = "Wed, 25 Nov 2026 00:00:00 GMT";
const ENDS: &str = "2026-11-25T01:00:00Z";

/// A token of an account that is replaced before this age was not due.
const DUE: Duration = Duration::from_secs(24 * 60);

const USED_UP: &str = r#"{"error":{"code":429,"message":"quota","status":"RESOURCE_EXHAUSTED"}}"#;

/// The annotation of a linked account.
const LINK: &str = r#""iam.gke.io/gcp-service-account":"app@shop.iam.gserviceaccount.com""#;

/// What a client of Google's waits before it gives up.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How the servers behave.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Exchanges a minute.
    pub quota: u32,
    /// Exchanges at once, after a pause.
    pub burst: u32,
    /// Shortest and longest time of an answer.
    pub latency: (Duration, Duration),
    /// Whether every second account is linked to a Google account.
    pub links: bool,
}

/// Requests within a minute.
#[derive(Debug, Clone, Copy, Default)]
pub struct Minute {
    /// That were sent to the Security Token Service.
    pub exchanges: u32,
    /// Of these, answered with 429.
    pub throttled: u32,
    /// Of these, for an account whose last token was not due on this node.
    pub early: u32,
    /// To the API server, for tokens and of accounts.
    pub kubernetes: u32,
    /// To IAM.
    pub iam: u32,
}

/// All servers.
pub struct Servers(Mutex<State>);

struct State {
    settings: Settings,
    began: Instant,
    is_down: bool,
    /// Exchanges that are left, as of a moment.
    left: (f64, Instant),
    minutes: Vec<Minute>,
    /// When an account last got a federated token, by node and account.
    issued: HashMap<(u32, u16), Instant>,
    serial: u64,
}

impl Servers {
    pub fn new(settings: Settings) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self(Mutex::new(State {
            settings,
            began: now,
            is_down: false,
            left: (settings.burst.into(), now),
            minutes: Vec::new(),
            issued: HashMap::new(),
            serial: 0,
        })))
    }

    /// Whether the Security Token Service answers nothing.
    pub fn set_down(&self, is_down: bool) {
        self.lock().is_down = is_down;
    }

    pub fn set_quota(&self, quota: u32) {
        self.lock().settings.quota = quota;
    }

    /// The requests of each minute so far.
    pub fn minutes(&self) -> Vec<Minute> {
        self.lock().minutes.clone()
    }

    /// Minutes since the beginning.
    pub fn minute(&self) -> usize {
        self.lock().minute_number()
    }

    async fn latency(&self) {
        let (least, most) = self.lock().settings.latency;
        sleep(least + most.saturating_sub(least).mul_f64(fastrand::f64())).await;
    }

    /// Answers a request to Google.
    pub async fn google(self: Arc<Self>, request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        let is_exchange = request.uri().path().ends_with("/v1/token");
        let answer = {
            let mut state = self.lock();
            if is_exchange {
                state.exchange(text_of(request.body(), "subjectToken"))
            } else {
                Some(state.impersonate())
            }
        };
        let Some((status, text)) = answer else {
            sleep(TIMEOUT).await;
            return Err(ClientError::TimedOut(TIMEOUT));
        };
        self.latency().await;
        Ok(Response::builder().status(status).header("date", DATE).body(Bytes::from(text)).expect("a response"))
    }

    /// Answers a node's requests to the API server, for ever.
    pub async fn kubernetes(self: Arc<Self>, node: u32, mut fake: Fake) {
        loop {
            let asked = fake.asked().await;
            let servers = Arc::clone(&self);
            tokio::spawn(async move {
                servers.latency().await;
                servers.answer(node, asked);
            });
        }
    }

    fn answer(&self, node: u32, asked: Asked) {
        let path = asked.request.uri().path().to_owned();
        let mut state = self.lock();
        state.minute().kubernetes += 1;
        if let Some(path) = path.strip_suffix("/token") {
            state.serial += 1;
            let token = format!("ksa.{node}.{}.{}", number_of(path), state.serial);
            let life = LIFE.as_secs();
            let body = format!(r#"{{"spec":{{"expirationSeconds":{life}}},"status":{{"token":"{token}"}}}}"#);
            return asked.run(201).bytes(body);
        }
        let is_linked = state.settings.links && number_of(&path).is_multiple_of(2);
        let annotations = if is_linked { LINK } else { "" };
        asked.run(200).bytes(format!(r#"{{"metadata":{{"uid":"u1","annotations":{{{annotations}}}}}}}"#));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic")
    }
}

/// A text in JSON that has no escapes. A fleet sends millions: to parse them would take as much time as what is to be measured.
pub fn text_of<'a>(json: &'a [u8], name: &str) -> &'a str {
    let json = std::str::from_utf8(json).expect("text");
    let value = json.split_once(&*format!("\"{name}\":")).expect("a value").1.trim_start_matches('"');
    value.split(['"', ',', '}']).next().expect("a part")
}

/// The number of an account, at the end of its path.
fn number_of(path: &str) -> u16 {
    path.rsplit("/account").next().and_then(|number| number.parse().ok()).expect("an account's number")
}

impl State {
    fn minute_number(&self) -> usize {
        usize::try_from(self.began.elapsed().as_secs() / 60).expect("small")
    }

    fn minute(&mut self) -> &mut Minute {
        let number = self.minute_number();
        if self.minutes.len() <= number {
            self.minutes.resize(number + 1, Minute::default());
        }
        &mut self.minutes[number]
    }

    /// Status and text. `None` if there is no answer.
    fn exchange(&mut self, subject: &str) -> Option<(u16, String)> {
        self.minute().exchanges += 1;
        if self.is_down {
            return None;
        }
        let now = Instant::now();
        let (left, at) = self.left;
        let refilled = left + now.duration_since(at).as_secs_f64() * f64::from(self.settings.quota) / 60.0;
        let left = refilled.min(self.settings.burst.into());
        if left < 1.0 {
            self.left = (left, now);
            self.minute().throttled += 1;
            return Some((429, USED_UP.to_owned()));
        }
        self.left = (left - 1.0, now);
        let mut parts = subject.split('.').skip(1);
        let mut part = || parts.next().expect("a part").parse::<u32>().expect("a number");
        let key = (part(), u16::try_from(part()).expect("small"));
        let last = self.issued.insert(key, now);
        if last.is_some_and(|last| now.duration_since(last) < DUE) {
            self.minute().early += 1;
        }
        self.serial += 1;
        Some((200, format!(r#"{{"access_token":"fed.{}","expires_in":{}}}"#, self.serial, LIFE.as_secs())))
    }

    fn impersonate(&mut self) -> (u16, String) {
        self.minute().iam += 1;
        self.serial += 1;
        (200, format!(r#"{{"accessToken":"google.{}","expireTime":"{ENDS}"}}"#, self.serial))
    }
}
