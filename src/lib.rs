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
//!      identify      with workload identity: the calling pod      unknown: 503
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
//! # Crates
//!
//! Each crate depends only on crates above it, so Cargo refuses forbidden dependencies.
//!
//! | crate | contents |
//! |---|---|
//! | [`protocol`] | requests as types, and policies: no socket and no clock |
//! | [`base`] | the clock of tokens, back-off, hooks, the kernel's interfaces and routes |
//! | [`redirect`] | the kernel's rules; nothing that reads pods' requests |
//! | [`telemetry`] | logs and metrics |
//! | [`http_client`] | requests to other servers, with TLS |
//! | [`proxy`] | the request path; nothing about pods' identities, Kubernetes or TLS |
//! | [`identity`] | identification of pods, and their tokens |
//! | [`operator`] | commands for operators |
//! | `gce_metadata_proxy` | the program: its flags, the order of the layers, its pages |
//! | `mock` | a metadata server and a Google for tests |
//!
//! # Who owns which decision
//!
//! | decision | owner |
//! |---|---|
//! | meaning of a path, query and host; whether a request is valid | [`protocol::metadata`] |
//! | which pod has an address | [`identity::pods::owners`] |
//! | when the node's processes are scanned, and when the last scan began | [`identity::pods::Scans`] |
//! | whether the proxy's own credential is dangerous, and which rights are missing | `identity::cluster::rights` |
//! | which Google account a pod's service account acts as, and when that has changed | [`identity::workloads`] |
//! | which pod a connection belongs to, and when it is reset for another pod | [`identity`] |
//! | whether a request is concealed, and why | [`proxy::policy`] |
//! | what is removed from a response | [`proxy::layers::conceal::redact`] |
//! | which client gives way when a resource is exhausted | [`proxy::shares`] |
//! | how the memory limit is divided, and when load is shed | [`proxy::memory`] |
//! | whether a request gets a seat | [`proxy::layers::in_flight`] |
//! | whether there is memory for a large response | [`proxy::room`] |
//! | whether a connection is accepted, and which one is closed for it | [`proxy::server::Connections`] |
//! | the text, reason, status and outcome of every refusal and failure | [`proxy::error`] |
//! | whether an overloaded request is reset or answered | [`proxy::layers::rescue`] |
//! | how a connection is reset | `proxy::server::socket` |
//! | the clock for token lifetimes | [`base::clock`] |
//! | how long to wait after failures | [`base::backoff`] |
//! | which values are cached, and how often they are refreshed | [`proxy::layers::leaves::Leaf`] |
//! | whether a token is fresh, and when to refresh it | `proxy::layers::token_cache::freshness` |
//! | which token is evicted | `proxy::layers::token_cache::store` |
//! | which fetch of several clients is next, and which is given up | [`proxy::flights`] |
//! | how one fetch serves all waiting requests, and how long its failure is reused | `proxy::single_flight` |
//! | where a token comes from | a [`proxy::tokens::TokenSource`] |
//! | what is fetched before the proxy is ready, and whether it is | [`warm`], [`readiness`] |
//! | what is sent to the upstream | [`proxy::upstream::Forward`] |
//! | how long the upstream may take, and which connection is used | [`proxy::upstream::UpstreamClient`] |
//! | how requests to other servers are sent | [`http_client`] |
//! | the order of the layers | [`stack`] |
//! | when the process ends | [`proxy::server::drain`] |
//! | which packets are redirected to the proxy, and which are blocked | [`redirect`] |
//! | what commands other than the proxy serve to operators | [`operator::pages`] |
//! | when pods may be scheduled on a new node | `operator::startup_taint` |
//! | whether a pod or node is protected, once or all the time | [`operator::check`] |
//! | why pods of a node get tokens of their own, or why not | `operator::doctor` |
//! | how operator commands show their findings | [`operator::finding`] |
//! | how a command queries the running proxy | [`operator::ask`] |
//! | whether this proxy is healthy, its problems, and their fixes | [`condition`] |
//! | when a filter begins and ends | [`proxy::layers::latency`] |
//! | names of filters in metrics and the status page | [`telemetry::latency::Filter`] |
//! | types, names, labels and help of metrics | [`telemetry::table`] |
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
//! stale one is still valid. *Flight*: one fetch of a token or of a cached value, shared by all requests that
//! wait for it; *keeper*: a token's task, which runs it. *Drain*: finish requests in flight and accept no new ones.
//!
//! # Reading order
//!
//! [`stack`], then [`proxy::layers`] from the outside in, then [`protocol::metadata`], [`proxy::policy`], [`proxy::tokens`],
//! [`proxy::upstream`], [`proxy::server`] and [`app`]. `CONTRIBUTING.md` walks through adding a filter, a flag, a metric, a source of
//! tokens and a policy rule.

#![forbid(unsafe_code)]

pub mod admin;
pub mod app;
pub mod cli;
pub mod condition;
pub mod config;
#[cfg(feature = "mock")]
pub mod demo;
pub mod door_probe;
pub mod handover;
#[cfg(test)]
mod promises;
pub mod readiness;
pub mod shared;
pub mod stack;
pub mod status;
pub mod threads;
mod units;
pub mod warm;
