//! The flag for the proxy's listener for operators, which is shared by the commands that query the proxy.

use std::net::SocketAddr;

use clap::Args;
use serde::Serialize;

use super::flag::Flag;
use super::given::{Given, Mistakes};
use crate::config;

#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct AdminArgs {
    /// Address for operators: /metrics, /healthz, /readyz, /statusz and others
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "METADATA_PROXY_METRICS_ADDR",
        default_value = config::METRICS_ADDR.to_string()
    )]
    metrics_addr: Given<SocketAddr>,
}

impl AdminArgs {
    pub(super) fn is_typed(&self) -> bool {
        self.metrics_addr.is_typed_other_than(&config::METRICS_ADDR)
    }
}

impl Flag for AdminArgs {
    type Value = SocketAddr;

    fn resolve(self, mistakes: &mut Mistakes) -> Option<SocketAddr> {
        self.metrics_addr.resolve(mistakes)
    }

    fn showing(addr: SocketAddr) -> Self {
        Self { metrics_addr: Flag::showing(addr) }
    }
}
