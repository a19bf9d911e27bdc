//! Parses a command line that may contain mistakes: all of them are reported, and flags may have a single dash,
//! as in Go.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Parser};

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
            Ok(parsed) => {
                let before = typed_before(&command, &parsed.1);
                if before.is_empty() {
                    return Ok(Parsed { whole: Some(parsed), args });
                }
                let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
                args.splice(end..end, before);
                continue;
            }
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

/// Flags of the proxy that were typed before a subcommand which has them, too, and not after it: to be given to the subcommand, so
/// that it does not matter where they stand.
fn typed_before(program: &Command, given: &ArgMatches) -> Vec<OsString> {
    let (mut command, mut after) = (program, given);
    while let Some((name, below)) = after.subcommand() {
        let Some(found) = command.find_subcommand(name) else { break };
        (command, after) = (found, below);
    }
    let is_typed =
        |given: &ArgMatches, arg: &Arg| given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let is_missing = |own: &&Arg| !is_typed(after, own);
    let of_program = |own: &Arg| program.get_arguments().find(|arg| arg.get_id() == own.get_id());
    let before = command.get_arguments().filter(is_missing).filter_map(of_program).filter(|arg| is_typed(given, arg));
    let values = before.flat_map(|arg| {
        let values = given.get_raw(arg.get_id().as_str()).into_iter().flatten();
        values.map(|value| {
            let mut typed = OsString::from(format!("--{}=", arg.get_long().unwrap_or_default()));
            typed.push(value);
            typed
        })
    });
    values.collect()
}

/// Go's flag package accepts one dash or two, and manifests for k8s-metadata-proxy use either.
fn with_two_dashes(command: &Command, arg: OsString) -> OsString {
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use crate::cli::tests::parse_line;
    use crate::cli::{Args, Command};

    #[test]
    fn a_flag_after_the_subcommand_counts_more_than_one_before_it() {
        for (line, same) in [
            ("--metrics-addr=:1 status", "status --metrics-addr=:1"),
            ("--metrics-addr=:1 status --metrics-addr=:2", "status --metrics-addr=:2"),
            ("--policy=strict explain /a --recursive=refuse", "explain /a --policy=strict --recursive=refuse"),
            ("--policy=strict explain -- /a", "explain --policy=strict /a"),
            ("--redirect-allow=1,2 check", "check --redirect-allow=1 --redirect-allow=2"),
            ("--redirect-allow=1,2 check --redirect-allow=3", "check --redirect-allow=3"),
            (
                "--impersonate-node=false identity doctor --node-name=n",
                "identity doctor --node-name=n --impersonate-node=false",
            ),
            ("--bound-tokens identity doctor --node-name=n", "identity doctor --node-name=n --bound-tokens"),
            ("--addr=:1 --upstream=none status", "status"),
            ("--log=debug redirect remove", "redirect remove --log=debug"),
        ] {
            let [parsed, expected] = [line, same].map(|line| format!("{:?}", parse_line(line)));
            assert!(parsed == expected && expected.starts_with("Ok"), "{line}: {parsed}\n{same}: {expected}");
        }
        let parsed = parse_line("--log=debug redirect check");
        assert!(matches!(&parsed, Ok(Command::Redirect { log, .. }) if log.1.to_string() == "debug"), "{parsed:?}");
    }

    /// Flags are given to a subcommand by their names.
    #[test]
    fn flags_of_a_subcommand_that_the_proxy_has_too_have_its_names() {
        fn compare(program: &clap::Command, command: &clap::Command) {
            for own in command.get_arguments() {
                let same = program.get_arguments().find(|arg| arg.get_id() == own.get_id());
                assert!(same.is_none_or(|same| same.get_long() == own.get_long()), "{}: {own}", command.get_name());
            }
            command.get_subcommands().for_each(|below| compare(program, below));
        }
        compare(&Args::command(), &Args::command());
    }
}
