//! `gce-metadata-proxy check`: is this place protected?
//!
//! Run in a pod it asks what a program there, or an intruder, would ask, and tells what came of it. It knows the proxy by
//! the header `Server: gce-metadata-proxy`, which the answers to `/` and to concealed paths carry; the values that the proxy
//! passes on keep the metadata server's own. It needs no privilege and changes nothing; a token that it gets is thrown away
//! unread but for its form.
//!
//! Three things can come of it. *Protected*: everything is as it should be. *Unprotected*: something is open that should be
//! closed. *In trouble*: nothing was found open, but something does not work, so that programs here have no metadata, or
//! that it cannot be told whether they are protected.

mod judge;
mod probe;
mod report;

use std::net::{IpAddr, SocketAddr};

use tokio::task::JoinSet;

use crate::redirect::{METADATA_V4, METADATA_V6};
use probe::{Asked, connect, get, resolve};

pub use judge::{Finding, Verdict};
pub use report::{Format, Report};

/// The name under which libraries look for the server.
const NAME: &str = "metadata.google.internal";

/// The server's other services: HTTPS, snapshots, workload identities. The last two are known from the guest agent's
/// configuration.
const OTHER_PORTS: [u16; 3] = [443, 8081, 8083];

const HTTP: u16 = 80;

/// What a pod must not read, whoever answers; on the server itself the first is where GKE's nodes keep their credentials.
const SECRETS: [&str; 4] = [
    "/computeMetadata/v1/instance/attributes/kube-env",
    "/computeMetadata/v1/instance/attributes/ssh-keys",
    "/computeMetadata/v1/instance/attributes/?recursive=true",
    "/computeMetadata/v1beta1/instance/attributes/kube-env",
];

const IDENTITY: &str =
    "/computeMetadata/v1/instance/service-accounts/default/identity?audience=https%3A%2F%2Fcheck.invalid";

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";

/// One thing to try.
#[derive(Debug, Clone, Copy)]
enum Try {
    Address,
    Name,
    Secret(&'static str),
    Identity,
    Token,
    WayRound(SocketAddr),
}

/// Tries everything at once; it takes as long as the slowest, at most 3 s.
pub async fn run() -> Report {
    let ways_round = OTHER_PORTS.map(|port| SocketAddr::from((METADATA_V4, port)));
    let ways_round_by_v6 = [HTTP, OTHER_PORTS[0]].map(|port| SocketAddr::from((METADATA_V6, port)));
    let tries = [Try::Address, Try::Name]
        .into_iter()
        .chain(SECRETS.map(Try::Secret))
        .chain([Try::Identity, Try::Token])
        .chain(ways_round.map(Try::WayRound))
        .chain(ways_round_by_v6.map(Try::WayRound));
    let mut running = JoinSet::new();
    for (place, what) in tries.enumerate() {
        running.spawn(async move { (place, what.go().await) });
    }
    let mut findings = running.join_all().await;
    findings.sort_by_key(|(place, _)| *place);
    Report::new(findings.into_iter().map(|(_, finding)| finding).collect())
}

impl Try {
    async fn go(self) -> Finding {
        let server = SocketAddr::from((METADATA_V4, HTTP));
        match self {
            Self::Address => judge::proxied(&ask(server, "/").await),
            Self::Name => match resolve(NAME).await {
                Ok(found) => judge::name(found.ip(), &get(SocketAddr::new(found.ip(), HTTP), NAME, "/").await),
                Err(error) => judge::unknown_name(NAME, &error),
            },
            Self::Secret(path) => judge::secret(&ask(server, path).await),
            Self::Identity => judge::identity(&ask(server, IDENTITY).await),
            Self::Token => judge::token(&ask(server, TOKEN).await),
            Self::WayRound(addr) => judge::way_round(addr, connect(addr).await.err().as_ref()),
        }
    }
}

async fn ask(server: SocketAddr, path: &'static str) -> Asked {
    let host = match server.ip() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    get(server, &host, path).await
}
