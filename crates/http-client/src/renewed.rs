//! [`Renewed`]: a client that trusts the authorities in a file, as it is now.
//!
//! The file is read again every five minutes, and sooner after a connection has failed: the certificates of a network that
//! inspects TLS are replaced while the proxy runs, and then all new connections fail. Connections that were made with the
//! certificates before end with their requests.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::secure::{self, CaError, SecureConnector};
use super::{ClientError, HttpClient, Limits};

/// Interval between reads of the file while connections succeed, as for the kubeconfig.
const INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Minimum time between reads while connections fail.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// A client that trusts the authorities in a file, as it is now.
#[derive(Debug)]
pub struct Renewed {
    file: PathBuf,
    limits: Limits,
    max_idle: usize,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    client: HttpClient<SecureConnector>,
    /// Hash of the file's contents. Not cryptographic: a process that can write the file is trusted anyway.
    content: u64,
    read: Instant,
    /// Whether a connection has failed since.
    is_doubted: bool,
    /// The reason why the file cannot be used now.
    error: Option<String>,
}

impl Renewed {
    /// Reads the file. `limits` and `max_idle` are those of [`HttpClient::with_idle`].
    pub fn new(file: &Path, limits: Limits, max_idle: usize) -> Result<Self, CaError> {
        let text = secure::read(file)?;
        let client = HttpClient::with_idle(secure::connector_for(file, &text)?, limits, max_idle);
        let current = Current { client, content: hash(&text), read: Instant::now(), is_doubted: false, error: None };
        Ok(Self { file: file.to_owned(), limits, max_idle, current: Mutex::new(current) })
    }

    /// Sends a request, as [`HttpClient::send`].
    ///
    /// # Panics
    ///
    /// Outside a runtime.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        let client = self.client();
        let sent = client.send(request).await;
        if matches!(sent, Err(ClientError::Connect(_))) {
            self.current.lock().is_doubted = true;
        }
        sent
    }

    /// The client for a new request. While the file cannot be used, the previous client.
    fn client(&self) -> HttpClient<SecureConnector> {
        let mut current = self.current.lock();
        let interval = if current.is_doubted { MIN_INTERVAL } else { INTERVAL };
        if current.read.elapsed() >= interval {
            (current.read, current.is_doubted) = (Instant::now(), false);
            let renewed = self.read(current.content);
            current.take(renewed);
        }
        current.client.clone()
    }

    /// Makes a client for the file as it is now. `None` if it has not changed.
    fn read(&self, before: u64) -> Result<Option<(HttpClient<SecureConnector>, u64)>, CaError> {
        // The file is small and local.
        let text = secure::read(&self.file)?;
        let content = hash(&text);
        if content == before {
            return Ok(None);
        }
        let connector = secure::connector_for(&self.file, &text)?;
        Ok(Some((HttpClient::with_idle(connector, self.limits, self.max_idle), content)))
    }
}

impl Current {
    fn take(&mut self, renewed: Result<Option<(HttpClient<SecureConnector>, u64)>, CaError>) {
        match renewed {
            Ok(renewed) => {
                self.error = None;
                if let Some((client, content)) = renewed {
                    (self.client, self.content) = (client, content);
                    tracing::info!("the certificates of --google-ca have changed; new connections trust the new ones");
                }
            }
            Err(error) => {
                let error = error.to_string();
                if self.error.as_ref() != Some(&error) {
                    tracing::warn!("--google-ca: {error}; keeping the previous certificates");
                }
                self.error = Some(error);
            }
        }
    }
}

fn hash(text: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mock::google::{Authority, Google, Handle, Pool, Settings};

    const ISSUER: &str = "https://127.0.0.1:9/cluster";

    async fn server(authority: Authority) -> Handle {
        let pool = Pool::provider(
            "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
            ISSUER,
        );
        Google::start(Settings { authority, ..Settings::new(pool) }).await
    }

    async fn asks(client: &Renewed, server: &Handle) -> Result<(), ClientError> {
        let request = Request::get(format!("{}/", server.url())).body(Bytes::new()).expect("a request");
        client.send(request).await.map(drop)
    }

    /// Pretends that this time has passed since the file was read.
    fn age(client: &Renewed, by: Duration) {
        let mut current = client.current.lock();
        current.read = current.read.checked_sub(by).expect("the machine runs for longer");
    }

    #[tokio::test]
    async fn certificates_that_were_replaced_are_trusted_from_the_next_request_after_a_failure() {
        let (one, other) = (server(Authority::USUAL).await, server(Authority::ANOTHER).await);
        let file = std::env::temp_dir().join(format!("google-ca-renewed-{}", std::process::id()));
        std::fs::write(&file, other.ca_pem()).expect("written");
        let limits = Limits { timeout: Duration::from_secs(5), max_body_bytes: 64 << 10 };
        let client = Renewed::new(&file, limits, 1).expect("a file of certificates");
        assert!(matches!(asks(&client, &one).await, Err(ClientError::Connect(_))));

        // It has changed, and is not read twice within a second.
        std::fs::write(&file, one.ca_pem()).expect("written");
        assert!(matches!(asks(&client, &one).await, Err(ClientError::Connect(_))));
        age(&client, MIN_INTERVAL);
        asks(&client, &one).await.expect("it is trusted now");

        // A file that cannot be used changes nothing.
        std::fs::write(&file, "nothing").expect("written");
        age(&client, INTERVAL);
        asks(&client, &one).await.expect("it is still trusted");
        assert!(client.current.lock().error.as_ref().is_some_and(|error| error.contains("it has no certificate")));

        std::fs::write(&file, other.ca_pem()).expect("written");
        asks(&client, &other).await.expect_err("nothing has failed, so it is not read yet");
        age(&client, INTERVAL);
        asks(&client, &other).await.expect("it is trusted now");
        assert_eq!(client.current.lock().error, None);
        asks(&client, &one).await.expect_err("it is not trusted any more");
        std::fs::remove_file(&file).expect("removed");
    }
}
