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
mod tests;
