//! [`take`]: takes over tokens from the predecessor.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout_at};

use super::format::{self, Broken, MAX_BYTES, MAX_RECORDS, Nonce, Record};
use super::{TIMEOUT, name, settings};
use crate::shared::{Shared, State};
use base::clock::BootTime;
use identity::kin::{Kin, Stranger};
use protocol::metadata::Principal;
use proxy::layers::token_cache;

/// Maximum difference between the clocks of both processes: the duration of a hand-over. A larger one means another clock, or an old
/// hand-over.
const MAX_AGE: Duration = Duration::from_secs(5);

/// Time between two attempts to connect while the predecessor's queue is full. The predecessor takes one connection in this time, or more.
const PAUSE: Duration = Duration::from_millis(20);

/// Reason for a cold start.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotTaken {
    #[error("the predecessor offers no tokens: {0}")]
    Absent(io::Error),
    #[error(
        "the queue of the predecessor's hand-over stayed full: it is stopped, or other processes of this network namespace keep \
         connecting to its socket"
    )]
    Full,
    #[error("the process that offers tokens is not trusted: {0}")]
    Stranger(#[from] Stranger),
    #[error("the hand-over failed: {0}")]
    Broken(#[from] Broken),
    #[error("the hand-over does not answer this process's request")]
    Replayed,
    #[error("the predecessor has another clock")]
    Clock,
    #[error("the predecessor has other settings")]
    Settings,
    #[error("the hand-over took longer than {} s", TIMEOUT.as_secs())]
    Late,
}

/// Takes over until `deadline`, and records the result.
pub async fn take(kin: &Kin, shared: &Shared, deadline: Instant) {
    let deadline = deadline.min(Instant::now() + TIMEOUT);
    let state = match receive(kin, shared, deadline).await {
        Ok(records) => believe(records, shared),
        Err(why) => State::Cold(why.to_string()),
    };
    shared.handover.settle(state);
}

async fn receive(kin: &Kin, shared: &Shared, deadline: Instant) -> Result<Vec<Record>, NotTaken> {
    let mut stream = connect(&name(&shared.config), deadline).await?;
    let received = async {
        // Attests the process that called `listen`.
        kin.attest(stream.as_fd()).await?;
        let nonce: Nonce = std::array::from_fn(|_| fastrand::u8(..));
        read_all(&mut stream, &nonce, &settings(&shared.config)).await
    };
    timeout_at(deadline, received).await.unwrap_or(Err(NotTaken::Late))
}

/// Connects to the predecessor. Waits until `deadline` while its queue is full: any process of the host's network can fill it.
pub(super) async fn connect(name: &str, deadline: Instant) -> Result<UnixStream, NotTaken> {
    let mut is_full = false;
    let connected = async {
        loop {
            match UnixStream::connect(name).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    is_full = true;
                    sleep(PAUSE).await;
                }
                connected => return connected.map_err(NotTaken::Absent),
            }
        }
    };
    let connected = timeout_at(deadline, connected).await;
    connected.unwrap_or_else(|_| Err(if is_full { NotTaken::Full } else { NotTaken::Late }))
}

/// Reads a whole hand-over.
pub(super) async fn read_all(
    from: &mut (impl AsyncRead + AsyncWrite + Unpin),
    nonce: &Nonce,
    settings: &str,
) -> Result<Vec<Record>, NotTaken> {
    format::send_hello(from, nonce).await.map_err(Broken::from)?;
    if format::read_hello(from).await? != *nonce {
        return Err(NotTaken::Replayed);
    }
    let (begin, mut bytes) = format::read(from).await?;
    let Record::Begin { settings: its, now } = begin else { return Err(Broken::Invalid.into()) };
    let (its_now, own) = (BootTime::from_nanos(now), BootTime::now());
    if own.since(its_now) > MAX_AGE || its_now.since(own) > MAX_AGE {
        return Err(NotTaken::Clock);
    }
    if its != settings {
        return Err(NotTaken::Settings);
    }
    let mut taken = Vec::new();
    loop {
        let (record, length) = format::read(from).await?;
        bytes += length;
        if bytes > MAX_BYTES || taken.len() > MAX_RECORDS {
            return Err(Broken::TooLarge.into());
        }
        match record {
            Record::End { records } if records == taken.len() => return Ok(taken),
            Record::Begin { .. } | Record::End { .. } => return Err(Broken::Invalid.into()),
            record @ (Record::Workload { .. } | Record::Token { .. }) => taken.push(record),
        }
    }
}

/// Takes over the valid records.
pub(super) fn believe(records: Vec<Record>, shared: &Shared) -> State {
    let (now, mut numbers) = (BootTime::now(), HashMap::new());
    let (mut tokens, mut dropped) = (0, 0);
    for record in records {
        let taken = match record {
            Record::Workload { number, record } => {
                let source = shared.tokens.source().of_workloads();
                let taken = source.and_then(|source| source.take_over(*record, now).ok());
                taken.map(|(own, taken)| {
                    numbers.insert(number, own);
                    taken
                })
            }
            Record::Token { workload, record } => {
                let principal = match workload {
                    None => Some(Principal::Node),
                    Some(number) => numbers.get(&number).copied().map(Principal::Workload),
                };
                principal.and_then(|principal| match shared.tokens.take_over(principal, &record, now) {
                    Ok(()) => Some(1),
                    // This process has such a token already: the node's, from its own start.
                    Err(token_cache::NotTaken::Needless) => Some(0),
                    Err(_) => None,
                })
            }
            Record::Begin { .. } | Record::End { .. } => None,
        };
        match taken {
            Some(taken) => tokens += taken,
            None => dropped += 1,
        }
    }
    State::Taken { tokens, accounts: numbers.len(), dropped }
}
