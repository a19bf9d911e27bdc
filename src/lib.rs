//! A proxy for the Google Compute Engine metadata server that runs on every Kubernetes node.
//!
//! # How a request flows
//!
//! ```text
//!  accept ── one task a connection ── connection (HTTP/1, header and idle time-outs)
//!    │
//!  rescue          Error -> an answer                               the only place that chooses a status
//!   classify       head -> metadata::Request                        malformed, unproven, forwarded: refused
//!    in_flight     a seat for what asks more of the server          no seat: reset, or 503
//!     discovery    "is this a metadata server?"                     answered here, always
//!      conceal     policy -> allow | redact | conceal               concealed: refused, and told why
//!       hanging    one watch for all who wait for the same change   too many watches: 503
//!        leaves    values that do not change                        answered from memory
//!         token_cache  a token from memory, or one flight for all who wait
//!          forward     the metadata server, under a deadline        any failure: 503
//! ```
//!
//! [`stack`] assembles the layers in this order and explains it.
//!
//! # Who owns which decision
//!
//! | decision | owner |
//! |---|---|
//! | what a path, a query, a host means | [`metadata`] |
//! | who is asking | [`layers::classify`] |
//! | is it concealed, and why | [`policy`] |
//! | what of an answer is cut out | [`layers::conceal::redact`] |
//! | who gives way when something is scarce | [`shares`] |
//! | how much memory clients may take, and what is shed when it runs short | [`memory`] |
//! | is there room for a request | [`layers::in_flight`] |
//! | is there memory for a large answer | [`room`] |
//! | is there room for a connection, and which gives way | [`server::Connections`] |
//! | how a connection is reset, never whether | `server::socket` |
//! | what time it is for a token | [`clock`] |
//! | is this token still good, and when to look for the next | `layers::token_cache::freshness` |
//! | which token gives way when there is no room | `layers::token_cache::store` |
//! | how many fetches at once, and which is given up | `layers::token_cache::flights` |
//! | where a token comes from | a [`tokens::TokenSource`] |
//! | what is fetched before the proxy is ready | [`warm`] |
//! | what goes on the upstream wire | [`upstream::Forward`] |
//! | how long the upstream may take, and on which connection | [`upstream::Client`] |
//! | which status an error has | [`layers::rescue`] |
//! | in which order | [`stack`] |
//! | when we stop | [`server::drain`] |
//! | which packets come here, and which go nowhere | [`redirect`] |
//! | whether a place is protected | [`check`] |
//! | metric names, labels, buckets | [`telemetry::table`] |
//! | when a filter begins and ends | [`layers::latency`] |
//! | how requests to other servers are sent | [`http_client`] |
//! | which requests are traced, and what of them is exported | [`telemetry::otlp`] |
//! | metric names and labels | [`telemetry::table`]; buckets: [`telemetry::histogram`] |
//! | flag and environment names | [`cli`]; defaults: [`config`] |
//!
//! # Words
//!
//! *Metadata server*: Google's server behind the proxy, also called *upstream*. *Mock*: the project's own
//! test server. *Conceal*: refuse by policy. *Flavor*: the header `Metadata-Flavor: Google`. *Principal*: the
//! identity of the caller. *Hanging GET*: a request with `wait_for_change`; *watch*: the upstream request
//! that its clients share. *In flight*: from reading a request until its response is written; *seat*: the
//! permit for it. *Fresh*, *stale*, *expired*: states of a token; a stale one is still valid. *Flight*: one
//! fetch of a token, shared by all requests that wait for it; *keeper*: the task that runs it. *Drain*:
//! finish requests in flight and accept no new ones.
//!
//! # Reading order
//!
//! [`stack`], then [`layers`] from the outside in, then [`metadata`], [`policy`], [`tokens`], [`upstream`], [`server`], [`app`].

#![forbid(unsafe_code)]

pub mod admin;
pub mod app;
pub mod cgroup;
pub mod check;
pub mod cli;
pub mod clock;
pub mod config;
#[cfg(feature = "mock")]
pub mod demo;
pub mod error;
pub mod explain;
pub mod failure;
pub mod http_client;
pub mod layers;
pub mod memory;
pub mod metadata;
#[cfg(feature = "mock")]
pub mod mock;
pub mod policy;
pub mod readiness;
pub mod redirect;
pub mod reply;
pub mod room;
pub mod server;
pub mod shared;
pub mod shares;
pub mod stack;
pub mod telemetry;
pub mod threads;
pub mod tokens;
pub mod upstream;
pub mod warm;
