//! THE ORDER: the request path, from the outside in.

use std::sync::Arc;

use hyper::body::Incoming;
use tower::ServiceBuilder;

use crate::error::Error;
use crate::layers::catch_panic;
use crate::layers::classify::ClassifyLayer;
use crate::layers::conceal::ConcealLayer;
use crate::layers::discovery::{self, DiscoveryLayer};
use crate::layers::hanging::{HangingLayer, Watches};
use crate::layers::in_flight::{InFlightLayer, MakeRoom, SeatedBody, Seats};
use crate::layers::latency::{ProbeLayer, TimedBody, TotalLayer, track};
use crate::layers::leaves::{KnownLeavesLayer, Leaves};
use crate::layers::rescue::{OnOverload, RescueLayer};
use crate::layers::token_cache::{Audit, TokenCacheLayer, Tokens};
use crate::metadata::Request;
use crate::metadata::host::AllowedHosts;
use crate::reply::Body;
use crate::server::{NewStack, Stack};
use crate::telemetry::Metrics;
use crate::telemetry::latency::Filter;
use crate::telemetry::otlp::Tracer;
use crate::tokens::MetadataServer;
use crate::upstream::Forward;

#[cfg(not(test))]
mod between;
#[cfg(test)]
mod tests;

#[cfg(not(test))]
use between::Between;
#[cfg(test)]
use tests::Between;

/// These layers from the outside in, each behind `$between`.
macro_rules! layers {
    ($between:ident: $($layer:expr,)+) => {
        ServiceBuilder::new()$(.layer(&$between).layer($layer))+
    };
}

/// What the layers are made from.
pub struct Parts {
    /// Names under which requests are let in.
    pub hosts: AllowedHosts,
    /// Counts answers and refusals.
    pub metrics: &'static Metrics,
    /// What becomes of a request for which there is no room.
    pub on_overload: OnOverload,
    /// Room for requests.
    pub seats: &'static Seats,
    /// Frees a seat that is of no use, if there is one.
    pub make_room: MakeRoom,
    /// What pods must not read.
    pub conceal: ConcealLayer,
    /// Room for hanging GETs.
    pub watches: Arc<Watches>,
    /// Values that do not change.
    pub leaves: Arc<Leaves>,
    /// Tokens.
    pub tokens: Tokens<MetadataServer>,
    /// Whether they are written down when they are handed out.
    pub audit: Audit,
    /// Takes down some requests for traces.
    pub tracer: Tracer,
    /// Everything else.
    pub forward: Forward,
}

/// Assembles the stack that answers pods. Each filter is tracked under its name, so that its cost is known.
pub fn assemble(parts: Parts) -> impl NewStack<Stack: ProxyStack> + Send + Sync + 'static {
    with_between(parts, Between::default(), &Between::default())
}

/// What [`assemble`] makes.
pub trait ProxyStack: Stack<Body = TimedBody<SeatedBody<Body>>, Future: Send> + Send + Sync + 'static {}

impl<S> ProxyStack for S where S: Stack<Body = TimedBody<SeatedBody<Body>>, Future: Send> + Send + Sync + 'static {}

/// The layers that see HTTP are made for each connection, since they know its peer. The others are made once.
fn with_between(
    parts: Parts,
    http: Between<http::Request<Incoming>>,
    metadata: &Between<Box<Request>>,
) -> impl NewStack<Stack: ProxyStack> + Send + Sync + use<> + 'static {
    let Parts { metrics, on_overload, tracer, .. } = parts;
    let hosts = Arc::new(parts.hosts);
    let asks_nothing_more = {
        let (leaves, tokens) = (Arc::clone(&parts.leaves), parts.tokens.clone());
        move |request: &Request| discovery::answers(request) || leaves.knows(request) || tokens.knows(request)
    };
    let hangs = {
        let conceal = parts.conceal.clone();
        move |request: &Request| conceal.lets_hang(request)
    };
    let in_flight = InFlightLayer::new(parts.seats, asks_nothing_more, hangs, parts.make_room);
    let times = metrics.latency;
    let of_metadata = layers! { metadata:
        // Before any real work, because refusing must be the cheapest path; what asks nothing more of the
        // upstream gets by without a seat.
        track(times, Filter::InFlight, in_flight),
        // Before the policy, because "is this a metadata server?" is answered alike to everybody.
        track(times, Filter::Discovery, DiscoveryLayer),
        // Before anything that keeps answers, so that nothing kept can outrun the policy.
        track(times, Filter::Conceal, parts.conceal),
        // Below the policy, so that a watch is of what may be seen, and above what is known, since a watch is of the future.
        track(times, Filter::Hanging, HangingLayer::new(parts.watches)),
        // Before the token cache only because its lookup is the cheaper one; they share no path.
        track(times, Filter::Leaves, KnownLeavesLayer::new(parts.leaves)),
        // Innermost of what answers here: everything above has had its say, and what it lets through is cached.
        track(times, Filter::TokenCache, TokenCacheLayer::new(parts.tokens, parts.audit)),
        ProbeLayer::new(times, Filter::Forward),
    }
    .map_err(Error::from)
    .service(parts.forward);
    move |peer| {
        let http = http.clone();
        layers! { http:
            // Outermost, so that refusals are measured, too.
            TotalLayer::new(times, metrics.talkers, tracer, peer),
            // Outside everything that decides, so that every refusal and failure below is given its form once.
            RescueLayer::new(metrics, on_overload, peer),
            // Inside rescue, which answers what it catches, and outside everything that decides.
            catch_panic::layer(metrics, peer),
            // Before everything that decides, so that all of it works on one reading of the request.
            track(times, Filter::Classify, ClassifyLayer::new(Arc::clone(&hosts), peer)),
        }
        .service(of_metadata.clone())
    }
}

#[cfg(test)]
mod verdicts;
