//! A proxy for the Google Compute Engine metadata server that runs on every Kubernetes node.
//!
//! # How a request flows
//!
//! ```text
//!  accept ── one task per connection ── connection (HTTP/1, header and idle timeouts)
//!    │
//!  latency           measures every layer below
//!   rescue           Error -> response                            or a reset
//!    catch_panic     panic -> Error                               500
//!     classify       head -> metadata::Request                    malformed, no flavor, forwarded: refused
//!      identify      with workload identity: the pod that asks    unknown: 503
//!       in_flight    a seat for requests that need the upstream   no seat: reset, or 503
//!        discovery   "is this a metadata server?"                 answered here
//!         conceal    policy -> allow | redact | conceal           concealed: refused, with the reason
//!          accounts  with tokens of pods: the pod's own account   another's: 404
//!           hanging  one watch for all clients of a value         too many watches: 503
//!            leaves  values that every library requests           from memory, or one flight for all
//!             token_cache  a token from memory, or one flight for all waiting requests
//!              forward     the metadata server, with a deadline   failure: 503
//! ```
//!
//! [`stack`] assembles the layers in this order and explains it.
//!
//! # Who owns which decision
//!
//! | decision | owner |
//! |---|---|
//! | meaning of a path, query and host; whether a request is valid | [`metadata`] |
//! | which pod has an address | [`pods::owners`] |
//! | when the node's processes are scanned, and when the last scan began | [`pods::Scans`] |
//! | whether the proxy's own credential is dangerous, and what it lacks | `cluster::rights` |
//! | which Google account a pod's service account acts as, and when that has changed | [`workloads`] |
//! | whose a connection is, and when it is reset for another pod | [`identity`] |
//! | whether a request is concealed, and why | [`policy`] |
//! | what is removed from a response | [`layers::conceal::redact`] |
//! | which client gives way when a resource is exhausted | [`shares`] |
//! | how the memory limit is divided, and when load is shed | [`memory`] |
//! | whether a request gets a seat | [`layers::in_flight`] |
//! | whether there is memory for a large response | [`room`] |
//! | whether a connection is accepted, and which one is closed for it | [`server::Connections`] |
//! | the text, reason, status and outcome of every refusal and failure | [`error`] |
//! | whether an overloaded request is reset or answered | [`layers::rescue`] |
//! | how a connection is reset | `server::socket` |
//! | the clock for token lifetimes | [`clock`] |
//! | how long to wait after failures | [`backoff`] |
//! | which values are kept, and how often they are refreshed | [`layers::leaves::Leaf`] |
//! | whether a token is fresh, and when to refresh it | `layers::token_cache::freshness` |
//! | which token is evicted | `layers::token_cache::store` |
//! | which fetch of several clients is next, and which is given up | [`flights`] |
//! | how one fetch serves all who wait, and how long its failure is the answer | `single_flight` |
//! | where a token comes from | a [`tokens::TokenSource`] |
//! | what is fetched before the proxy is ready, and whether it is | [`warm`], [`readiness`] |
//! | what is sent to the upstream | [`upstream::Forward`] |
//! | how long the upstream may take, and which connection is used | [`upstream::UpstreamClient`] |
//! | how requests to other servers are sent | [`http_client`] |
//! | the order of the layers | [`stack`] |
//! | when the process ends | [`server::drain`] |
//! | which packets are redirected to the proxy, and which are blocked | [`redirect`] |
//! | what commands other than the proxy serve to operators | [`pages`] |
//! | when pods may be scheduled on a new node | `startup_taint` |
//! | whether a pod or node is protected, once or all the time | [`check`] |
//! | why pods of a node get tokens of their own, or why not | `doctor` |
//! | how commands for operators show what they found | [`finding`] |
//! | how a command asks the running proxy | [`ask`] |
//! | whether this proxy is well, what is wrong with it, and what to do | [`condition`] |
//! | when a filter begins and ends | [`layers::latency`] |
//! | names of filters in metrics and the status page | [`telemetry::latency::Filter`] |
//! | names, labels and help of metrics | [`telemetry::table`] |
//! | histogram buckets | [`telemetry::histogram`] |
//! | names of flags and environment variables | [`cli`] |
//! | defaults of the configuration | [`config`] |
//!
//! # Words
//!
//! *Metadata server*: Google's server behind the proxy, also called *upstream*. *Mock*: the project's own test
//! server. *Conceal*: refuse by policy. *Flavor*: the header `Metadata-Flavor: Google`. *Principal*: the identity
//! of the caller. *Hanging GET*: a request with `wait_for_change`; *watch*: the upstream request that its clients
//! share. *In flight*: from reading a request until its response is written; *seat*: the permit for it. *Park*:
//! keep a connection without a request, without hyper's state. *Fresh*, *stale*, *expired*: states of a token; a
//! stale one is still valid. *Flight*: one fetch of a token or of a kept value, shared by all requests that
//! wait for it; *keeper*: the task of a token that runs it. *Drain*: finish requests in flight and accept no new ones.
//!
//! # Reading order
//!
//! [`stack`], then [`layers`] from the outside in, then [`metadata`], [`policy`], [`tokens`], [`upstream`], [`server`]
//! and [`app`]. `CONTRIBUTING.md` walks through adding a filter, a flag, a metric and a policy rule.

#![forbid(unsafe_code)]

pub mod admin;
pub mod app;
pub mod ask;
pub mod backoff;
pub mod cgroup;
pub mod check;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod condition;
pub mod config;
#[cfg(feature = "mock")]
pub mod demo;
pub mod doctor;
pub mod door_probe;
pub mod error;
pub mod explain;
pub mod failure;
pub mod finding;
pub mod flights;
pub mod hook;
pub mod http_client;
pub mod identity;
pub mod layers;
pub mod memory;
#[cfg(feature = "mock")]
pub use ::mock;
pub use protocol::metadata;
pub mod pages;
pub mod pods;
pub mod policy;
pub mod readiness;
pub use ::redirect;
pub mod reply;
pub mod room;
pub mod server;
pub mod shared;
pub mod shares;
pub mod single_flight;
pub mod stack;
pub mod startup_taint;
pub mod status;
pub mod telemetry;
pub mod threads;
pub mod tokens;
mod units;
pub mod upstream;
pub mod warm;
pub mod workloads;
