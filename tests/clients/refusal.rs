//! Behaviour of a client when it is refused: whether it retries, how often, and for how long.
//!
//! The choice of `--overload` is based on these results. The proxy refuses a token only if a pod requests too many
//! different ones, so a server that refuses every request stands in for it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::client::{Client, Task};
use crate::weather::turn;

/// Kind of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    /// With `--overload reset`.
    Reset,
    /// With `--overload unavailable`, and always if the metadata server fails.
    Unavailable,
    /// As other proxies refuse; this proxy never does.
    BadGateway,
}

/// The attempts of a client that was refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempts {
    requests: u32,
    /// Time from the first request until the client ended; `None` if it was still retrying after [`WATCHED`].
    given_up_after: Option<Duration>,
}

/// The requests to a server.
#[derive(Debug)]
struct Requests {
    count: AtomicU32,
    /// Time of the first request.
    first: watch::Sender<Option<Instant>>,
}

/// Time for which a client is watched after its first request, however long it takes to start.
const WATCHED: Duration = Duration::from_secs(25);

impl Refusal {
    /// All kinds, in the order of the table's columns.
    pub(crate) const ALL: [Self; 3] = [Self::Reset, Self::Unavailable, Self::BadGateway];

    /// The name in tests and in the head of a column.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Unavailable => "503",
            Self::BadGateway => "502",
        }
    }

    /// Runs a client that requests a token, and refuses it. With `alone`, no other client runs meanwhile.
    pub(crate) async fn meet(self, client: &'static Client, alone: bool) -> Result<Attempts, String> {
        client.install().await?;
        let _turn = turn(alone).await;
        let (came, first) = watch::channel(None);
        let requests = Arc::new(Requests { count: AtomicU32::new(0), first: came });
        let server = self.serve(Arc::clone(&requests)).await;
        let watched = async {
            let mut first = first.clone();
            let _ = first.wait_for(Option::is_some).await;
            sleep(WATCHED).await;
        };
        let given_up_after = tokio::select! {
            told = client.run(server, Task::Token) => {
                told?.tokens(None).err().ok_or("it got a token, though all that it asked for was refused")?;
                first.borrow().map(|first: Instant| first.elapsed())
            }
            () = watched => None,
        };
        Ok(Attempts { requests: requests.count.load(Ordering::Relaxed), given_up_after })
    }

    /// Starts a server that runs until the end of the runtime, and counts its requests.
    async fn serve(self, requests: Arc<Requests>) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port on loopback");
        let addr = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let requests = Arc::clone(&requests);
                tokio::spawn(async move {
                    // A client that disconnects ends only its own connection.
                    let _ = self.refuse(client, &requests).await;
                });
            }
        });
        addr
    }

    async fn refuse(self, client: TcpStream, requests: &Requests) -> std::io::Result<()> {
        let mut client = BufReader::new(client);
        let mut line = String::new();
        while client.read_line(&mut line).await? > 0 {
            if line == "\r\n" {
                requests.count.fetch_add(1, Ordering::Relaxed);
                requests.first.send_if_modified(|first| first.is_none() && first.replace(Instant::now()).is_none());
                let Some(answer) = self.answer() else { return client.into_inner().set_zero_linger() };
                client.write_all(answer.as_bytes()).await?;
            }
            line.clear();
        }
        Ok(())
    }

    /// The proxy's own response; with 502 only the status line differs.
    fn answer(self) -> Option<String> {
        let status = match self {
            Self::Reset => return None,
            Self::Unavailable => "503 Service Unavailable",
            Self::BadGateway => "502 Bad Gateway",
        };
        let body = "Refused: the limit is reached; try again in a second.\n";
        let length = body.len();
        let head = "Metadata-Flavor: Google\r\nContent-Type: text/plain\r\nRetry-After: 1";
        Some(format!("HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}"))
    }
}

impl Attempts {
    /// Compares the attempts with the known behaviour of the client.
    pub(crate) fn judge(self, client: &Client, refusal: Refusal) -> Result<(), String> {
        let expected = client.retries.contains(&refusal);
        match self.requests {
            0 => Err("it asked for nothing".to_owned()),
            1 if expected => Err("it asked once, where it is known to ask again".to_owned()),
            2.. if !expected => Err(format!("it asked {} times, where it is known to ask once", self.requests)),
            _ => Ok(()),
        }
    }

    /// For the table.
    pub(crate) fn show(self) -> String {
        match (self.requests, self.given_up_after) {
            (1, _) => "final".to_owned(),
            (requests, Some(after)) => format!("{requests} in {:.1} s", after.as_secs_f32()),
            (requests, None) => format!("{requests} in {} s, and goes on", WATCHED.as_secs()),
        }
    }
}
