//! Flags of `mock` and `demo`.

use std::net::SocketAddr;

use clap::Args;

use super::given::{Given, Mistakes};

#[derive(Debug, Args)]
pub(super) struct MockArgs {
    /// Address to listen on
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    addr: Given<SocketAddr>,
}

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Send requests as pods do, among them a flood from one pod, and print what came of them
    #[arg(long)]
    pub(super) traffic: bool,
}

impl MockArgs {
    pub(super) fn resolve(self, mistakes: &mut Mistakes) -> Option<SocketAddr> {
        mistakes.value(self.addr.with_command("mock"))
    }
}
