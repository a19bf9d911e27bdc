//! Logging: text for a terminal, JSON for a cluster. Levels can be changed at runtime.

use std::fmt;
use std::io::{self, IsTerminal, StderrLock, Write};
use std::str::FromStr;
use std::sync::OnceLock;

use parking_lot::Mutex;
use strum::{Display, EnumString, VariantNames};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt as lines};

use super::lossy::Lossy;
use super::panics;

/// Target of the log lines about changed or doubtful levels, which are written regardless of the levels.
pub const CHANGES: &str = "gce_metadata_proxy::levels";

/// Target of the log line about why the process ends, which is written regardless of the levels.
const EXIT: &str = "gce_metadata_proxy::exit";

/// Format of the log, and of commands' reports. The flags have the variants' names in lowercase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Format {
    /// Text, for people.
    #[default]
    Text,
    /// JSON, for programs. In the log, one object per line.
    Json,
}

impl Format {
    fn log(self) -> Lossy<StderrLock<'static>> {
        let report = match self {
            Self::Text => |lines| format!(" WARN {lines} {DROPPED}\n"),
            Self::Json => |lines| format!("{{\"level\":\"WARN\",\"message\":\"{DROPPED}\",\"lines\":{lines}}}\n"),
        };
        Lossy { file: io::stderr().lock(), report }
    }
}

/// Said in place of lines that could not be written.
const DROPPED: &str = "log lines were dropped here, because standard error was a full pipe that nobody read; see why the container \
                       runtime did not read it: it had stopped, or its disk was full or slow";

/// The lines to write, in tracing's syntax: `info,gce_metadata_proxy=debug`.
#[derive(Debug, Clone, PartialEq)]
pub struct Levels(Targets);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {}", LevelsError::EXPECTED)]
pub struct LevelsError;

impl LevelsError {
    /// The expected syntax, for error messages.
    pub const EXPECTED: &str =
        "error, warn, info, debug, trace or off, for all or by module (info,gce_metadata_proxy=debug)";
}

impl FromStr for Levels {
    type Err = LevelsError;

    /// Rejects a word without `=` that is not a level. tracing would take it for a module name and turn off everything
    /// else. Also rejects impossible module names, because changes are logged, and a line break would forge a log line.
    fn from_str(levels: &str) -> Result<Self, LevelsError> {
        const WORDS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
        let is_level = |word: &str| WORDS.iter().any(|level| level.eq_ignore_ascii_case(word));
        let is_module =
            |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':'));
        let makes_sense = |part: &str| match part.split_once('=') {
            Some((module, level)) => is_module(module) && is_level(level),
            None => is_level(part),
        };
        let targets = levels.split(',').all(makes_sense).then(|| levels.parse().ok()).flatten();
        targets.map(Self).ok_or(LevelsError)
    }
}

impl Levels {
    /// A sentence about crates that are not this program's: a library's, or misspelt. `None` if there are none.
    pub fn doubt(&self) -> Option<String> {
        let is_foreign = |name: &&str| {
            let of = name.split("::").next().unwrap_or_default();
            of != PROGRAM && !CRATES.contains(&of)
        };
        let foreign: Vec<&str> = self.0.iter().map(|(target, _)| target).filter(is_foreign).collect();
        (!foreign.is_empty()).then(|| {
            let (named, own) = (foreign.join(", "), CRATES.join(", "));
            format!("This program has no crate {named} (a library may). Use {PROGRAM} for everything, or one of {own}.")
        })
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The levels in force. A global, because the process has one log.
static IN_FORCE: OnceLock<InForce> = OnceLock::new();

struct InForce {
    format: Format,
    filter: Handle<Targets, Registry>,
    levels: Mutex<Levels>,
}

/// Starts logging to standard error, also of panics. Later calls have no effect.
pub fn start(format: Format, levels: &Levels) {
    let (filter, handle) = reload::Layer::new(with_fixed(levels));
    // Locked, so that no other thread takes the room that a line was promised.
    let log = move || format.log();
    let lines = match format {
        Format::Text => lines::layer().with_ansi(io::stderr().is_terminal()).with_writer(log).boxed(),
        Format::Json => lines::layer().json().flatten_event(true).with_writer(log).boxed(),
    };
    // Fails only if logging was started before.
    if tracing_subscriber::registry().with(lines.with_filter(filter)).try_init().is_ok() {
        let _ = IN_FORCE.set(InForce { format, filter: handle, levels: Mutex::new(levels.clone()) });
        panics::log();
        // A misspelt module alone mutes the program.
        if let Some(doubt) = levels.doubt() {
            tracing::warn!(target: CHANGES, "--log {levels}: {doubt}");
        }
    }
}

/// Writes why the process ends to standard error: in the log, where that is JSON, so that each line there is an object; otherwise as any
/// command does.
pub fn exit(error: &dyn fmt::Display) {
    if let Some(InForce { format: Format::Json, .. }) = IN_FORCE.get() {
        tracing::error!(target: EXIT, "{error}");
    } else {
        // It may fail, and the failure cannot be reported.
        let _ = Format::Text.log().write_all(format!("gce-metadata-proxy: {error}\n").as_bytes());
    }
}

/// Changes the levels. Returns `false` if logging was never started.
pub fn change(levels: &Levels) -> bool {
    IN_FORCE.get().is_some_and(|in_force| {
        let is_changed = in_force.filter.reload(with_fixed(levels)).is_ok();
        if is_changed {
            in_force.levels.lock().clone_from(levels);
        }
        is_changed
    })
}

/// The levels in force, or `None` if logging was never started.
pub fn in_force() -> Option<Levels> {
    IN_FORCE.get().map(|in_force| in_force.levels.lock().clone())
}

/// Target of the log lines about issued tokens, which are written at level info regardless of the levels.
pub const AUDIT_TARGET: &str = "gce_metadata_proxy::audit";

/// Target of the log lines about what a policy in audit mode lets through, which are written regardless of the levels: they are what that
/// mode is for.
pub const POLICY_AUDIT: &str = "gce_metadata_proxy::policy_audit";

/// The program, as operators know all of its crates.
const PROGRAM: &str = "gce_metadata_proxy";

/// The proxy's own crates, which operators know as `gce_metadata_proxy`.
const CRATES: [&str; 8] = ["base", "http_client", "identity", "operator", "protocol", "proxy", "redirect", "telemetry"];

/// The program's level applies to its crates, unless they have levels of their own. Adds the lines that are always
/// written: those of `--audit` and `--policy-mode=audit`, which have their own flags, panics, changes of the levels, and why the process ends.
fn with_fixed(levels: &Levels) -> Targets {
    let given = |name: &str| levels.0.iter().find(|(target, _)| *target == name).map(|(_, level)| level);
    let of_program = given(PROGRAM);
    let of_crates = CRATES.iter().filter_map(|name| Some((*name, given(name).or(of_program)?)));
    let always = [
        (AUDIT_TARGET, Level::INFO),
        (POLICY_AUDIT, Level::INFO),
        (CHANGES, Level::INFO),
        (panics::TARGET, Level::ERROR),
        (EXIT, Level::ERROR),
    ];
    levels.0.clone().with_targets(of_crates).with_targets(always)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_global_or_by_module() {
        for levels in ["info", "WARN", "off", "info,gce_metadata_proxy=debug", "gce_metadata_proxy::access=debug,off"] {
            assert!(levels.parse::<Levels>().is_ok(), "{levels}");
        }
        let forged = "info,a\n2026-01-01T00:00:00Z  INFO forged=info";
        for levels in
            ["", "loud", "info,loud", "info,a=loud", forged, "info,a b=info", "a\u{1b}[2J=info", "a\u{2028}=info"]
        {
            assert_eq!(levels.parse::<Levels>(), Err(LevelsError), "{levels}");
        }
    }

    #[test]
    fn a_module_that_is_none_of_this_program_is_named() {
        for levels in ["info", "info,gce_metadata_proxy=debug,proxy::server=debug", "gce_metadata_proxy::access=debug"]
        {
            assert_eq!(levels.parse::<Levels>().expect("levels").doubt(), None, "{levels}");
        }
        for levels in ["info,nosuch_module=debug", "proxy=warn,nosuch_module::part=debug"] {
            let doubt = levels.parse::<Levels>().expect("levels").doubt().expect("a doubt");
            assert!(doubt.contains("no crate nosuch_module") && !doubt.contains("no crate proxy"), "{levels}: {doubt}");
        }
    }

    #[test]
    fn the_level_of_the_program_is_that_of_its_crates() {
        let targets = with_fixed(&"info,gce_metadata_proxy=debug,identity=warn".parse().expect("levels"));
        assert!(targets.would_enable("proxy::server", &Level::DEBUG));
        assert!(!targets.would_enable("identity::pods", &Level::INFO), "it has a level of its own");
        assert!(!targets.would_enable("hyper", &Level::DEBUG));
        let targets = with_fixed(&"warn,proxy=debug".parse().expect("levels"));
        assert!(targets.would_enable("proxy", &Level::DEBUG) && !targets.would_enable("identity", &Level::INFO));
    }

    #[test]
    fn audit_lines_panics_and_changes_of_levels_are_always_written() {
        for levels in ["off", "off,gce_metadata_proxy::audit=off,gce_metadata_proxy::levels=off"] {
            let targets = with_fixed(&levels.parse().expect("levels"));
            assert!(targets.would_enable(AUDIT_TARGET, &Level::INFO), "{levels}");
            assert!(targets.would_enable(POLICY_AUDIT, &Level::INFO), "{levels}");
            assert!(targets.would_enable(CHANGES, &Level::WARN), "{levels}");
            assert!(targets.would_enable(panics::TARGET, &Level::ERROR), "{levels}");
            assert!(targets.would_enable(EXIT, &Level::ERROR), "{levels}");
            assert!(!targets.would_enable("gce_metadata_proxy", &Level::ERROR), "{levels}");
        }
    }
}
