//! The text of usage errors: the mistake, a suggestion, and the command whose help to read.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command, Error};

/// clap's suggestions for a mistyped word.
const SUGGESTIONS: [ContextKind; 3] =
    [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];

/// The command that the arguments name: the program itself, or one of its subcommands.
pub(super) struct Called {
    /// The words of the subcommand, without the program's name.
    words: Vec<String>,
    command: Command,
}

impl Called {
    /// Reads as many arguments as possible. The first is the program's name.
    pub(super) fn by(args: &[OsString], program: Command) -> Self {
        let read = program.clone().ignore_errors(true).try_get_matches_from(args).unwrap_or_default();
        let mut called = Self { words: Vec::new(), command: program };
        let mut rest: Option<&ArgMatches> = Some(&read);
        while let Some((word, below)) = rest.take().and_then(ArgMatches::subcommand) {
            let Some(command) = called.command.find_subcommand(word) else { break };
            called = Self { words: [called.words, vec![word.to_owned()]].concat(), command: command.clone() };
            rest = Some(below);
        }
        called
    }

    /// All mistakes, and a hint where to find help.
    pub(super) fn text(&self, mistakes: &[String]) -> String {
        let lines: Vec<String> = mistakes.iter().map(|mistake| format!("gce-metadata-proxy: {mistake}")).collect();
        let name = [&["gce-metadata-proxy".to_owned()], &self.words[..]].concat().join(" ");
        format!("{}\nTry '{name} --help'.\n", lines.join("\n"))
    }

    /// clap's error message, in one line.
    pub(super) fn sentence(&self, error: &Error) -> String {
        let name = self.words.join(" ");
        if error.kind() == ErrorKind::MissingRequiredArgument {
            return format!("{name} needs {}", names(error, ContextKind::InvalidArg).join(" and "));
        }
        if lacks_subcommand(error) {
            let commands: Vec<String> = self.command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
            return format!("{name} needs a command: {}", any_of(&commands));
        }
        // The first paragraph is the message. Suggestions and the usage follow.
        let text = error.render().to_string();
        let words: Vec<&str> = text.split("\n\n").next().unwrap_or_default().split_whitespace().collect();
        let sentence = words.join(" ").trim_start_matches("error: ").to_owned();
        let similar = SUGGESTIONS.iter().flat_map(|kind| names(error, *kind));
        let similar: Vec<String> = similar.map(|word| format!("'{word}'")).collect();
        match &similar[..] {
            [] => sentence,
            similar => format!("{sentence}; did you mean {}?", any_of(similar)),
        }
    }
}

/// Whether the command has subcommands and none was given.
pub(super) fn lacks_subcommand(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand)
}

fn names(error: &Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(name)) => vec![name.clone()],
        Some(ContextValue::Strings(names)) => names.clone(),
        _ => Vec::new(),
    }
}

/// `a, b or c`.
fn any_of(names: &[String]) -> String {
    match names {
        [first @ .., before, last] => [first, &[format!("{before} or {last}")]].concat().join(", "),
        names => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::mistakes;

    #[test]
    fn what_is_missing_is_named() {
        for (line, text) in [
            ("explain", "explain needs <URL>\nTry 'gce-metadata-proxy explain --help'."),
            (
                "policy diff --recursive redact",
                "policy diff needs <compat|strict|k8s-metadata-proxy|FILE>\nTry 'gce-metadata-proxy policy diff --help'.",
            ),
            ("policy check", "policy check needs <FILE>\nTry 'gce-metadata-proxy policy check --help'."),
            ("policy", "policy needs a command: show, diff, check or schema\nTry 'gce-metadata-proxy policy --help'."),
            (
                "--policy check redirect",
                "redirect needs a command: install, remove or check\nTry 'gce-metadata-proxy redirect --help'.",
            ),
            (
                "explain --pod",
                "a value is required for '--pod <NAMESPACE/NAME>' but none was supplied\n\
                 Try 'gce-metadata-proxy explain --help'.",
            ),
        ] {
            assert_eq!(mistakes(line), format!("gce-metadata-proxy: {text}\n"), "{line}");
        }
    }

    #[test]
    fn what_was_perhaps_meant_is_named() {
        for (line, text) in [
            ("polcy", "unrecognized subcommand 'polcy'; did you mean 'policy'?\nTry 'gce-metadata-proxy --help'."),
            (
                "polcy check extra --frobnicate",
                "unrecognized subcommand 'polcy'; did you mean 'policy'?\nTry 'gce-metadata-proxy --help'.",
            ),
            (
                "policy schma extra",
                "unrecognized subcommand 'schma'; did you mean 'schema'?\nTry 'gce-metadata-proxy policy --help'.",
            ),
            (
                "redirect install --kep",
                "unexpected argument '--kep' found; did you mean '--keep'?\n\
                 Try 'gce-metadata-proxy redirect install --help'.",
            ),
            ("policy show nosuch", "unexpected argument 'nosuch' found\nTry 'gce-metadata-proxy policy show --help'."),
            (
                "explain --pod=ab",
                "--pod: \"ab\" is not valid; expected NAMESPACE/NAME, such as kube-system/fluentbit\n\
                 Try 'gce-metadata-proxy explain --help'.",
            ),
            (
                "explain /a --pod=b/c",
                "the argument '[URL]' cannot be used with '--pod <NAMESPACE/NAME>'\n\
                 Try 'gce-metadata-proxy explain --help'.",
            ),
            (
                "check --format xml",
                "--format: \"xml\" is not valid; expected text or json\nTry 'gce-metadata-proxy check --help'.",
            ),
        ] {
            assert_eq!(mistakes(line), format!("gce-metadata-proxy: {text}\n"), "{line}");
        }
    }
}
