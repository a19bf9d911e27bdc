//! [`give`]: hands over to the next process.

use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep, timeout};

use super::format::{self, Broken, MAX_BYTES, MAX_RECORDS, Nonce, Record};
use super::{TIMEOUT, name, settings};
use crate::shared::Shared;
use base::clock::BootTime;
use identity::kin::Kin;
use protocol::metadata::Principal;
use std::os::fd::AsFd;
use telemetry::sampled::Sampled;

/// Pause after a connection that got nothing, and between attempts to bind the name, which the predecessor holds until it ends.
const PAUSE: Duration = Duration::from_millis(100);

/// Minimum interval between log lines about refused connections.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// Time for which another process may hold the name before it is logged. Longer than a drain takes.
const MAX_TAKEN: Duration = Duration::from_secs(60);

/// Hands over to each process that is kin. Never returns.
pub async fn give(kin: Arc<Kin>, shared: Arc<Shared>) -> Infallible {
    let listener = listen(&shared).await;
    let refused = Sampled::new(LINE_INTERVAL);
    loop {
        let ended = match listener.accept().await {
            Ok((stream, _)) => serve(&kin, stream, &shared).await,
            Err(error) => Err(error.to_string()),
        };
        match ended {
            Ok(records) => tracing::info!(records, "handed over to the next process"),
            Err(why) => {
                // Any process on the node's network may connect as often as it can, and each attestation reads /proc.
                sleep(PAUSE).await;
                if let Some(count) = refused.due(Instant::now()) {
                    tracing::warn!(count, "nothing was handed over to a process that asked: {why}");
                }
            }
        }
    }
}

async fn listen(shared: &Shared) -> UnixListener {
    let began = Instant::now();
    let mut is_said = false;
    loop {
        match UnixListener::bind(name(&shared.config)) {
            Ok(listener) => return listener,
            Err(error) if !is_said && (error.kind() != io::ErrorKind::AddrInUse || began.elapsed() > MAX_TAKEN) => {
                is_said = true;
                tracing::warn!("--handover: the next process cannot take over: {error}; retrying");
            }
            Err(_) => {}
        }
        sleep(PAUSE).await;
    }
}

/// Hands over to a process if it is kin. Returns the number of records.
async fn serve(kin: &Kin, mut stream: UnixStream, shared: &Shared) -> Result<usize, String> {
    let served = async {
        kin.attest(stream.as_fd()).await.map_err(|error| error.to_string())?;
        let nonce = match format::read_hello(&mut stream).await {
            Ok(nonce) => nonce,
            Err(error) => {
                // So that the successor can log why it starts cold.
                let _ = format::send_hello(&mut stream, &Nonce::default()).await;
                return Err(error.to_string());
            }
        };
        send_all(&mut stream, &nonce, shared).await.map_err(|error| error.to_string())
    };
    timeout(TIMEOUT, served).await.unwrap_or_else(|_| Err(format!("it took longer than {} s", TIMEOUT.as_secs())))
}

/// Sends everything, one record at a time, so that there is never a copy of all of it. Records beyond the limits are left out. Each
/// record is useful without the others, except that tokens need their account.
pub(super) async fn send_all(
    to: &mut (impl AsyncRead + AsyncWrite + Unpin),
    nonce: &Nonce,
    shared: &Shared,
) -> Result<usize, Broken> {
    format::send_hello(to, nonce).await?;
    if let Some(source) = shared.tokens.source().of_workloads() {
        source.settle().await;
    }
    let now = BootTime::now();
    format::send(to, &Record::Begin { settings: settings(&shared.config), now: now.as_nanos() }).await?;
    let (mut records, mut bytes, mut sent) = (0, 0, HashSet::new());
    if let Some(source) = shared.tokens.source().of_workloads() {
        for exported in source.exported() {
            let record = Box::new(source.record(&exported, now));
            let record = Record::Workload { number: exported.number.0, record };
            // Half of the space is for tokens: a pod can cause refusals that make its account's record large.
            if bytes < MAX_BYTES / 2 && put(to, &record, &mut records, &mut bytes).await? {
                sent.insert(exported.number);
            }
        }
    }
    for exported in shared.tokens.store().exported(now) {
        let workload = match exported.principal() {
            Principal::Node => None,
            Principal::Workload(number) if sent.contains(&number) => Some(number.0),
            Principal::Workload(_) | Principal::Unknown => continue,
        };
        put(to, &Record::Token { workload, record: exported.record() }, &mut records, &mut bytes).await?;
    }
    format::send(to, &Record::End { records }).await?;
    to.flush().await?;
    Ok(records)
}

/// Sends a record if the limits allow it. Returns whether it was sent. One that cannot be written is left out too, such as an identity
/// token that is no JSON string, which a server gave all the same.
pub(super) async fn put(
    to: &mut (impl AsyncWrite + Unpin),
    record: &Record,
    records: &mut usize,
    bytes: &mut usize,
) -> Result<bool, Broken> {
    if *records >= MAX_RECORDS || *bytes + format::MAX_RECORD > MAX_BYTES {
        return Ok(false);
    }
    match format::send(to, record).await {
        Ok(length) => {
            (*records, *bytes) = (*records + 1, *bytes + length);
            Ok(true)
        }
        Err(Broken::TooLarge | Broken::Invalid) => Ok(false),
        Err(broken) => Err(broken),
    }
}
