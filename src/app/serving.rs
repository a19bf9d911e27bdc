//! Serves pods and operators, and ends both.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::admin::Admin;
use crate::shared::Shared;
use crate::stack;
use operator::pages;
use proxy::server::{Bodies, Door, Drain, Server};

/// Maximum time to reset connections at the drain timeout.
const RESET_TIMEOUT: Duration = Duration::from_millis(100);

/// Accepts pods' connections until the drain begins.
pub(super) fn serve_pods(doors: Vec<Vec<Door>>, shared: &Arc<Shared>, accepting: &mut JoinSet<()>) {
    let federation = shared.config.identity.as_ref().and_then(|identity| identity.federation.as_ref());
    let bodies = federation.is_some_and(|federation| federation.bound_tokens).then(Arc::<Bodies>::default);
    doors.iter().filter_map(|doors| doors.first()).for_each(|door| announce(door, "serving pods"));
    let server = Arc::new(Server {
        stacks: Arc::new(stack::assemble(Arc::clone(shared))),
        connections: Arc::clone(&shared.limits.connections),
        drain: shared.drain.clone(),
        reads_interfaces: shared.identity.is_some(),
        bodies,
    });
    for (number, door) in doors.into_iter().flatten().enumerate() {
        accepting.spawn(Arc::clone(&server).run(number, door));
    }
    shared.readiness.serving();
}

/// Serves operators until the returned [`Drain`] begins, which can be after that of pods, so that it is observed. Their requests are
/// counted separately from those of pods.
pub(super) fn serve_operators(door: Door, shared: &Arc<Shared>, tasks: &mut JoinSet<()>) -> Drain {
    announce(&door, "serving operators");
    let drain = Drain::default();
    tasks.spawn(pages::server(Admin::new(Arc::clone(shared)).into_stacks(), drain.clone()).run(0, door));
    drain
}

/// Accepts no more connections, and gives requests in flight the drain timeout. Requests that wait for a change could take hours,
/// so they are answered at once. A client whose request is not answered in time is reset, because it repeats that; it does not
/// repeat a request after which the connection just ends.
pub(super) async fn drain(shared: &Shared, mut accepting: JoinSet<()>) {
    shared.drain.close_doors();
    while accepting.join_next().await.is_some() {}
    shared.limits.watches.close();
    let timeout = shared.config.drain_timeout;
    let cut = shared.drain.clone().finish(timeout).await;
    if cut > 0 {
        tracing::warn!(
            connections = cut,
            "drain timeout of {timeout:?} reached with requests in flight; resetting their connections"
        );
        shared.limits.connections.cut_all();
        // They are reset by their tasks, which the end of the process would not wait for.
        shared.drain.clone().finish(RESET_TIMEOUT).await;
    }
}

fn announce(door: &Door, what: &str) {
    match door.local_addr() {
        Ok(addr) => tracing::info!(%addr, "{what}"),
        Err(error) => tracing::warn!(%error, "{what}, on an unknown address"),
    }
}
