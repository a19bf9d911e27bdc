//! [`take_over`]: waits beside another process that serves pods, until this one is able to.

use tokio::time::{Instant, timeout_at};

use super::doors;
use super::start_error::{Lacking, SUCCESSION, StartError};
use crate::config::Config;
use crate::handover;
use crate::readiness::TokenUsers;
use crate::shared::Shared;
use identity::kin::Kin;
use proxy::server::{self, Door};

/// Opens doors beside those of another process once this one knows the node's pods and has what they request first. Until then
/// that process gets all connections, because it can serve them and this one cannot.
pub(super) async fn take_over(shared: &Shared, kin: Option<&Kin>) -> Result<Vec<Vec<Door>>, StartError> {
    tracing::info!("another process serves pods; serving beside it once this one is able to");
    match become_able(shared, kin).await {
        Err(lacking) if has_predecessor(&shared.config) => Err(StartError::NotAble(lacking)),
        Ok(()) => doors::open(&shared.config),
        // Nobody else serves pods any more, nor hands tokens over.
        Err(_) => {
            shared.handover.is_alone();
            doors::open(&shared.config)
        }
    }
}

/// Whether another process serves pods where this one shall. Without Workload Identity, this one serves at once if nobody else serves
/// one of its addresses.
pub(super) fn has_predecessor(config: &Config) -> bool {
    let mut addrs = doors::served(config).into_iter();
    if config.identity.is_some() { addrs.any(server::is_shared) } else { addrs.all(server::is_shared) }
}

/// Waits for the list of the node's pods, for tokens that are handed over, and for what pods request first, but not for values that
/// the metadata server does not give.
async fn become_able(shared: &Shared, kin: Option<&Kin>) -> Result<(), Lacking> {
    let deadline = Instant::now() + SUCCESSION;
    if let Some(identity) = &shared.identity {
        let known = identity.pods().known();
        timeout_at(deadline, known).await.map_err(|_| Lacking::Pods)?;
    }
    let handed = async {
        if let Some(kin) = kin {
            handover::take(kin, shared, deadline).await;
        }
    };
    let (warmed, ()) = tokio::join!(timeout_at(deadline, shared.readiness.warmed()), handed);
    // A server that refuses the token does not fail, and refuses it to the other process, too.
    let Some(failure) = shared.upstream.health.failure().filter(|_| warmed.is_err()) else { return Ok(()) };
    let has_token = || shared.tokens.store().default_expires_in().is_some_and(|seconds| seconds > 0);
    match TokenUsers::of(shared.identity.as_deref()) {
        Some(_) if !has_token() => Err(Lacking::Token(failure)),
        None if !shared.upstream.health.has_succeeded() => Err(Lacking::Values(failure)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;

    use tokio::task::JoinSet;

    use super::super::background;
    use super::*;
    use crate::shared::{Identifying, State};
    use identity::pods::{FakeProc, Scans};

    /// A process with Workload Identity, at this address, whose metadata server does not answer.
    async fn process(addr: SocketAddr) -> Arc<Shared> {
        let proc = FakeProc::new();
        let identifying = Identifying { scans: Scans::in_task(proc.open()), exchange: None };
        let own_pod = format!("--handover={}", "1".repeat(32));
        let flags = [
            &format!("--addr={addr}"),
            "--upstream=http://127.0.0.1:1",
            "--reuse-port",
            "--workload-identity",
            "--workload-identity-provider=none",
            "--node-name=n",
            &own_pod,
        ];
        Shared::of_flags(&flags, Some(identifying)).await
    }

    /// What waits for the hand-over, such as reading accounts, would wait for ever.
    #[tokio::test(start_paused = true)]
    async fn a_predecessor_that_leaves_while_no_pods_are_listed_hands_nothing_over() {
        let shared = process((Ipv4Addr::LOCALHOST, 0).into()).await;
        assert_eq!(shared.handover.state(), State::Pending);
        // The port is free, as after the predecessor's end.
        take_over(&shared, None).await.expect("nobody else serves pods");
        assert_eq!(shared.handover.state(), State::Alone);
    }

    /// Pods have tokens of their own there, and the old process has the values of the metadata server.
    #[tokio::test(start_paused = true)]
    async fn a_process_whose_server_gives_nothing_leaves_pods_to_the_old_one() {
        let old = server::bind((Ipv4Addr::LOCALHOST, 0).into(), true).expect("a port");
        let shared = process(old.local_addr().expect("bound")).await;
        shared.identity.as_ref().expect("it is on").pods().replace([]);
        let mut background = JoinSet::new();
        background::start(&shared, &mut background);
        let refused = take_over(&shared, None).await.expect_err("it has nothing to serve");
        assert!(matches!(refused, StartError::NotAble(Lacking::Values(_))), "{refused}");
    }
}
