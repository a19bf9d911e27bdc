//! Flags of `redirect`, and the redirect flags of the proxy itself.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use clap::{Args, Subcommand};

use super::{Reader, address};
use crate::config;
use crate::redirect::{Command, Mode, Opened, Redirect, SIDECAR_UID, Settings, Tool};

#[derive(Debug, Subcommand)]
pub(super) enum Subcommands {
    /// Install the redirect rules, replacing those of an earlier redirect. The rules stay until they are removed
    Install {
        #[command(flatten)]
        wanted: RedirectArgs,

        /// Keep running, check the rules every 30 s, and restore them if they were flushed or changed
        #[arg(long, conflicts_with = "dry_run")]
        keep: bool,

        /// Print the rules without installing them
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove the redirect rules of any tool. Pods then reach the metadata server directly. First stop any `redirect install
    /// --keep` and any proxy with --redirect, which would restore the rules
    Remove,
    /// Check whether the rules match what these flags would install. Exits with 0 if they do, 1 if not
    Check {
        #[command(flatten)]
        wanted: RedirectArgs,
    },
}

#[derive(Debug, Args)]
pub(super) struct RedirectArgs {
    /// Which requests to redirect. daemonset: those of all pods, run on the node. sidecar: those of one pod, run in its init
    /// container
    #[arg(long, value_name = "daemonset|sidecar", default_value = "daemonset")]
    mode: String,

    /// Address that the proxy listens on: a loopback address, or with daemonset any IPv4 address of the node
    #[arg(long, value_name = "HOST:PORT", default_value_t = config::ADDR.to_string())]
    to: String,

    /// sidecar only: user ID of the proxy (61988 in its image). No other container of the pod may use it, because its
    /// packets reach the metadata server
    #[arg(long, value_name = "UID")]
    proxy_uid: Option<String>,

    /// daemonset only: network interface that carries no pod traffic. May be repeated. By default the interface on the route
    /// to the metadata server
    #[arg(long, value_name = "INTERFACE")]
    uplink: Vec<String>,

    /// Tool to install the rules with. By default nft if it works on this machine, otherwise iptables
    #[arg(long, value_name = "nft|iptables")]
    tool: Option<String>,

    #[command(flatten)]
    opened: OpenedArgs,
}

/// Routes to the metadata server that stay open beside the proxy.
#[derive(Debug, Args)]
pub(super) struct OpenedArgs {
    /// Route to the metadata server that the redirect does not block: a TCP port of 169.254.169.254, or ipv6 for
    /// `fd20:ce::254`. May be repeated. DNS is always allowed
    #[arg(long, value_name = "PORT|ipv6", env = "METADATA_PROXY_REDIRECT_ALLOW", value_delimiter = ',')]
    redirect_allow: Vec<String>,
}

impl Subcommands {
    pub(super) fn resolve(self, read: &mut Reader) -> Option<Command> {
        Some(match self {
            Self::Install { wanted, keep: true, .. } => Command::Keep(wanted.resolve(read)?),
            Self::Install { wanted, dry_run: true, .. } => Command::Print(wanted.resolve(read)?),
            Self::Install { wanted, .. } => Command::Install(wanted.resolve(read)?),
            Self::Remove => Command::Remove,
            Self::Check { wanted } => Command::Check(wanted.resolve(read)?),
        })
    }
}

impl RedirectArgs {
    fn resolve(self, read: &mut Reader) -> Option<Redirect> {
        let is_sidecar = read.value("--mode", &self.mode, "daemonset or sidecar", |mode| match mode {
            "daemonset" => Some(false),
            "sidecar" => Some(true),
            _ => None,
        });
        let to = match is_sidecar {
            Some(true) => {
                read.value("--to", &self.to, "a loopback address and a port, such as 127.0.0.1:988", loopback)
            }
            _ => read.value("--to", &self.to, OF_THE_NODE, of_the_node),
        };
        let uid =
            self.proxy_uid.as_deref().map(|uid| read.value("--proxy-uid", uid, "a number", |uid| uid.parse().ok()));
        let mode = match (is_sidecar, uid) {
            (Some(true), Some(uid)) => uid.map(|proxy_uid| Mode::Sidecar { proxy_uid }),
            (Some(true), None) => {
                let wanted = format!(
                    "the runAsUser of the proxy's container ({SIDECAR_UID} in its image), which no other container of the pod \
                     may use"
                );
                read.value("--proxy-uid", "", &wanted, |_| None)
            }
            (Some(false), Some(_)) => read.value("--proxy-uid", "", "no value with --mode daemonset", |_| None),
            (Some(false), None) => {
                let uplinks = read.values("--uplink", &self.uplink, "the name of an interface", interface);
                Some(Mode::DaemonSet { uplinks: Some(uplinks).filter(|uplinks| !uplinks.is_empty()) })
            }
            (None, _) => None,
        };
        let tool = match &self.tool {
            Some(tool) => Some(read.value("--tool", tool, "nft or iptables", one_of_the_tools)?),
            None => None,
        };
        let opened = self.opened.resolve(read);
        Some(Redirect { settings: Settings { mode: mode?, to: to?, opened }, tool })
    }
}

impl OpenedArgs {
    pub(super) fn resolve(&self, read: &mut Reader) -> Opened {
        let expected = "ipv6 or a port number other than 80, which is always redirected";
        let ways = read.values("--redirect-allow", &self.redirect_allow, expected, |way| match way {
            "ipv6" => Some(None),
            port => port.parse().ok().filter(|port: &u16| !matches!(port, 0 | 80)).map(Some),
        });
        Opened { ipv6: ways.contains(&None), ports: ways.into_iter().flatten().collect() }
    }
}

const OF_THE_NODE: &str = "HOST:PORT with an IPv4 address of the node, such as 127.0.0.1:988";

/// Rejects 0.0.0.0: the guard rules could not distinguish the proxy's address.
fn of_the_node(text: &str) -> Option<SocketAddrV4> {
    match address(text)? {
        SocketAddr::V4(to) if to.port() != 0 && *to.ip() != Ipv4Addr::UNSPECIFIED => Some(to),
        _ => None,
    }
}

fn loopback(text: &str) -> Option<SocketAddrV4> {
    of_the_node(text).filter(|to| to.ip().is_loopback())
}

/// Accepts what the kernel accepts as an interface name, without characters that are special in the rules' text.
fn interface(text: &str) -> Option<String> {
    let is_name = text.len() < 16 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte));
    is_name.then(|| text.to_owned())
}

fn one_of_the_tools(text: &str) -> Option<Tool> {
    match text {
        "nft" => Some(Tool::Nft),
        "iptables" => Some(Tool::Iptables),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{mistakes, parse_line};
    use super::super::{Command as Cli, config};
    use super::*;

    fn redirect(line: &str) -> Command {
        match parse_line(line) {
            Ok(Cli::Redirect(command, ..)) => command,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_defaults_are_a_node_s() {
        let Command::Install(redirect) = redirect("redirect install") else { panic!("no installation") };
        assert_eq!(redirect.settings.mode, Mode::DaemonSet { uplinks: None });
        assert_eq!((SocketAddr::V4(redirect.settings.to), redirect.tool), (config::ADDR, None));
        assert_eq!(redirect.settings.opened, Opened::default());
    }

    #[test]
    fn a_sidecar_s_user_must_be_named() {
        let Command::Check(redirect) = redirect("redirect check --mode sidecar --proxy-uid 10988 --to 127.0.0.1:8988")
        else {
            panic!("no check")
        };
        assert_eq!(redirect.settings.mode, Mode::Sidecar { proxy_uid: 10988 });
        for (line, named) in [
            ("--mode sidecar", "--proxy-uid"),
            ("--mode sidecar --proxy-uid 1 --to 10.0.0.1:988", "--to"),
            ("--proxy-uid 1", "--proxy-uid"),
            ("--to 0.0.0.0:988", "--to"),
            ("--to [::1]:988", "--to"),
            ("--uplink a;b", "--uplink"),
            ("--redirect-allow 80", "--redirect-allow"),
            ("--tool pf", "--tool"),
        ] {
            let text = mistakes(&format!("redirect install {line}"));
            assert!(text.contains(named), "{named} is missing from\n{text}");
        }
    }

    #[test]
    fn the_proxy_s_own_redirect_has_ways_that_stay_open() {
        let Ok(Cli::Serve(config)) = parse_line("--redirect --redirect-allow 443,ipv6") else { panic!("no proxy") };
        assert_eq!(config.redirect, Some(Opened { ports: vec![443], ipv6: true }));
        let Ok(Cli::Serve(config)) = parse_line("--redirect-allow 443") else { panic!("no proxy") };
        assert_eq!(config.redirect, None);
    }
}
