//! The commands `mock` and `demo`: a mock metadata server, alone or with a proxy in front of it.

mod traffic;

use std::error::Error;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;

use tokio::sync::oneshot;

use crate::app::App;
use crate::config::Config;
use mock::Mock;
use proxy::upstream::Upstream;
use telemetry::logging;

/// Unprivileged ports. If one is in use, the demo uses any free ports.
const PORT: u16 = 8988;
const METRICS_PORT: u16 = 8989;

/// Printed last, so that it stays in view.
const HOW_TO_STOP: &str = "Ctrl-C ends both.";

/// Runs a mock metadata server until `stop` resolves.
pub async fn mock(addr: SocketAddr, stop: impl Future<Output = ()>) -> Result<(), Box<dyn Error>> {
    let mock = Mock::bind(addr).await.map_err(|error| format!("cannot listen on {addr}: {error}"))?;
    println!("mock metadata server on http://{}", mock.local_addr());
    mock.run(stop).await;
    Ok(())
}

/// Runs a mock metadata server with a proxy in front of it and prints examples, until `stop` resolves. With
/// `with_traffic`, also sends requests as pods do, and prints the results.
pub async fn run(config: Config, with_traffic: bool, stop: impl Future<Output = ()>) -> Result<(), Box<dyn Error>> {
    logging::start(config.log.0, &config.log.1);
    let mock = Mock::start().await;
    let on = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let at = |addr, metrics_addr| Config {
        addrs: vec![addr],
        metrics_addr,
        upstream: Upstream::at(&format!("http://{}", mock.addr())).expect("an address is a target"),
        ..config.clone()
    };
    let app = match App::bind(at(on(PORT), on(METRICS_PORT))).await {
        Ok(app) => app,
        Err(_) => App::bind(at(on(0), on(0))).await?,
    };
    let (addr, metrics_addr) = (app.addrs()?[0], app.metrics_addr()?);

    let (stop_proxy, stopped) = oneshot::channel::<()>();
    let proxy = tokio::spawn(app.run(async {
        // A dropped sender also ends the proxy.
        let _ = stopped.await;
    }));
    print!("{}", tour(addr, metrics_addr));
    let mut stop = pin!(stop);
    let mut is_stopped = false;
    if with_traffic {
        tokio::select! {
            () = stop.as_mut() => is_stopped = true,
            () = traffic::run(addr, &mock) => {}
        }
    }
    if !is_stopped {
        println!("{HOW_TO_STOP}");
        stop.await;
    }
    let _ = stop_proxy.send(());
    proxy.await??;
    mock.stop().await;
    Ok(())
}

fn tour(addr: SocketAddr, metrics_addr: SocketAddr) -> String {
    let v1 = format!("http://{addr}/computeMetadata/v1");
    format!(
        "\
A mock metadata server and the proxy in front of it are running. Its status page:
  http://{metrics_addr}/statusz

Try in another terminal:

A token, with the seconds until it expires:
  curl -s -H 'Metadata-Flavor: Google' {v1}/instance/service-accounts/default/token

A secret of the node, which is concealed:
  curl -s -H 'Metadata-Flavor: Google' {v1}/instance/attributes/kube-env

Metrics:
  curl -s http://{metrics_addr}/metrics

"
    )
}
