//! Deliberate faults in the proxy's responses.
//!
//! A suite that no fault can fail shows nothing. So a relay between client and proxy spoils every response in
//! one way, and exactly the clients that depend on it must fail.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use rustix::net::sockopt::set_tcp_cork;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::client::{Client, clients};
use crate::play;
use crate::weather::{WEATHERS, Weather};

/// The fault in every response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoil {
    /// No `Metadata-Flavor`.
    DropFlavor,
    /// The `ETag` in quotes, as HTTP requires and the metadata server does not send it.
    QuoteEtag,
    /// The connection is closed after the response, unannounced.
    CloseAfter,
}

/// A fault, the weather in which it shows, and the clients that must fail because of it.
#[derive(Debug)]
pub(crate) struct SpoiledAnswers {
    /// The fault's name in tests.
    pub(crate) name: &'static str,
    pub(crate) spoil: Spoil,
    weather: &'static str,
    /// Only these clients fail where they otherwise would not.
    noticed_by: &'static [&'static str],
}

/// All faults.
pub(crate) const FAULTS: &[SpoiledAnswers] = &[
    SpoiledAnswers {
        name: "answers without Metadata-Flavor",
        spoil: Spoil::DropFlavor,
        weather: "clear",
        noticed_by: &[
            "google-auth",
            "google-auth-2020",
            "oauth2client",
            "gcp-metadata",
            "gcp-metadata-2020",
            "node-auth",
            "node-auth-2020",
            "curl",
            "wget",
            "java-auth",
            "java-auth-2020",
            "java-http",
            "spring",
            "httpclient5",
            "gcsfs",
            "node-opentelemetry",
            "java-opentelemetry",
            "firebase-admin",
            "kafka",
            "dotnet",
        ],
    },
    SpoiledAnswers {
        name: "an ETag in quotes",
        spoil: Spoil::QuoteEtag,
        weather: "clear",
        noticed_by: &["go-metadata", "curl", "wget", "guest-agent"],
    },
    SpoiledAnswers {
        name: "a connection closed after each answer",
        spoil: Spoil::CloseAfter,
        weather: "clear",
        noticed_by: &[
            "google-auth",
            "google-auth-2020",
            "oauth2client",
            "go-metadata",
            "go-auth",
            "go-oauth2",
            "go-metadata-2020",
            "go-oauth2-2020",
            "gcp-metadata",
            "gcp-metadata-2020",
            "java-auth",
            "java-auth-2020",
            "java-http",
            "spring",
            "httpclient5",
            "gcsfs",
            "go-opentelemetry",
            "node-opentelemetry",
            "java-opentelemetry",
            "agent-identity",
            "kafka",
            "prometheus",
            "cert-manager",
            "rclone",
        ],
    },
];

/// Maximum clients at once, over all faults. Libraries for Node give the server 3 s, in which not all of many processes
/// that start at once get a processor.
static TURNS: Semaphore = Semaphore::const_new(2);

impl SpoiledAnswers {
    /// Needs of the clients that must fail.
    pub(crate) fn needs(&self) -> Vec<&'static str> {
        let clients = clients().filter(|client| self.is_noticed_by(client));
        let needs: BTreeSet<_> = clients.flat_map(Client::needs).copied().collect();
        needs.into_iter().collect()
    }

    /// Whether this client must fail.
    pub(crate) fn is_noticed_by(&self, client: &Client) -> bool {
        self.noticed_by.contains(&client.name)
    }

    /// Runs every client that can run in the weather with spoiled responses. The error names the clients that should have
    /// failed and did not, and those that should not have failed.
    pub(crate) async fn check(&'static self) -> Result<(), String> {
        let weather: &'static Weather =
            WEATHERS.iter().find(|weather| weather.name == self.weather).expect("one of the weathers");
        let mut met: JoinSet<Result<Option<(&Client, String)>, String>> = JoinSet::new();
        for client in clients().filter(|client| client.missing().is_empty() && client.meets(weather)) {
            met.spawn(async move {
                let _turn = TURNS.acquire().await.map_err(|error| error.to_string())?;
                let (_, judged) = play(client, weather, Some(self)).await?;
                Ok(judged.err().map(|error| (client, error)))
            });
        }
        let mut noticed = Vec::new();
        while let Some(one) = met.join_next().await {
            noticed.extend(one.expect("no panic")?);
        }
        let missed: Vec<_> =
            self.noticed_by.iter().filter(|name| noticed.iter().all(|(by, _)| by.name != **name)).collect();
        let unexpected: Vec<_> =
            noticed.iter().filter(|(by, _)| !self.is_noticed_by(by)).map(|(by, error)| (by.name, error)).collect();
        if missed.is_empty() && unexpected.is_empty() {
            return Ok(());
        }
        Err(format!("not noticed by {missed:?}; noticed unexpectedly by {unexpected:#?}"))
    }
}

/// The relay that spoils responses.
pub(crate) struct Spoiler;

impl Spoiler {
    /// Starts a relay in front of a proxy, until the end of the runtime. Returns its address.
    pub(crate) async fn start(proxy: SocketAddr, spoil: Spoil) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port on loopback");
        let addr = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    if let Ok(proxy) = TcpStream::connect(proxy).await {
                        // If either side ends the connection, it ends for both.
                        let _ = relay(client, proxy, spoil).await;
                    }
                });
            }
        });
        addr
    }
}

/// Passes on requests unchanged and responses with the fault, until either side ends.
async fn relay(client: TcpStream, proxy: TcpStream, spoil: Spoil) -> std::io::Result<()> {
    if spoil == Spoil::CloseAfter {
        // The end then leaves with the response, so that no client can send another request in between.
        set_tcp_cork(&client, true)?;
    }
    let (mut requests, mut to_client) = client.into_split();
    let (answers, mut to_proxy) = proxy.into_split();
    let mut answers = BufReader::new(answers);
    let passing = async { tokio::io::copy(&mut requests, &mut to_proxy).await.map(drop) };
    let spoiling = async {
        while let Some((head, length)) = head(&mut answers).await? {
            let mut body = vec![0; length];
            answers.read_exact(&mut body).await?;
            to_client.write_all(spoil.head(&head).as_bytes()).await?;
            to_client.write_all(&body).await?;
            if spoil == Spoil::CloseAfter {
                break;
            }
        }
        Ok(())
    };
    tokio::select! {
        passed = passing => passed,
        spoiled = spoiling => spoiled,
    }
}

/// A response's head, and the length of its body; `None` at the end of the connection.
async fn head(answers: &mut (impl AsyncBufRead + Unpin)) -> std::io::Result<Option<(String, usize)>> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let start = head.len();
        if answers.read_line(&mut head).await? == 0 {
            return Ok(None);
        }
        let line = head[start..].trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().unwrap_or(0);
        }
        if line.is_empty() {
            return Ok(Some((head, length)));
        }
    }
}

impl Spoil {
    fn head(self, head: &str) -> String {
        head.split_inclusive("\r\n").map(|line| self.line(line)).collect()
    }

    fn line(self, line: &str) -> String {
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        match self {
            Self::DropFlavor if name == "metadata-flavor" => String::new(),
            Self::QuoteEtag if name == "etag" => {
                let value = line.split_once(':').expect("a header").1.trim();
                format!("ETag: \"{value}\"\r\n")
            }
            _ => line.to_owned(),
        }
    }
}
