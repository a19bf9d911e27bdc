//! [`Limits`]: the limits on clients' use of memory, connections, seats and watches.

use std::sync::Arc;

use crate::config::Config;
use proxy::layers::hanging::Watches;
use proxy::layers::in_flight::Seats;
use proxy::memory::{Budget, Demand, Pressure, Usage};
use proxy::room::{CutUnread, Room};
use proxy::server::Connections;
use telemetry::shedding::Shedding;
use telemetry::{Registry, table};

/// The limits on clients' use of resources.
#[derive(Debug)]
pub struct Limits {
    /// The memory limit.
    pub pressure: Arc<Pressure>,
    pub connections: Arc<Connections>,
    pub seats: Arc<Seats>,
    pub watches: Arc<Watches>,
    /// Memory for large responses.
    pub(super) room: Arc<Room>,
    /// Memory for tokens, in bytes.
    pub(super) token_bytes: usize,
}

impl Limits {
    /// Divides the memory limit.
    pub(super) fn new(config: &Config, pressure: Arc<Pressure>, shedding: &Arc<Shedding>, registry: &Registry) -> Self {
        let budget = budget(config, &pressure);
        let (of_pressure, of_shedding) = (Arc::clone(&pressure), Arc::clone(shedding));
        let connections =
            Connections::new(config.max_connections, budget.connections, of_pressure, of_shedding, registry);
        let room = Room::new(budget.answers, cut_unread(&connections));
        let limits = Self {
            pressure,
            connections,
            seats: Seats::new(config.max_in_flight),
            watches: Arc::new(Watches::new(config.max_hanging, Arc::clone(&room))),
            room,
            token_bytes: budget.tokens,
        };
        limits.observe(registry);
        limits
    }

    /// Registers gauges for values that are stored elsewhere.
    fn observe(&self, registry: &Registry) {
        self.seats.observe(registry);
        let watches = Arc::clone(&self.watches);
        registry.observe(&table::HANGING, move || Some(watches.count() as u64));
        let usage = |read: fn(Usage) -> u64| {
            let pressure = Arc::clone(&self.pressure);
            move || Some(read(pressure.usage().unwrap_or_default()))
        };
        registry.observe(&table::MEMORY_USAGE, usage(|usage| usage.current));
        registry.observe(&table::MEMORY_LIMIT, usage(|usage| usage.limit));
        let pressure = Arc::clone(&self.pressure);
        registry.observe(&table::MEMORY_LEVEL, move || Some(pressure.level() as u64));
    }
}

/// Divides the memory limit.
fn budget(config: &Config, pressure: &Pressure) -> Budget {
    let exchanges = config.max_in_flight + config.max_hanging;
    let has_accounts = config.identity.as_ref().is_some_and(|identity| identity.federation.is_some());
    let demand = Demand { connections: config.max_connections, exchanges, has_accounts };
    let budget = Budget::new(pressure.limit(), demand);
    tracing::info!(
        limit = pressure.limit(),
        connections = budget.connections,
        tokens = budget.tokens,
        answers = budget.answers,
        "memory budget, in bytes"
    );
    budget
}

/// Cuts the connections of those clients among these that do not read their responses.
fn cut_unread(connections: &Arc<Connections>) -> CutUnread {
    let connections = Arc::clone(connections);
    CutUnread::new(Arc::new(move |peers| connections.cut_unread_of(peers)))
}
