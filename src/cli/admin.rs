//! The flag for the proxy's listener for operators, which is shared by the commands that query the proxy.

use std::net::SocketAddr;

use clap::Args;
use serde::Serialize;

use super::given::{Given, Mistakes};
use super::repeated::repeated;
use crate::config;

repeated! {
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
}

impl AdminArgs {
    pub(super) fn resolve(self, mistakes: &mut Mistakes) -> Option<SocketAddr> {
        mistakes.value(self.metrics_addr)
    }

    /// The flag that results in this address.
    pub(super) fn from_addr(addr: SocketAddr) -> Self {
        Self { metrics_addr: Given::from_value(addr) }
    }
}

impl Default for AdminArgs {
    fn default() -> Self {
        Self::from_addr(config::METRICS_ADDR)
    }
}
