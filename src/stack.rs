//! THE ORDER: the request path, from the outside in.

use std::sync::Arc;

use tower::ServiceBuilder;
use tower::util::option_layer;

use crate::shared::Shared;
use identity::Visitor;
use identity::accounts::Accounts;
use identity::identify::Identify;
use identity::tokens::Sources;
use protocol::metadata::Request;
use protocol::metadata::host::AllowedHosts;
use proxy::error::Error;
use proxy::layers::discovery::Discovery;
use proxy::layers::filter::Decide;
use proxy::layers::in_flight::{Limit, MakeRoom, SeatedBody};
use proxy::layers::latency::{TimedBody, Timeline, enter, leave, total, track};
use proxy::layers::leaves::Leaves;
use proxy::layers::token_cache::{Audit, TokenCache};
use proxy::layers::{catch_panic, classify, conceal, filter, hanging, in_flight, rescue};
use proxy::reply::Body;
use proxy::server::{Arrival, NewStack, Payload, Remembering, Stack};
use telemetry::latency::Filter;

#[cfg(not(test))]
mod between;
#[cfg(test)]
mod tests;

#[cfg(not(test))]
use between::Between;
#[cfg(test)]
use tests::Between;

/// Stacks these layers from the outside in, each behind `$between`.
macro_rules! layers {
    ($between:ident: $($layer:expr,)+) => {
        ServiceBuilder::new()$(.layer(&$between).layer($layer))+
    };
}

/// Makes the stack that answers a pod's connection. Each filter is measured under its name.
pub fn assemble(
    shared: Arc<Shared>,
) -> impl NewStack<Stack: Stack<Body = TimedBody<SeatedBody<Body>>>> + Send + Sync + 'static {
    with_between(shared, Between::default(), Between::default())
}

/// The closures run for each connection: one at its first request, the other also after each park. Everything that
/// connections share is made before them.
fn with_between(
    shared: Arc<Shared>,
    http: Between<http::Request<Payload>>,
    metadata: Between<Box<Request>>,
) -> impl NewStack<Stack: Stack<Body = TimedBody<SeatedBody<Body>>>> + Send + Sync + use<> + 'static {
    let hosts = Arc::new(AllowedHosts::with(shared.config.allowed_hosts.clone()));
    let filters = Filters::of(&shared);
    let limit = Arc::new(limit(&shared, filters.clone()));
    let of_visitors = shared.identity.clone();
    let notes = rescue::Notes {
        requests: Arc::clone(&shared.measures.requests),
        shedding: Arc::clone(&shared.measures.shedding),
        refusals: Arc::clone(&shared.refusals),
    };
    // A connection's client stays known while the connection is parked.
    let remember = move |arrival: Arrival| Some(Visitor::new(of_visitors.clone()?, arrival));
    Remembering(remember, move |arrival: Arrival, visitor: &Option<Arc<Visitor>>| {
        let (http, metadata, peer) = (http.clone(), metadata.clone(), arrival.peer);
        let timeline = &Timeline::new(shared.measures.instruments.clone(), peer);
        let visitor = visitor.as_ref();
        let identify = visitor.map(|visitor| Identify::new(visitor, shared.upstream.forward.has_accounts()));
        let identify = identify.map(|identify| track(timeline, Filter::Identify, filter::layer(identify)));
        let Filters { discovery, accounts, leaves, tokens } = filters.clone();
        let accounts = accounts.map(|accounts| track(timeline, Filter::Accounts, filter::layer(accounts)));
        let of_http = layers! { http:
            // Outermost, so that refusals are measured, too.
            total(timeline),
            // Outside everything that decides, so that every refusal and failure below is answered in one place.
            rescue::layer(&notes, shared.config.on_overload, timeline),
            // Inside rescue, which answers what it catches, and outside everything that decides.
            catch_panic::layer(&shared.measures.requests, peer),
            // Outside all filters: whichever of them answers is done here.
            leave(timeline),
            // Before everything that decides, so that all decisions work on one reading of the request.
            track(timeline, Filter::Classify, classify::layer(&hosts, visitor.cloned(), timeline)),
        };
        let of_metadata = layers! { metadata:
            // Before the seats, because unknown callers need none: the needs of a request depend on its caller. This
            // layer bounds the requests that wait here. Discovery passes. Absent without Workload Identity.
            option_layer(identify),
            // Before any real work, because refusing must be the cheapest path. A request that needs no upstream
            // request of its own needs no seat.
            track(timeline, Filter::InFlight, in_flight::layer(&limit)),
            // Before the policy, because "is this a metadata server?" has the same answer for every client.
            track(timeline, Filter::Discovery, filter::layer(discovery)),
            // Before anything that caches responses, so that nothing cached can bypass the policy.
            track(timeline, Filter::Conceal, conceal::layer(&shared.concealment)),
            // Conceal also works on responses, and that time belongs to no filter.
            leave(timeline),
            // Below the policy, although its rules are about the node's accounts: the policy also refuses methods and
            // parameters.
            option_layer(accounts),
            // Below the policy, because only visible values can be watched, and above cached values, because a watch
            // waits for a future value.
            track(timeline, Filter::Hanging, hanging::layer(&shared.limits.watches)),
            // Before the token cache only because its lookup is cheaper; they share no path.
            track(timeline, Filter::Leaves, filter::layer(leaves)),
            // Innermost of the layers that answer, so that only requests that passed everything above reach the cache.
            track(timeline, Filter::TokenCache, filter::layer(tokens)),
            enter(timeline, Filter::Forward),
        };
        of_http.layer(of_metadata).map_err(Error::from).service(shared.upstream.forward.clone())
    })
}

/// The filters below the seats. Each connection has a clone.
#[derive(Clone)]
struct Filters {
    discovery: Discovery,
    accounts: Option<Accounts>,
    leaves: Arc<Leaves>,
    tokens: TokenCache<Sources>,
}

impl Filters {
    fn of(shared: &Shared) -> Self {
        Self {
            discovery: Discovery,
            accounts: shared.accounts.clone(),
            leaves: Arc::clone(&shared.leaves),
            tokens: TokenCache::new(&shared.tokens, Audit::from(shared.config.audit)),
        }
    }

    /// Whether one of them answers from memory, so that the request needs no seat.
    fn answer_from_memory(&self, request: &Request) -> bool {
        // Without `..`, so that the compiler reports a filter that is missing below.
        let Self { discovery, accounts, leaves, tokens } = self;
        discovery.answers_from_memory(request)
            || leaves.answers_from_memory(request)
            || tokens.answers_from_memory(request)
            || accounts.as_ref().is_some_and(|accounts| accounts.answers_from_memory(request))
    }
}

/// Decides which requests need a seat.
fn limit(
    shared: &Shared,
    filters: Filters,
) -> Limit<
    impl Fn(&Request) -> bool + Send + Sync + 'static + use<>,
    impl Fn(&Request) -> bool + Send + Sync + 'static + use<>,
> {
    let concealment = Arc::clone(&shared.concealment);
    let connections = Arc::clone(&shared.limits.connections);
    Limit {
        seats: Arc::clone(&shared.limits.seats),
        needs_none: move |request: &Request| filters.answer_from_memory(request),
        hangs: move |request: &Request| concealment.lets_hang(request),
        make_room: MakeRoom::new(move |whose| connections.cut_unread(whose)),
    }
}

#[cfg(test)]
mod verdicts;
