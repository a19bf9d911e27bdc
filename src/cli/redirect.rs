//! Flags of `redirect`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use clap::{Args, Subcommand};
use strum::{Display, EnumString, VariantNames};

use super::flag::Flag as _;
use super::given::{Given, Mistakes, syntax};
use super::log::LogArgs;
use super::opened::OpenedArgs;
use super::startup_taint::StartupTaintArgs;
use super::syntax::{self, ArgExt as _, Choice};
use redirect::{
    Command, Destination, METADATA_V4, METADATA_V6, Mode, PROXY, Redirect, SIDECAR_UID, Settings, Tool, Uplinks,
};

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "parsed once")]
pub(super) enum Subcommands {
    /// Install the redirect rules, replacing those of an earlier redirect. The rules stay until they are removed. Where they
    /// cannot be installed, pods are closed: rules that reset all their connections to the metadata server are installed
    /// instead, unless those in force serve pods on another address, and the command fails with the reason
    Install {
        #[command(flatten)]
        wanted: RedirectArgs,

        /// Keep running, check the rules every 30 s, and restore them if they were flushed or changed. Where they cannot be
        /// installed, pods are closed, and it tries again every 5 s
        #[arg(long, conflicts_with = "dry_run")]
        keep: bool,

        /// With --keep: address to serve /metrics on: how many packets --redirect-max-new-connections dropped, whether spoofed
        /// packets are dropped, and how often the rules were restored. None by default, so that the process that changes the
        /// firewall has no open port
        #[arg(long, value_name = "HOST:PORT", requires = "keep")]
        keeper_metrics_addr: Option<Given<SocketAddr>>,

        /// Print the rules without installing them
        #[arg(long)]
        dry_run: bool,

        #[command(flatten)]
        startup_taint: StartupTaintArgs,

        #[command(flatten)]
        log: LogArgs,
    },
    /// Remove the redirect rules of any tool. Pods then reach the metadata server directly. First stop any `redirect install
    /// --keep` and any proxy with --redirect, which would restore the rules
    Remove {
        #[command(flatten)]
        log: LogArgs,
    },
    /// Check whether the rules match what these flags would install. Exits with 0 if they do. Otherwise exits with 1, and says
    /// whether pods are closed or open, and what to do
    Check {
        #[command(flatten)]
        wanted: RedirectArgs,
    },
}

#[derive(Debug, Args)]
pub(super) struct RedirectArgs {
    /// Which requests to redirect. daemonset: those of all pods, run on the node. sidecar: those of one pod, run in its init
    /// container
    #[arg(long, choice = Place::default())]
    mode: Choice<Place>,

    /// Address that the proxy listens on. May be repeated, once for each IP version; what has none is blocked. With daemonset a
    /// link-local address or one of `fd20:ce::/64`, which the redirect adds to the interface lo, or another address of the node
    /// that is not loopback. IPv6 is left out on a node without it. With sidecar a loopback address, by default 127.0.0.1:988
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "METADATA_PROXY_REDIRECT_TO",
        value_delimiter = ',',
        default_values = PROXY.map(|addr| addr.to_string())
    )]
    to: Vec<Given<SocketAddr>>,

    /// sidecar only: user ID of the proxy (61988 in its image). No other container of the pod may use it, because its
    /// packets reach the metadata server
    #[arg(long = PROXY_UID, value_name = "UID")]
    proxy_uid: Option<Given<u32>>,

    /// daemonset only: network interface that carries no pod traffic. May be repeated. Replaces the default, the interface on
    /// the route to the metadata server
    #[arg(long, value_name = "INTERFACE", env = "METADATA_PROXY_REDIRECT_UPLINK", value_delimiter = ',')]
    uplink: Vec<Given<Interface>>,

    /// Tool to install the rules with. By default nft if it works on this machine, otherwise iptables
    #[arg(long, value_name = syntax::names::<Tool>(), env = "METADATA_PROXY_REDIRECT_TOOL")]
    tool: Option<Choice<Tool>>,

    #[command(flatten)]
    opened: OpenedArgs,
}

/// The place where the proxy runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
enum Place {
    #[default]
    DaemonSet,
    Sidecar,
}

/// Required or forbidden, depending on the mode.
const PROXY_UID: &str = "proxy-uid";

impl Subcommands {
    /// The command. `redirect check` has no flags for its log, so those of the proxy hold.
    pub(super) fn resolve(self, log_before: LogArgs, mistakes: &mut Mistakes) -> Option<super::Command> {
        let (mut metrics_addr, mut startup_taint) = (None, None);
        let (command, log) = match self {
            Self::Install { wanted, keep, keeper_metrics_addr, dry_run, startup_taint: taint, log } => {
                startup_taint = taint.resolve(keep, mistakes);
                metrics_addr = mistakes.optional(keeper_metrics_addr);
                let command: fn(Redirect) -> Command = match (keep, dry_run) {
                    (true, _) => Command::Keep,
                    (_, true) => Command::Print,
                    _ => Command::Install,
                };
                (wanted.resolve(mistakes).map(command), log)
            }
            Self::Remove { log } => (Some(Command::Remove), log),
            Self::Check { wanted } => (wanted.resolve(mistakes).map(Command::Check), log_before),
        };
        let log = log.resolve(mistakes);
        Some(super::Command::Redirect { command: command?, metrics_addr, log: log?, startup_taint })
    }
}

impl RedirectArgs {
    fn resolve(self, mistakes: &mut Mistakes) -> Option<Redirect> {
        let place = mistakes.value(self.mode);
        let to = chosen(self.to);
        let is_chosen = !to.is_empty();
        let to = destination(place, to, mistakes);
        let is_shared = is_chosen && to.as_ref().is_some_and(is_named);
        let has_uid = self.proxy_uid.is_some();
        let uid = self.proxy_uid.and_then(|uid| mistakes.value_if(uid, NOT_ROOT, |uid| *uid != 0));
        let has_uplink = self.uplink.iter().any(Given::is_chosen);
        mistakes.without("--uplink", "--mode daemonset", place == Some(Place::Sidecar) && has_uplink);
        let mode = place.and_then(|place| match place {
            Place::DaemonSet if has_uid => {
                mistakes.refuse(format!("--{PROXY_UID} has no effect without --mode sidecar"))
            }
            Place::DaemonSet => {
                let uplinks = mistakes.list(self.uplink);
                let uplinks = Some(uplinks).filter(|uplinks| !uplinks.is_empty());
                Some(Mode::DaemonSet { uplinks: uplinks.map(Uplinks::named) })
            }
            Place::Sidecar if has_uid => uid.map(|proxy_uid| Mode::Sidecar { proxy_uid }),
            Place::Sidecar => mistakes.refuse(format!(
                "--mode sidecar requires --{PROXY_UID}, the runAsUser of the proxy's container ({SIDECAR_UID} in its image), which no \
                 other container of the pod may use"
            )),
        });
        let tool = mistakes.optional(self.tool);
        if place == Some(Place::Sidecar) {
            self.opened.check_in_pod(mistakes);
        }
        let opened = self.opened.resolve(mistakes);
        Some(Redirect { settings: Settings { mode: mode?, to: to?, is_shared, opened: opened? }, tool })
    }
}

/// The addresses that somebody chose. None, if the default applies.
fn chosen(to: Vec<Given<SocketAddr>>) -> Vec<Given<SocketAddr>> {
    to.into_iter().filter(Given::is_chosen).collect()
}

/// Whether this names an address, and not another port of the default addresses alone. At those Google's own server may listen, so
/// a changed port does not say that this proxy may share them.
fn is_named(to: &Destination) -> bool {
    let is_default = |to: SocketAddr| PROXY.iter().any(|proxy| proxy.ip() == to.ip() && proxy.port() != to.port());
    !to.addrs().all(is_default)
}

fn destination(place: Option<Place>, to: Vec<Given<SocketAddr>>, mistakes: &mut Mistakes) -> Option<Destination> {
    if to.is_empty() {
        return Destination::new(if place == Some(Place::Sidecar) { &[IN_POD] } else { &PROXY });
    }
    let (expected, fits): (_, fn(&SocketAddr) -> bool) = match place {
        Some(Place::Sidecar) => (LOOPBACK, |to| to.ip().is_loopback() && to.port() != 0),
        // Not all interfaces: the guard rules could not distinguish the proxy's address.
        _ => (OF_NODE, |to| !to.ip().is_loopback() && !to.ip().is_unspecified() && to.port() != 0),
    };
    let to: Option<Vec<SocketAddr>> = to.into_iter().map(|to| mistakes.value_if(to, expected, fits)).collect();
    let to = to?;
    let is_server =
        |to: &&SocketAddr| [IpAddr::V4(METADATA_V4), IpAddr::V6(METADATA_V6)].contains(&to.ip().to_canonical());
    if let Some(server) = to.iter().find(is_server) {
        return mistakes.refuse(format!(
            "--to {server} is the metadata server's own address; give the proxy's, such as {}",
            PROXY[usize::from(server.is_ipv6())]
        ));
    }
    let same = |version: fn(&&SocketAddr) -> bool| {
        to.iter().filter(version).map(|to| format!("--to {to}")).collect::<Vec<_>>()
    };
    for (same, version) in [(same(|to| to.is_ipv4()), "IPv4"), (same(|to| to.is_ipv6()), "IPv6")] {
        if same.len() > 1 {
            mistakes.add(format!(
                "{} are {} {version}; give one",
                same.join(" and "),
                if same.len() == 2 { "both" } else { "all" }
            ));
        }
    }
    Destination::new(&to)
}

const NOT_ROOT: &str = "a user ID other than 0, with which every process of root would reach the metadata server";

const LOOPBACK: &str = "a loopback address and a port, such as 127.0.0.1:988";

const OF_NODE: &str = "an address for the proxy on this node and a port, such as 169.254.169.252:988; loopback is not, because \
                       the kernel routes nothing to it that comes from a pod";

/// Where a proxy in the pod listens.
const IN_POD: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 988);

/// A name that the kernel accepts for an interface, without characters that are special in the rules' text.
#[derive(Debug, Clone)]
struct Interface;

syntax! {
    Interface => String, interface, "the name of an interface";
    // A user ID.
    u32 => Self, |text: &str| text.parse().ok(), "a number";
}

fn interface(text: &str) -> Option<String> {
    let is_special = |byte: u8| !byte.is_ascii_alphanumeric() && !b"-_.@".contains(&byte);
    (text.len() < 16 && !text.bytes().any(is_special)).then(|| text.to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Command as Cli;
    use super::super::tests::{mistakes, parse_line};
    use super::*;
    use redirect::Opened;

    pub(in super::super) fn redirect(line: &str) -> Redirect {
        match parse_line(line) {
            Ok(Cli::Redirect { command: Command::Install(redirect) | Command::Check(redirect), .. }) => redirect,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn defaults_are_for_a_node() {
        let redirect = redirect("redirect install");
        assert_eq!(redirect.settings.mode, Mode::DaemonSet { uplinks: None });
        assert_eq!((redirect.settings.to, redirect.tool), (Destination::new(&PROXY).expect("two"), None));
        assert!(!redirect.settings.is_shared, "a node that has these addresses from somebody else has no place");
        assert_eq!(redirect.settings.opened, Opened::default());
    }

    #[test]
    fn another_port_does_not_say_that_an_address_may_be_shared() {
        for (to, is_shared) in [
            ("--to 169.254.169.252:987 --to [fd20:ce::252]:987", false),
            ("--to 169.254.169.252:987", false),
            ("--to 169.254.169.252:988", true),
            ("--to 169.254.169.252:988,[fd20:ce::252]:988", true),
            ("--to 169.254.169.253:987,[fd20:ce::253]:987", true),
            ("--to 169.254.169.253:987,[fd20:ce::252]:987", true),
        ] {
            let redirect = redirect(&format!("redirect install {to}"));
            assert_eq!(redirect.settings.is_shared, is_shared, "{to}");
        }
    }

    #[test]
    fn an_empty_variable_is_the_default_and_one_with_addresses_is_a_choice() {
        let given = |texts: &[&str]| chosen(texts.iter().map(|text| Given::from_environment(text)).collect());
        let mut mistakes = Mistakes::default();
        let mut of =
            |place, texts: &[&str]| destination(Some(place), given(texts), &mut mistakes).expect("a destination");
        assert_eq!(of(Place::DaemonSet, &[""]), Destination::new(&PROXY).expect("two"));
        assert_eq!(of(Place::Sidecar, &[""]), Destination::new(&[IN_POD]).expect("one"));
        let (four, six) = ("169.254.169.253:988", "[fd20:ce::253]:988");
        let chosen = [four, six].map(|addr| addr.parse().expect("an address"));
        assert_eq!(of(Place::DaemonSet, &[four, six]), Destination::new(&chosen).expect("two"));
        assert!(mistakes.is_empty());
        assert!(!given(&[four]).is_empty() && given(&[""]).is_empty());
    }

    #[test]
    fn a_sidecar_requires_a_user() {
        for (to, expected) in [("--to 127.0.0.1:8988", ([127, 0, 0, 1], 8988).into()), ("", IN_POD)] {
            let check = redirect(&format!("redirect check --mode sidecar --proxy-uid 10988 {to}"));
            assert_eq!(check.settings.mode, Mode::Sidecar { proxy_uid: 10988 });
            assert_eq!(check.settings.to, Destination::new(&[expected]).expect("one"));
        }
        for (line, named) in [
            ("--mode sidecar", "--proxy-uid"),
            ("--mode sidecar --proxy-uid 1 --to 10.0.0.1:988", "--to"),
            ("--mode sidecar --proxy-uid 0", "a user ID other than 0"),
            ("--mode sidecar --proxy-uid 1 --uplink eth0", "--uplink has no effect without --mode daemonset"),
            ("--proxy-uid 1", "--proxy-uid has no effect without --mode sidecar"),
            (
                "--to 169.254.169.254:988",
                "--to 169.254.169.254:988 is the metadata server's own address; give the proxy's, such as 169.254.169.252:988",
            ),
            ("--to [fd20:ce::254]:988", "such as [fd20:ce::252]:988"),
            ("--kubeconfig /k", "--kubeconfig has no effect without --startup-taint"),
            ("--to 0.0.0.0:988", "--to"),
            ("--to [::1]:988", "--to"),
            ("--to 127.0.0.1:988", "--to"),
            ("--to 10.0.0.1:988 --to 10.0.0.2:988", "--to 10.0.0.1:988 and --to 10.0.0.2:988 are both IPv4; give one"),
            ("--uplink a;b", "--uplink"),
            ("--redirect-allow 80", "--redirect-allow"),
            ("--tool pf", "--tool"),
            ("--redirect-max-new-connections -1", "--redirect-max-new-connections"),
            ("--redirect-max-new-connections 100001", "1 to 100000"),
            ("--keeper-metrics-addr 127.0.0.1:1990", "--keep"),
            ("--keep --keeper-metrics-addr nowhere", "--keeper-metrics-addr"),
        ] {
            let text = mistakes(&format!("redirect install {line}"));
            assert!(text.contains(named), "{named} is missing from\n{text}");
        }
    }

    #[test]
    fn a_node_may_have_several_uplinks() {
        let redirect = redirect("redirect check --uplink eth0,eth1 --uplink ens4");
        let uplinks = ["eth0", "eth1", "ens4"].map(str::to_owned).to_vec();
        assert_eq!(redirect.settings.mode, Mode::DaemonSet { uplinks: Some(Uplinks::named(uplinks)) });
    }

    #[test]
    fn a_keeper_has_an_open_port_only_if_asked() {
        for (flag, expected) in [("", None), ("--keeper-metrics-addr :1990", Some(([0, 0, 0, 0], 1990).into()))] {
            let Ok(Cli::Redirect { metrics_addr, .. }) = parse_line(&format!("redirect install --keep {flag}")) else {
                panic!("no redirect")
            };
            assert_eq!(metrics_addr, expected);
        }
    }
}
