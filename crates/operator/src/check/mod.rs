//! `gce-metadata-proxy check`: checks whether this pod or node is protected.
//!
//! Run in a pod, it sends the requests that a program or an intruder would send, and reports the results. It
//! recognises the proxy by the header `Server: gce-metadata-proxy` in responses to `/` and concealed paths;
//! forwarded values keep the metadata server's own. It needs no privileges and changes nothing. It checks only the
//! format of a token, and then discards it.
//!
//! On the proxy's machine, it also asks the proxy for the rights of its API server credential (`credential.rs`).
//!
//! There are four results. *Protected*: all checks passed. *Allowed*: another route to the server is open on purpose
//! (`--redirect-allow`). *Unprotected*: a secret, or a route that nobody allowed, is open. *Trouble*: nothing is exposed
//! unintentionally, but something does not work, so that programs get no metadata or the result is uncertain.
//!
//! # The canary
//!
//! Only a pod can find out whether its node's network takes pods' packets past the redirect (`redirect/dataplane.rs`). So
//! `check --interval` runs in a pod of each node and repeats the checks ([`Canary`]). `check --last`, its readiness probe,
//! prints the last result and fails unless the node is ready, so that `kubectl describe pod` shows the reason. (The kubelet
//! does not show the body of an HTTP probe.)
//!
//! It requests heads only (`HEAD`), and omits the checks that need a body: tokens and listings. So it never receives a token
//! or a secret, even where everything is open. While pods are protected, the proxy itself answers all its requests, and
//! the metadata server gets none.

mod canary;
mod capabilities;
mod command;
mod credential;
mod interfaces;
mod judge;
mod pages;
mod probe;
mod report;
mod standing;

use std::net::{IpAddr, SocketAddr, UdpSocket};

use http::Method;
use tokio::task::JoinSet;

use probe::{Client, Exchange, connect, resolve};
use redirect::{METADATA_V4, METADATA_V6, Routes};

pub use canary::Canary;
pub use command::{Command, run};
pub use judge::{Finding, Verdict};
pub use report::Report;

/// The host name that client libraries use.
const NAME: &str = "metadata.google.internal";

/// The server's other services: HTTPS, the ALTS handshaker, which speaks for the node's account, snapshots and workload
/// identities. The last two are known from the guest agent's configuration.
const OTHER_PORTS: [u16; 4] = [443, 8080, 8081, 8083];

const HTTP: u16 = 80;
const DNS: u16 = 53;

/// Paths that a pod must not be able to read. The first holds the credentials of GKE nodes.
const SECRETS: [&str; 4] = [
    "/computeMetadata/v1/instance/attributes/kube-env",
    "/computeMetadata/v1/instance/attributes/ssh-keys",
    "/computeMetadata/v1/instance/attributes/?recursive=true",
    "/computeMetadata/v1beta1/instance/attributes/kube-env",
];

const IDENTITY: &str =
    "/computeMetadata/v1/instance/service-accounts/default/identity?audience=https%3A%2F%2Fcheck.invalid";

/// A value of the account that the proxy itself answers only if the account is the pod's own. It forwards the node's.
const ALIASES: &str = "/computeMetadata/v1/instance/service-accounts/default/aliases";

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// One check.
#[derive(Debug)]
enum Try {
    Address,
    /// The server through another interface of this pod, by its name, whatever the routes say.
    OtherInterface(String),
    /// The server's address of another IP version, which this pod can use as well.
    OtherAddress(SocketAddr),
    Name,
    Secret(&'static str),
    Identity,
    Token,
    /// A token that is bound to a certificate, which clients request by POST.
    BoundToken,
    WayRound(SocketAddr),
    /// Capabilities that lead past a proxy in the same pod.
    Capabilities,
    /// The credential of the proxy whose listener for operators has this address.
    Credential(SocketAddr),
}

/// Runs all checks concurrently, in at most 3 s. `admin` is the proxy's listener for operators on this machine. `open` are
/// the routes that the redirect leaves open.
async fn once(admin: SocketAddr, open: &Routes) -> Report {
    let (server, others) = servers();
    let tries = others.chain([Try::Name]).chain(at_the_address()).chain(ways_round(open));
    let interfaces = interfaces::others(server.ip()).into_iter().map(Try::OtherInterface);
    let tries = tries.chain(interfaces).chain([Try::Capabilities, Try::Credential(admin)]);
    run_all([Try::Address].into_iter().chain(tries), server, Method::GET, open).await
}

/// Runs the checks that need only a response's head, in at most 3 s. `open` are the routes that the redirect leaves open.
async fn heads(open: &Routes) -> Report {
    let secrets = SECRETS.into_iter().filter(|path| !judge::is_listing(path)).map(Try::Secret);
    let (server, others) = servers();
    let tries = others.chain([Try::Name]).chain(secrets).chain(ways_round(open));
    run_all([Try::Address].into_iter().chain(tries), server, Method::HEAD, open).await
}

/// Runs the checks that need only the server's address, against another server.
pub async fn at(server: SocketAddr) -> Report {
    run_all([Try::Address].into_iter().chain(at_the_address()), server, Method::GET, &Routes::default()).await
}

/// The server's address that this pod uses, by IPv4 if it can, and the check of the other one if it can use both.
fn servers() -> (SocketAddr, impl Iterator<Item = Try>) {
    let (v4, v6) = (SocketAddr::from((METADATA_V4, HTTP)), SocketAddr::from((METADATA_V6, HTTP)));
    match (has_route(v4), has_route(v6)) {
        (false, true) => (v6, None.into_iter()),
        (_, true) => (v4, Some(Try::OtherAddress(v6)).into_iter()),
        (_, false) => (v4, None.into_iter()),
    }
}

/// Whether there is a route, which the kernel says without sending anything.
fn has_route(addr: SocketAddr) -> bool {
    let any = if addr.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    UdpSocket::bind(any).is_ok_and(|socket| socket.connect(addr).is_ok())
}

fn at_the_address() -> impl Iterator<Item = Try> {
    SECRETS.map(Try::Secret).into_iter().chain([Try::Identity, Try::Token, Try::BoundToken])
}

/// The server's other ports, and those that the redirect leaves open. DNS is no way round.
fn ways_round(open: &Routes) -> impl Iterator<Item = Try> {
    let mut ports = OTHER_PORTS.to_vec();
    for port in &open.ports {
        if ![HTTP, DNS].contains(port) && !ports.contains(port) {
            ports.push(*port);
        }
    }
    let by_v4 = ports.into_iter().map(|port| SocketAddr::from((METADATA_V4, port)));
    let by_v6 = OTHER_PORTS.map(|port| SocketAddr::from((METADATA_V6, port)));
    by_v4.chain(by_v6).map(Try::WayRound)
}

async fn run_all(tries: impl Iterator<Item = Try>, server: SocketAddr, method: Method, open: &Routes) -> Report {
    let (mut running, client) = (JoinSet::new(), Client::new(method));
    for (place, what) in tries.enumerate() {
        let (client, open) = (client.clone(), open.clone());
        running.spawn(async move { (place, what.run(&client, server, &open).await) });
    }
    let mut findings = running.join_all().await;
    findings.sort_by_key(|(place, _)| *place);
    Report::new(findings.into_iter().filter_map(|(_, finding)| finding).collect())
}

impl Try {
    /// `None` if there is nothing to check.
    async fn run(self, client: &Client, server: SocketAddr, open: &Routes) -> Option<Finding> {
        Some(match self {
            Self::Address => judge::proxied(&ask(client, server, "/").await),
            Self::OtherInterface(name) => judge::other_interface(&ask(&client.through(name), server, "/").await),
            Self::OtherAddress(addr) => judge::other_address(&ask(client, addr, "/").await, open.lead_to(addr)),
            Self::Capabilities => return capabilities::of_this_container(),
            Self::Name => match resolve(NAME).await {
                Ok(found) => judge::name(found.ip(), &client.ask(SocketAddr::new(found.ip(), HTTP), NAME, "/").await),
                Err(error) => judge::unknown_name(NAME, &error),
            },
            Self::Secret(path) => judge::secret(&ask(client, server, path).await),
            Self::Identity => {
                let (token, aliases) = tokio::join!(ask(client, server, IDENTITY), ask(client, server, ALIASES));
                judge::identity(&token, &aliases)
            }
            Self::Token => judge::token(&ask(client, server, TOKEN).await),
            Self::BoundToken => judge::bound_token(&ask(&client.posting(), server, TOKEN).await),
            Self::WayRound(addr) => judge::way_round(addr, connect(addr).await.err().as_ref(), open.lead_to(addr)),
            Self::Credential(admin) => return credential::ask(client, admin).await,
        })
    }
}

async fn ask(client: &Client, server: SocketAddr, path: &'static str) -> Exchange {
    let host = match server.ip() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    client.ask(server, &host, path).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_that_is_left_open_is_tried_once() {
        let open = Routes { ports: vec![8080, 9090, 9090, 53, 80], ipv6: false };
        let tried: Vec<SocketAddr> = ways_round(&open)
            .map(|what| match what {
                Try::WayRound(addr) => addr,
                other => panic!("{other:?}"),
            })
            .collect();
        let (v4, v6): (Vec<_>, Vec<_>) = tried.iter().partition(|addr| addr.is_ipv4());
        let ports = |addrs: Vec<&SocketAddr>| -> Vec<u16> { addrs.into_iter().map(SocketAddr::port).collect() };
        assert_eq!((ports(v4), ports(v6)), (vec![443, 8080, 8081, 8083, 9090], OTHER_PORTS.to_vec()));
    }
}
