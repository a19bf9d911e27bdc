//! [`Given`]: a flag's value, which may be invalid, so that all mistakes are reported at once.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::marker::PhantomData;

use clap::builder::{StringValueParser, TypedValueParser, ValueParserFactory};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};
use serde::{Serialize, Serializer};

/// The syntax of a flag's value.
pub(super) trait Syntax: Debug + Clone + Send + Sync + 'static {
    type Value: Debug + Clone + Send + Sync;

    /// Describes a valid value, for error messages.
    fn expected() -> String;

    /// Parses a value. Returns `None` if it is invalid.
    fn parse(text: &str) -> Option<Self::Value>;

    /// Formats a value so that [`parse`](Self::parse) accepts it.
    fn show(value: &Self::Value) -> String;
}

/// Implements [`Syntax`] for values that are typed as `Display` shows them: with the function that parses one, and the
/// description of a valid one. A type can be its own syntax.
macro_rules! syntax {
    ($($name:ty => $value:ty, $parse:expr, $expected:expr;)+) => {
        $(impl $crate::cli::given::Syntax for $name {
            type Value = $value;

            fn expected() -> String {
                $expected.to_owned()
            }

            fn parse(text: &str) -> Option<$value> {
                $parse(text)
            }

            fn show(value: &$value) -> String {
                value.to_string()
            }
        })+
    };
}

pub(super) use syntax;

/// A value and the flag or environment variable that it comes from. clap accepts any text; [`Mistakes`] collects invalid
/// ones.
#[derive(Debug, Clone)]
pub(super) struct Given<S: Syntax> {
    origin: String,
    text: String,
    value: Option<S::Value>,
    source: ValueSource,
    /// The flag's default, if the text is empty: that counts as not set.
    default: Vec<S::Value>,
}

impl<S: Syntax> Given<S> {
    /// The flag as if this value had been passed.
    pub(super) fn from_value(value: S::Value) -> Self {
        let source = ValueSource::CommandLine;
        Self { origin: String::new(), text: S::show(&value), value: Some(value), source, default: Vec::new() }
    }

    /// The flag as if the environment had this text.
    #[cfg(test)]
    pub(super) fn from_environment(text: &str) -> Self {
        let source = ValueSource::EnvVariable;
        Self { origin: String::new(), text: text.to_owned(), value: S::parse(text), source, default: Vec::new() }
    }

    /// Whether the flag has a value. An empty environment variable counts as not set.
    pub(super) fn is_not_empty(&self) -> bool {
        !self.text.is_empty()
    }

    /// Whether somebody chose the value, by the flag or its variable.
    pub(super) fn is_chosen(&self) -> bool {
        self.source != ValueSource::DefaultValue && self.is_not_empty()
    }

    /// Whether the value was typed. A variable may be there for another command of the same pod.
    pub(super) fn is_typed(&self) -> bool {
        self.source == ValueSource::CommandLine && self.is_not_empty()
    }

    /// Whether a value other than the default was typed. The default is harmless where it has no effect.
    pub(super) fn is_typed_other_than(&self, default: &S::Value) -> bool {
        self.is_typed() && self.value.as_ref().is_none_or(|value| S::show(value) != S::show(default))
    }

    /// Adds the subcommand's name in messages, for a flag that the proxy also has.
    #[cfg(feature = "mock")]
    pub(super) fn with_command(self, command: &str) -> Self {
        Self { origin: format!("{command} {}", self.origin), ..self }
    }
}

/// Serializes the text, for `/flagz`.
impl<S: Syntax> Serialize for Given<S> {
    fn serialize<W: Serializer>(&self, serializer: W) -> Result<W::Ok, W::Error> {
        serializer.serialize_str(&self.text)
    }
}

/// Lets clap find the parser by the field's type.
impl<S: Syntax> ValueParserFactory for Given<S> {
    type Parser = GivenParser<S>;

    fn value_parser() -> GivenParser<S> {
        GivenParser(PhantomData)
    }
}

#[derive(Clone)]
pub(super) struct GivenParser<S>(PhantomData<fn() -> S>);

impl<S: Syntax> TypedValueParser for GivenParser<S> {
    type Value = Given<S>;

    fn parse_ref(&self, command: &clap::Command, arg: Option<&Arg>, text: &OsStr) -> Result<Self::Value, clap::Error> {
        self.parse_ref_(command, arg, text, ValueSource::CommandLine)
    }

    fn parse_ref_(
        &self,
        command: &clap::Command,
        arg: Option<&Arg>,
        text: &OsStr,
        source: ValueSource,
    ) -> Result<Self::Value, clap::Error> {
        let text = StringValueParser::new().parse_ref(command, arg, text)?;
        let origin = arg.map(|arg| origin(arg, Some(source))).unwrap_or_default();
        let defaults = arg.filter(|_| text.is_empty()).into_iter().flat_map(Arg::get_default_values);
        let default: Vec<_> = defaults.filter_map(|default| S::parse(default.to_str()?)).collect();
        let value = default.first().cloned().or_else(|| S::parse(&text));
        Ok(Given { origin, text, value, source, default })
    }
}

/// A flag's value. `None` if it is invalid.
pub(super) fn value<S: Syntax>(given: &ArgMatches, id: &str) -> Option<S::Value> {
    given.get_one::<Given<S>>(id)?.value.clone()
}

/// The name in messages of a flag whose value comes from this source.
pub(super) fn origin(arg: &Arg, source: Option<ValueSource>) -> String {
    let flag = arg.get_long().unwrap_or_default();
    match arg.get_env().filter(|_| source == Some(ValueSource::EnvVariable)) {
        Some(variable) => format!("--{flag} (from {})", variable.display()),
        None => format!("--{flag}"),
    }
}

/// Usage errors, one per line.
#[derive(Debug, Default)]
pub(super) struct Mistakes(Vec<String>);

impl Mistakes {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn lines(&self) -> &[String] {
        &self.0
    }

    pub(super) fn add(&mut self, line: impl Into<String>) {
        self.0.push(line.into());
    }

    /// Adds a mistake, because of which there is no value.
    pub(super) fn refuse<T>(&mut self, line: impl Into<String>) -> Option<T> {
        self.add(line);
        None
    }

    /// Adds a mistake if the flag has no effect without something.
    pub(super) fn without(&mut self, flag: &str, without: &str, is_given: bool) {
        if is_given {
            self.add(format!("{flag} has no effect without {without}"));
        }
    }

    /// The value, or `None` and a mistake.
    pub(super) fn value<S: Syntax>(&mut self, given: Given<S>) -> Option<S::Value> {
        self.value_if(given, &S::expected(), |_| true)
    }

    /// The value if it also meets a condition, or `None` and a mistake.
    pub(super) fn value_if<S: Syntax>(
        &mut self,
        given: Given<S>,
        expected: &str,
        condition: impl Fn(&S::Value) -> bool,
    ) -> Option<S::Value> {
        let value = given.value.filter(condition);
        if value.is_none() {
            self.add(format!("{}: {:?} is not valid; expected {expected}", given.origin, given.text));
        }
        value
    }

    /// The value, if one is set. An invalid value is a mistake.
    pub(super) fn optional<S: Syntax>(&mut self, given: Option<Given<S>>) -> Option<S::Value> {
        given.filter(Given::is_not_empty).and_then(|given| self.value(given))
    }

    /// The valid values, without empty ones; the default if there are only empty ones. Each invalid value is a mistake.
    pub(super) fn list<S: Syntax>(&mut self, given: Vec<Given<S>>) -> Vec<S::Value> {
        if !given.iter().any(Given::is_not_empty) {
            return given.into_iter().next().map(|given| given.default).unwrap_or_default();
        }
        given.into_iter().filter(Given::is_not_empty).filter_map(|given| self.value(given)).collect()
    }
}
