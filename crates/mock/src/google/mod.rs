//! A fake Google: stands in for the Security Token Service and the IAM Service Account Credentials API.
//!
//! It is for tests without a Google project, and shares no code with the proxy. It is as strict as Google, and stricter
//! where a mistake of the proxy would go unnoticed at Google: unknown fields are refused, and a service account token
//! must be bound to a pod.
//!
//! | request | answer |
//! |---|---|
//! | `POST /v1/token` | a federated token for a Kubernetes service account token |
//! | `POST /v1/projects/-/serviceAccounts/EMAIL:generateAccessToken` | a token of a Google service account |
//! | `POST /v1/projects/-/serviceAccounts/EMAIL:generateIdToken` | an identity token of one |
//!
//! Access tokens name their subject ([`Subject`]), so that any client can tell whose token it got. The subject of an
//! identity token is known to the [`Handle`].
//!
//! Where to start: `routes` takes requests and applies faults, `sts` and `iam` read and answer them, `jwt` verifies
//! service account tokens, `tokens` mints tokens.
//!
//! ```no_run
//! # async fn example() {
//! use mock::google::{Endpoint, Fault, Google, Issuer, Pool, Settings, Workload};
//!
//! let issuer = Issuer::new("https://kubernetes.default.svc");
//! let pool = Pool::gke("p.svc.id.goog", "https://container.googleapis.com/v1/projects/p/locations/l/clusters/c");
//! let google = Google::start(Settings { jwks: issuer.jwks(), ..Settings::new(pool.issued_by(issuer.url())) }).await;
//! let checkout = Workload::new("shop", "checkout");
//! google.bind(checkout.clone(), "checkout@p.iam.gserviceaccount.com");
//! google.fault(Endpoint::IdToken, Fault::Hang);
//! // ... the proxy runs with --sts-endpoint, --iam-endpoint (both google.url()) and --google-ca ...
//! assert_eq!(google.count_of(Endpoint::Sts, &checkout), 3);
//! google.stop().await;
//! # }
//! ```

mod accounts;
mod answer;
mod authority;
mod clock;
mod endpoint;
mod fault;
mod handle;
mod iam;
mod issuer;
mod jwt;
mod routes;
mod server;
mod settings;
mod state;
mod sts;
mod subject;
mod tokens;

pub use accounts::Principal;
pub use authority::Authority;
pub use endpoint::Endpoint;
pub use fault::Fault;
pub use handle::Handle;
pub use issuer::{Issuer, Pod};
pub use jwt::Jwks;
pub use server::Google;
pub use settings::{Pool, Settings};
pub use subject::{Subject, Workload};

#[cfg(test)]
mod tests;
