//! The metadata protocol as types. Pure: no tokio, no I/O, no clock.
//!
//! A request is parsed once, in [`path`], [`query`], [`host`] and [`headers`]. Every later step (verdict,
//! cache key, metric label, upstream request) uses the parsed form, so the client's raw path and query are
//! never forwarded. Protocol facts come from Google's page "View and query VM metadata", from published
//! header traces of real servers, and from Google's emulator of 2016; comments name the source where a rule
//! relies on one.

pub mod certificate;
pub mod common_path;
pub mod endpoint;
pub mod headers;
pub mod host;
pub mod identity;
pub mod own_accounts;
mod parse;
pub mod path;
pub mod principal;
pub mod query;
pub mod request;
pub mod service_account;
mod target;
pub mod token;

pub use certificate::{BoundTo, Fingerprint, NotBound};
pub use common_path::CommonPath;
pub use endpoint::Endpoint;
pub use host::Host;
pub use parse::{Malformed, RequestError};
pub use path::{MetadataPath, names_accounts};
pub use principal::{CallingPod, Doubt, Missing, Principal, Sender, Unidentified, WorkloadId};
pub use query::Query;
pub use request::{Method, Request};
pub use service_account::ServiceAccount;
pub use target::{Target, TargetError};
