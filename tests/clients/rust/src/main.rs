//! Uses credentials as a Rust application does, and prints one JSON line about it.
//!
//! ```text
//! usage: client LIBRARY session STEP...
//!        client LIBRARY token         one token, as a process that starts
//!        client LIBRARY many COUNT    this many tokens at once
//!        client LIBRARY stay FILE     token after token, none cached, until FILE exists
//! ```
//!
//! LIBRARY is google-cloud-auth or object_store.

use std::error::Error;
use std::path::Path;

use google_cloud_auth::credentials::{Builder, mds};
use object_store::gcp::GoogleCloudStorageBuilder;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const CLOUD_PLATFORM: &str = "https://www.googleapis.com/auth/cloud-platform";
/// Its own scope, so that the token is not one that the proxy fetches at its start.
const READ_ONLY: &str = "https://www.googleapis.com/auth/devstorage.read_only";

/// The lock file, which has the libraries' versions.
const LOCK: &str = include_str!("../Cargo.lock");

type Outcome = Result<Value, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    rustls::crypto::ring::default_provider().install_default().map_err(|_| "there is another provider")?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [library, mode, rest @ ..] = &arguments[..] else { return Err("usage: client LIBRARY MODE ...".into()) };
    let mut seen = match mode.as_str() {
        "session" => session(library, rest).await,
        "token" => tally(&[token(library).await]),
        "many" => tally(&many(library, rest[0].parse()?).await),
        "stay" => tally(&stay(library, Path::new(&rest[0])).await),
        _ => return Err("there is no such mode".into()),
    };
    seen["version"] = version(library).into();
    println!("{seen}");
    Ok(())
}

async fn session(library: &str, names: &[String]) -> Value {
    let mut steps = serde_json::Map::new();
    for name in names {
        let outcome = match (library, name.as_str()) {
            ("object_store", "token" | "refresh") => stored().await,
            ("google-cloud-auth", "token") => google(None).await,
            ("google-cloud-auth", "scoped" | "refresh") => google(Some(CLOUD_PLATFORM)).await,
            ("google-cloud-auth", "universe") => universe().await,
            _ => Err("there is no such step".into()),
        };
        steps.insert(name.clone(), shown(&outcome));
    }
    json!({ "steps": steps })
}

fn shown(outcome: &Outcome) -> Value {
    match outcome {
        Ok(value) => json!({ "ok": value }),
        Err(error) => json!({ "error": told(error.as_ref()) }),
    }
}

/// The error and its causes, which contain the server's message.
fn told(error: &dyn Error) -> String {
    let mut told = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        told = format!("{told}: {error}");
        cause = error.source();
    }
    told
}

fn tally(outcomes: &[Outcome]) -> Value {
    let tokens: Vec<_> = outcomes.iter().filter_map(|one| one.as_ref().ok()).collect();
    let errors: Vec<_> = outcomes.iter().filter_map(|one| one.as_ref().err()).map(|one| told(one.as_ref())).collect();
    json!({ "tokens": tokens, "errors": errors })
}

async fn many(library: &str, count: usize) -> Vec<Outcome> {
    let all: JoinSet<_> =
        std::iter::repeat_n(library.to_owned(), count).map(|library| async move { token(&library).await }).collect();
    all.join_all().await
}

async fn stay(library: &str, file: &Path) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    while !file.exists() {
        outcomes.push(token(library).await);
    }
    outcomes
}

/// A token that is cached nowhere.
async fn token(library: &str) -> Outcome {
    match library {
        "object_store" => stored().await,
        _ => {
            let credentials = mds::Builder::default().with_scopes([READ_ONLY]).build_access_token_credentials()?;
            Ok(credentials.access_token().await?.token.into())
        }
    }
}

async fn google(scope: Option<&str>) -> Outcome {
    let builder = scope.into_iter().fold(Builder::default(), |builder, scope| builder.with_scopes([scope]));
    Ok(builder.build_access_token_credentials()?.access_token().await?.token.into())
}

async fn universe() -> Outcome {
    let found = Builder::default().build()?.universe_domain().await;
    found.map(Value::from).ok_or_else(|| "the universe is not defined".into())
}

async fn stored() -> Outcome {
    let store = GoogleCloudStorageBuilder::new().with_bucket_name("bucket").build()?;
    Ok(store.credentials().get_credential().await?.bearer.clone().into())
}

fn version(library: &str) -> Option<&'static str> {
    let package = LOCK.split("[[package]]").find(|package| package.contains(&format!("name = \"{library}\"\n")))?;
    package.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'))
}
