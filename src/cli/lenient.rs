//! Parses a command line that may contain mistakes: all of them are reported, and flags may have a single dash,
//! as in Go.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Parser};

use super::Stop;
use super::given::Mistakes;
use super::usage::{Called, lacks_subcommand};

/// The result of parsing.
pub(super) struct Parsed<A> {
    /// The values and their sources. `None` if some arguments cannot be parsed.
    pub(super) whole: Option<(A, ArgMatches)>,
    /// The remaining arguments.
    pub(super) args: Vec<OsString>,
}

/// Parses arguments with clap. Adds a mistake for each that cannot be parsed.
///
/// clap stops at the first unknown argument. Removes unknown arguments one by one, so that the others are checked too.
pub(super) fn parse<A: Parser>(
    args: impl IntoIterator<Item = OsString>,
    mistakes: &mut Mistakes,
) -> Result<Parsed<A>, Stop> {
    let command = A::command();
    let mut args: Vec<OsString> = args.into_iter().map(|arg| with_two_dashes(&command, arg)).collect();
    let mut has_wrong_subcommand = false;
    loop {
        let parsed = A::command()
            .try_get_matches_from(&args)
            .and_then(|given| A::from_arg_matches(&given).map(|parsed| (parsed, given)));
        let error = match parsed {
            Ok(parsed) => return Ok(Parsed { whole: Some(parsed), args }),
            Err(error) => error,
        };
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            return Err(Stop::Shown(error.render().to_string()));
        }
        let is_subcommand = error.kind() == ErrorKind::InvalidSubcommand;
        if !(has_wrong_subcommand && lacks_subcommand(&error)) {
            mistakes.add(Called::by(&args, A::command()).sentence(&error));
        }
        has_wrong_subcommand |= is_subcommand;
        match unknown(&error).and_then(|unknown| position(&args, unknown)) {
            // The rest belongs to the unknown subcommand, so it cannot be checked.
            Some(position) if is_subcommand => args.truncate(position),
            Some(position) => drop(args.remove(position)),
            None => return Ok(Parsed { whole: None, args }),
        }
    }
}

/// Go's flag package accepts one dash or two, and manifests for k8s-metadata-proxy use either.
fn with_two_dashes(command: &clap::Command, arg: OsString) -> OsString {
    let name = arg.to_str().and_then(|text| text.strip_prefix('-')).and_then(|text| text.split('=').next());
    match (name, arg.to_str()) {
        (Some(name), Some(text)) if command.get_arguments().any(|known| known.get_long() == Some(name)) => {
            format!("-{text}").into()
        }
        _ => arg,
    }
}

/// The argument or subcommand that is unknown to clap.
fn unknown(error: &clap::Error) -> Option<&str> {
    let kind = match error.kind() {
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        _ => return None,
    };
    match error.get(kind) {
        Some(ContextValue::String(unknown)) => Some(unknown),
        _ => None,
    }
}

/// Position of an argument. The first is the program's name.
fn position(args: &[OsString], name: &str) -> Option<usize> {
    let is_it = |arg: &OsString| arg.to_str().is_some_and(|arg| arg.split('=').next() == Some(name));
    args.iter().skip(1).position(is_it).map(|position| position + 1)
}
