//! The metadata protocol as types. Pure: no tokio, no I/O, no clock.
//!
//! A request is read once, in [`path`], [`query`], [`host`] and [`headers`]; every later decision (verdict, cache key,
//! metric label, what goes upstream) works on the parsed form, so that what was judged is what is sent. Facts about the
//! wire come from Google's page "View and query VM metadata", from published header traces of real servers, and from
//! Google's own emulator of 2016; where a rule rests on one of them its comment says so.

pub mod common_path;
pub mod endpoint;
pub mod headers;
pub mod host;
pub mod identity;
mod parse;
pub mod path;
pub mod principal;
pub mod query;
pub mod request;
pub mod service_account;
mod target;
pub mod token;

pub use common_path::CommonPath;
pub use endpoint::Endpoint;
pub use host::Host;
pub use parse::{Malformed, RequestError};
pub use path::MetadataPath;
pub use principal::Principal;
pub use query::Query;
pub use request::{Method, Request};
pub use service_account::ServiceAccount;
pub use target::{Target, TargetError};
