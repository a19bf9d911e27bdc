//! [`Clients`]: the client for the API server, renewed so that it uses the current credential.

use std::io;
use std::time::Duration;

use http::Uri;
use http_client::dial::Dial;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::{Body, ConfigExt};
use kube::config::{Context, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use parking_lot::Mutex;
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tower::{BoxError, ServiceBuilder, ServiceExt};

use super::error::ClusterError;
use super::{Acting, Credential, NODE_PREFIX, NodeName, Settings};

/// Maximum age of a client that new requests use. A kubelet's client certificate is replaced on disk long before it
/// expires, and is read only when a client is made.
const MAX_AGE: Duration = Duration::from_secs(5 * 60);

/// Maximum age once the API server could not be reached, or refused the credential: its address may have changed, or its authority,
/// or the credential. A client is only made for a request, and the watch pauses for seconds between its attempts. But pods may ask all
/// the time, and each client costs a handshake.
const MAX_DOUBTED_AGE: Duration = Duration::from_secs(1);

/// Idle time before a connection is probed, and interval between probes. With three unanswered probes the connection is
/// lost: a watch notices after 30 s that the API server's machine is gone.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));
const KEEP_ALIVE_PROBES: u32 = 3;

/// Maximum time until sent bytes are acknowledged, in milliseconds.
const UNACKNOWLEDGED: u32 = 15_000;

/// Time for which an unused connection is kept, and maximum number of unused connections.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_IDLE_CONNECTIONS: usize = 1;

/// The identity used for API server requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    /// This node.
    Node,
    /// The credential's own user.
    Own,
}

/// The client in use, and the settings for the next one.
pub(super) struct Clients {
    settings: Settings,
    name: Name,
    current: Mutex<Current>,
    /// Held while the next client is made.
    renewing: tokio::sync::Mutex<()>,
}

/// A client, and its number: the next one that is made has the next number.
type Numbered = (Client, u64);

/// The action of a request.
enum Turn<'a> {
    /// Use this client, or fail as the last attempt to make one did.
    Use(Result<Numbered, ClusterError>),
    /// Make the next client. No other request makes one until the guard is dropped.
    Make(tokio::sync::MutexGuard<'a, ()>),
}

struct Current {
    client: Client,
    number: u64,
    /// The API server's URL.
    server: String,
    /// When the files were read.
    read: Instant,
    /// `None` for a client that is never renewed.
    renew_at: Option<Instant>,
    is_refused: bool,
    /// The reason why the files cannot be used now.
    error: Option<String>,
}

impl Current {
    fn new(server: String, client: Client) -> Self {
        let read = Instant::now();
        Self { client, number: 0, server, read, renew_at: Some(read + MAX_AGE), is_refused: false, error: None }
    }

    /// The client, unless it is due for renewal. The error, if its credential was refused and the next one could not be read.
    fn unless_due(&self) -> Option<Result<Numbered, ClusterError>> {
        let is_due = self.renew_at.is_some_and(|renew_at| Instant::now() >= renew_at);
        (!is_due).then(|| match &self.error {
            Some(error) if self.is_refused => Err(ClusterError::Unread(error.clone())),
            _ => Ok(self.numbered()),
        })
    }

    /// The client, due or not, unless its credential was refused.
    fn unless_refused(&self) -> Option<Numbered> {
        (!self.is_refused).then(|| self.numbered())
    }

    fn doubted(&mut self) {
        let soon = self.read + MAX_DOUBTED_AGE;
        self.renew_at = self.renew_at.map(|renew_at| renew_at.min(soon));
    }

    fn numbered(&self) -> Numbered {
        (self.client.clone(), self.number)
    }
}

impl Clients {
    /// Makes the first client.
    pub(super) async fn new(settings: Settings, name: Name) -> Result<Self, ClusterError> {
        let current = current(&settings, name).await?;
        Ok(Self { settings, name, current: Mutex::new(current), renewing: tokio::sync::Mutex::default() })
    }

    /// A client that is never renewed.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn fixed(settings: Settings, client: Client) -> Self {
        let current = Current { renew_at: None, ..Current::new(String::new(), client) };
        Self { settings, name: Name::Node, current: Mutex::new(current), renewing: tokio::sync::Mutex::default() }
    }

    /// Clients with the same credential that impersonate nobody, and the user that these clients impersonate.
    pub(super) async fn bare(&self) -> Result<(Self, Option<String>), ClusterError> {
        let acts_as = config(&self.settings).await?.auth_info.impersonate;
        Ok((Self::new(self.settings.clone(), Name::Own).await?, acts_as))
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The API server's URL.
    pub(super) fn server(&self) -> String {
        self.current.lock().server.clone()
    }

    /// A client with the current credential. While that cannot be read, the client with the previous one, which may
    /// still be valid; but not once it was refused.
    pub(super) async fn current(&self) -> Result<Numbered, ClusterError> {
        match self.turn().await {
            Turn::Use(client) => client,
            Turn::Make(_renewing) => self.renewed(current(&self.settings, self.name).await),
        }
    }

    /// Decides whether a request makes the next client, if it is due. One request makes it, because each client has a TLS
    /// configuration and connections of its own. The others use the previous client meanwhile, or wait if that was refused.
    async fn turn(&self) -> Turn<'_> {
        if let Some(client) = self.current.lock().unless_due() {
            return Turn::Use(client);
        }
        let renewing = if let Ok(renewing) = self.renewing.try_lock() {
            renewing
        } else {
            if let Some(client) = self.current.lock().unless_refused() {
                return Turn::Use(Ok(client));
            }
            self.renewing.lock().await
        };
        // Another request may just have made it.
        let made = self.current.lock().unless_due();
        made.map_or(Turn::Make(renewing), Turn::Use)
    }

    fn renewed(&self, renewed: Result<Current, ClusterError>) -> Result<Numbered, ClusterError> {
        let mut current = self.current.lock();
        match renewed {
            Ok(renewed) => *current = Current { number: current.number + 1, ..renewed },
            Err(error) => {
                current.read = Instant::now();
                let said = current.error.replace(error.to_string());
                if current.is_refused {
                    current.renew_at = Some(current.read + MAX_DOUBTED_AGE);
                    return Err(error);
                }
                if said != current.error {
                    tracing::warn!("{error}; keeping the previous credential");
                }
                current.renew_at = Some(current.read + MAX_AGE);
            }
        }
        Ok(current.numbered())
    }

    /// Records that the credential of the client with this number was refused: no request uses it while the next one is read. Requests
    /// that were sent by the client before may end later, and say nothing about this one.
    pub(super) fn refused(&self, number: u64) {
        let mut current = self.current.lock();
        if current.number == number {
            current.is_refused = true;
            current.doubted();
        }
    }

    /// Records that the client may be of no use: the next one is made from the current contents of the files, unless they were just
    /// read.
    pub(super) fn doubted(&self) {
        self.current.lock().doubted();
    }
}

async fn current(settings: &Settings, name: Name) -> Result<Current, ClusterError> {
    let mut config = config(settings).await?;
    if name == Name::Own {
        config.auth_info.impersonate = None;
        config.auth_info.impersonate_groups = None;
    }
    let server = shown(&config.cluster_url);
    match connect(config) {
        Ok(client) => Ok(Current::new(server, client)),
        Err(error) => Err(ClusterError::Credential { server, error: Box::new(error) }),
    }
}

/// A URL as logs and pages show it: without a user and a password.
fn shown(url: &Uri) -> String {
    let shown = url.to_string();
    match url.authority().and_then(|authority| authority.as_str().rsplit_once('@')) {
        Some((user, _)) => shown.replacen(&format!("{user}@"), "", 1),
        None => shown,
    }
}

/// Reads the settings' files. They are small and local.
pub(super) async fn config(settings: &Settings) -> Result<Config, ClusterError> {
    match &settings.credential {
        Credential::Kubeconfig(file) => {
            let failed = |error| ClusterError::Kubeconfig { file: file.clone(), error };
            let mut kubeconfig = Kubeconfig::read_from(file).map_err(failed)?;
            // First: files that it names need not be mounted if it is of no use anyway.
            if let Some(program) = program(&kubeconfig) {
                return Err(ClusterError::Program { file: file.clone(), program });
            }
            if has_proxy(&kubeconfig) {
                return Err(ClusterError::Unsupported { file: file.clone(), field: "proxy-url" });
            }
            // Otherwise kube takes one from HTTPS_PROXY, and fails if that is no URL. Connections to the API
            // server are direct.
            for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
                cluster.proxy_url = Some(UNUSED_PROXY.to_owned());
            }
            let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
            let mut config = config.map_err(failed)?;
            config.proxy_url = None;
            Ok(config)
        }
        Credential::OwnAccount(acting) => {
            let mut config = Config::incluster_env().map_err(ClusterError::NoAccount)?;
            if *acting == Acting::AsItsNode {
                act_as(&mut config, &settings.node);
            }
            Ok(config)
        }
    }
}

/// Stands for the proxy that is not used.
const UNUSED_PROXY: &str = "http://unused.invalid";

fn context(kubeconfig: &Kubeconfig) -> Option<&Context> {
    let name = kubeconfig.current_context.as_ref()?;
    kubeconfig.contexts.iter().find(|context| context.name == *name)?.context.as_ref()
}

/// Whether the current context's cluster is to be reached through a proxy.
fn has_proxy(kubeconfig: &Kubeconfig) -> bool {
    let Some(context) = context(kubeconfig) else { return false };
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == context.cluster);
    let proxy = cluster.and_then(|named| named.cluster.as_ref()?.proxy_url.as_ref());
    proxy.is_some_and(|proxy| !proxy.is_empty())
}

/// The program that the current context's user gets a credential from.
fn program(kubeconfig: &Kubeconfig) -> Option<String> {
    let user = context(kubeconfig)?.user.as_ref()?;
    let user = kubeconfig.auth_infos.iter().find(|named| named.name == *user)?;
    let user = user.auth_info.as_ref()?;
    match &user.exec {
        Some(exec) => Some(exec.command.clone().unwrap_or_default()),
        // Kubeconfigs of clouds had it before there was `exec`.
        None => user.auth_provider.as_ref()?.config.get("cmd-path").cloned(),
    }
}

/// Impersonates this node: the API server then limits the account to what the node may do.
pub(super) fn act_as(config: &mut Config, node: &NodeName) {
    config.auth_info.impersonate = Some(format!("{NODE_PREFIX}{node}"));
}

/// Makes a client. kube's own stack retries, logs each failure and does not probe idle connections; here retries and
/// logs are in one place, `pods::watch`.
pub(super) fn connect(config: Config) -> Result<Client, kube::Error> {
    let tcp = ServiceExt::<Uri>::map_result(Dial, |dialled: io::Result<_>| dialled.and_then(probed));
    let http = legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        .build::<_, Body>(config.rustls_https_connector_with_connector(tcp)?);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}

/// Has the kernel notice that the server's machine is gone.
fn probed(stream: TokioIo<TcpStream>) -> io::Result<TokioIo<TcpStream>> {
    let socket = stream.inner();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEP_ALIVE.0)?;
    sockopt::set_tcp_keepintvl(socket, KEEP_ALIVE.1)?;
    sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use tokio::task::JoinSet;
    use tokio::time::sleep;

    use super::*;

    fn client() -> Client {
        let service = tower::service_fn(async |_: http::Request<Body>| {
            Err::<http::Response<Body>, _>(std::io::Error::other("no"))
        });
        Client::new(service, "default")
    }

    fn clients() -> Arc<Clients> {
        let settings =
            Settings { node: "n".parse().expect("a name"), credential: Credential::OwnAccount(Acting::AsItsNode) };
        let clients = Clients::fixed(settings, client());
        clients.current.lock().renew_at = Some(Instant::now());
        Arc::new(clients)
    }

    fn unreadable() -> Result<Current, ClusterError> {
        let error = "x:y:z".parse::<Uri>().expect_err("no URL");
        Err(ClusterError::NoAccount(kube::config::InClusterError::ParseClusterUrl(error)))
    }

    /// The credential in use is refused.
    fn refuse(clients: &Clients) {
        let number = clients.current.lock().number;
        clients.refused(number);
    }

    /// Number of clients made for 50 requests at once, and the time that these take.
    async fn made(clients: &Arc<Clients>) -> (u32, Duration) {
        let (made, began) = (Arc::new(AtomicU32::new(0)), Instant::now());
        let mut asking = JoinSet::new();
        for _ in 0..50 {
            let (clients, made) = (Arc::clone(clients), Arc::clone(&made));
            asking.spawn(async move {
                match clients.turn().await {
                    Turn::Use(client) => client.is_ok(),
                    Turn::Make(_renewing) => {
                        made.fetch_add(1, Relaxed);
                        sleep(Duration::from_secs(1)).await;
                        clients.renewed(Ok(Current::new("https://k".to_owned(), client()))).is_ok()
                    }
                }
            });
        }
        assert_eq!(asking.join_all().await, [true; 50]);
        (made.load(Relaxed), began.elapsed())
    }

    #[test]
    fn a_password_in_the_servers_url_is_not_shown() {
        let as_shown = |url: &str| shown(&url.parse().expect("a URL"));
        assert_eq!(as_shown("https://admin:p@k:6443/a@b"), "https://k:6443/a@b");
        assert_eq!(as_shown("https://k/a@b"), "https://k/a@b");
    }

    #[tokio::test]
    async fn a_server_that_is_gone_is_noticed_within_half_a_minute() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
        let stream = probed(TokioIo::new(stream)).expect("options of every socket");
        let socket = stream.inner();
        assert!(sockopt::socket_keepalive(socket).expect("an option"));
        let silent = sockopt::tcp_keepidle(socket).expect("an option");
        let probes =
            sockopt::tcp_keepintvl(socket).expect("an option") * sockopt::tcp_keepcnt(socket).expect("an option");
        assert_eq!(silent + probes, Duration::from_secs(30));
        assert_eq!(sockopt::tcp_user_timeout(socket).expect("an option"), 15_000);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_at_once_make_one_client() {
        let clients = clients();
        assert_eq!(made(&clients).await, (1, Duration::from_secs(1)));
        assert_eq!(clients.server(), "https://k");
        assert_eq!(made(&clients).await, (0, Duration::ZERO), "it is good for minutes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_cannot_be_reached_is_looked_up_once_a_second() {
        let clients = clients();
        assert_eq!(made(&clients).await.0, 1);
        for _ in 0..2 {
            clients.doubted();
            assert_eq!(made(&clients).await.0, 0, "it was just read");
            tokio::time::advance(MAX_DOUBTED_AGE).await;
            assert_eq!(made(&clients).await.0, 1);
        }
        tokio::time::advance(MAX_AGE / 2).await;
        assert_eq!(made(&clients).await.0, 0, "nobody doubts it");
        clients.doubted();
        clients.renewed(unreadable()).expect("the client before");
        clients.doubted();
        assert_eq!(made(&clients).await.0, 0, "it was just tried");
        tokio::time::advance(MAX_DOUBTED_AGE).await;
        assert_eq!(made(&clients).await.0, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_credential_is_used_by_nobody_while_the_next_is_read() {
        let clients = clients();
        refuse(&clients);
        assert_eq!(made(&clients).await, (1, Duration::from_secs(1)));
        assert!(!clients.current.lock().is_refused);
    }

    #[tokio::test(start_paused = true)]
    async fn a_credential_that_is_refused_all_the_time_is_read_once_a_second() {
        let clients = clients();
        assert_eq!(made(&clients).await.0, 1);
        for _ in 0..2 {
            refuse(&clients);
            assert_eq!(made(&clients).await.0, 0, "it was just read");
            tokio::time::advance(MAX_DOUBTED_AGE).await;
            assert_eq!(made(&clients).await.0, 1);
        }
        // At once, if it was read before.
        tokio::time::advance(MAX_DOUBTED_AGE).await;
        refuse(&clients);
        assert_eq!(made(&clients).await.0, 1);
    }
    #[tokio::test(start_paused = true)]
    async fn a_credential_that_is_refused_and_cannot_be_read_is_read_once_a_second() {
        let clients = clients();
        for _ in 0..2 {
            refuse(&clients);
            assert!(matches!(clients.turn().await, Turn::Make(_)));
            let Err(why) = clients.renewed(unreadable()) else { panic!("it was refused") };
            for _ in 0..9 {
                let Turn::Use(Err(again)) = clients.turn().await else { panic!("it was just read") };
                assert_eq!(again.to_string(), why.to_string());
            }
            tokio::time::advance(MAX_DOUBTED_AGE).await;
        }
        assert_eq!(made(&clients).await.0, 1);
        assert_eq!(made(&clients).await.0, 0, "it can be read");
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_refusal_of_the_credential_before_is_not_one_of_the_next() {
        let service = tower::service_fn(async |_: http::Request<Body>| {
            sleep(Duration::from_secs(5)).await;
            http::Response::builder().status(401).body(Body::empty())
        });
        let clients = clients();
        clients.renewed(Ok(Current::new(String::new(), Client::new(service, "default")))).expect("a client");
        let sent = clients.send(http::Request::get("/").body(Body::empty()));
        let replaced = async {
            sleep(Duration::from_secs(1)).await;
            clients.renewed(Ok(Current::new(String::new(), client()))).expect("a client");
        };
        assert_eq!(tokio::join!(sent, replaced).0.expect("an answer").status(), 401);
        assert!(!clients.current.lock().is_refused);
        assert_eq!(made(&clients).await, (0, Duration::ZERO));
    }
}
