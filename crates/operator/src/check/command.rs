//! The command `gce-metadata-proxy check`.

use std::net::SocketAddr;

use http::{Method, StatusCode};

use super::canary::Canary;
use super::once;
use super::pages::READYZ;
use super::probe::Client;
use crate::finding;
use crate::pages::{CANARY, ListenError};
use redirect::Routes;
use telemetry::logging::Format;

/// The modes of the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Check once, and print all findings.
    Once {
        format: Format,
        /// Routes that the redirect leaves open on purpose.
        open: Routes,
    },
    /// Check repeatedly until stopped, and serve the last results.
    Repeatedly(Canary),
    /// Print the last result of the process that checks repeatedly.
    Last,
}

/// Runs the command, and returns what to print and the exit code. `admin` is the listener for operators: of a proxy on this
/// machine, or of [`Command::Repeatedly`].
pub async fn run(
    command: Command,
    admin: SocketAddr,
    stop: impl Future<Output = ()>,
) -> Result<(String, u8), ListenError> {
    Ok(match command {
        Command::Once { format, open } => {
            let report = once(admin, &open).await;
            (finding::render(&report, format), report.exit_code())
        }
        Command::Repeatedly(canary) => tokio::select! {
            ended = canary.run(admin) => return ended.map(|()| (String::new(), 0)),
            () = stop => (String::new(), 0),
        },
        Command::Last => last(admin).await,
    })
}

/// The exit code is 0 if the node is ready, otherwise 1.
async fn last(admin: SocketAddr) -> (String, u8) {
    match Client::new(Method::GET).ask_here(admin, READYZ).await.outcome {
        Ok(answer) if answer.server.as_deref().is_none_or(|server| CANARY != server) => {
            let why = "another program, such as the proxy, answers there; run this in the canary's container";
            (format!("no 'check --interval' answers at {admin} (--metrics-addr): {why}\n"), 1)
        }
        Ok(answer) => (String::from_utf8_lossy(&answer.body).into_owned(), u8::from(answer.status != StatusCode::OK)),
        Err(error) => (format!("no 'check --interval' answers at {admin} (--metrics-addr): {error}\n"), 1),
    }
}

#[cfg(test)]
mod tests {
    use super::super::judge::{Finding, Verdict};
    use super::super::pages::Pages;
    use super::super::report::Report;
    use super::*;
    use crate::ask;
    use crate::pages::{self, page};
    use proxy::reply::PLAIN_TEXT;
    use telemetry::Registry;

    /// The proxy's page of that path answers 200, too.
    #[tokio::test]
    async fn only_the_process_that_checks_knows_what_it_found() {
        let door = || pages::bind(([127, 0, 0, 1], 0).into(), false, "--metrics-addr").expect("a free port");
        let (canary, other) = (door(), door());
        let addrs = [&canary, &other].map(|door| door.local_addr().expect("it is bound"));
        let found = Pages::new("node-1".to_owned(), Registry::default());
        found.show(&Report::new(vec![Finding::new("proxied", Verdict::Protected, "GET /", "the proxy answers")]));
        tokio::spawn(pages::serve(canary, move |path| found.answer(path)));
        tokio::spawn(pages::serve(other, |_| page(StatusCode::OK, PLAIN_TEXT, "ready")));
        let [(text, code), (other, failed)] = [last(addrs[0]).await, last(addrs[1]).await];
        assert!(code == 0 && text.starts_with("protected: "), "{code} {text}");
        assert!(failed == 1 && other.starts_with("no 'check --interval' answers at "), "{failed} {other}");
    }

    #[tokio::test]
    async fn what_is_not_the_proxy_is_named() {
        let door = || pages::bind(([127, 0, 0, 1], 0).into(), false, "--metrics-addr").expect("a free port");
        let (canary, other) = (door(), door());
        let [canary_addr, other_addr] = [&canary, &other].map(|door| door.local_addr().expect("it is bound"));
        let found = Pages::new("node-1".to_owned(), Registry::default());
        tokio::spawn(pages::serve(canary, move |path| found.answer(path)));
        tokio::spawn(pages::serve(other, |_| page(StatusCode::FORBIDDEN, PLAIN_TEXT, "\n<!DOCTYPE html><p>Forbidden")));
        let said = async |addr| ask::get(addr, "/statusz?format=json").await.expect_err("no proxy").to_string();
        let canary = said(canary_addr).await;
        assert!(
            canary.starts_with(&format!("at {canary_addr} (--metrics-addr) is the canary, not a proxy")),
            "{canary}"
        );
        let other = said(other_addr).await;
        assert!(other.starts_with(&format!("at {other_addr} (--metrics-addr) is another server (403)")), "{other}");
    }
}
