//! The syntax of flags' values: a [`Syntax`] for each kind of value that more than one flag or command uses.

use std::fmt::{Debug, Display};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use clap::Arg;
use strum::VariantNames;

use super::given::{Given, Syntax, syntax};
use protocol::metadata::Target;
use telemetry::logging::{Levels, LevelsError};

/// The names of an enum's variants.
#[derive(Debug, Clone)]
pub(super) struct OneOf<T>(PhantomData<fn() -> T>);

/// A flag whose values are the variants of an enum.
pub(super) type Choice<T> = Given<OneOf<T>>;

/// The names of an enum's variants as shown in help: `text|json`.
pub(super) fn names<T: VariantNames>() -> String {
    T::VARIANTS.join("|")
}

impl<T> Syntax for OneOf<T>
where
    T: VariantNames + FromStr + Display + Debug + Clone + Send + Sync + 'static,
{
    type Value = T;

    fn expected() -> String {
        T::VARIANTS.join(" or ")
    }

    fn parse(text: &str) -> Option<T> {
        text.parse().ok()
    }

    fn show(value: &T) -> String {
        value.to_string()
    }
}

/// On or off, as Go's flags spell it: `--audit`, `--audit=false`, `METADATA_PROXY_AUDIT=1`.
#[derive(Debug, Clone)]
pub(super) struct OnOff;

/// A flag that is on or off.
pub(super) type Switch = Given<OnOff>;

/// What `#[arg(...)]` of a flag says of its values.
pub(super) trait ArgExt: Sized {
    /// For a [`Choice`].
    fn choice<T: VariantNames + Display>(self, default: T) -> Self;

    /// For a [`Switch`].
    fn switch(self, default: bool) -> Self;

    /// For a [`Count`].
    fn count(self, default: usize) -> Self;
}

impl ArgExt for Arg {
    fn choice<T: VariantNames + Display>(self, default: T) -> Self {
        // The derive sees no default here, and so requires the flag.
        self.value_name(names::<T>()).default_value(default.to_string()).required(false)
    }

    fn switch(self, default: bool) -> Self {
        let arg = self.value_name("true|false").default_value(default.to_string()).hide_default_value(!default);
        arg.num_args(0..=1).require_equals(true).default_missing_value("true").required(false)
    }

    fn count(self, default: usize) -> Self {
        // A negative number is a mistake of the value, not an unknown flag.
        self.value_name("N").default_value(default.to_string()).allow_negative_numbers(true).required(false)
    }
}

/// A host name without a port.
#[derive(Debug, Clone)]
pub(super) struct HostName;

/// A metadata value of one word.
#[derive(Debug, Clone)]
pub(super) struct Word;

/// The number of a project or an instance.
#[derive(Debug, Clone)]
pub(super) struct PositiveNumber;

syntax! {
    String => Self, |text: &str| Some(text.to_owned()), "a text";
    Levels => Self, |text: &str| text.parse().ok(), LevelsError::EXPECTED;
    SocketAddr => Self, as_in_go,
        "HOST:PORT with an IP address or localhost for HOST, such as 127.0.0.1:988, [::1]:988 or :988";
    OnOff => bool, on_or_off, "true or false";
    HostName => String, host_name, "a host name without a port or a wildcard";
    Word => Box<str>, word, "a word of letters, digits and -_.:";
    PositiveNumber => u64, |text: &str| text.parse().ok().filter(|number| *number > 0), "a whole number, at least 1";
}

/// An address to listen on, in Go's syntax: `:988` is every IPv4 address of the machine.
fn as_in_go(text: &str) -> Option<SocketAddr> {
    let spelt = match text.rsplit_once(':')? {
        ("", port) => format!("0.0.0.0:{port}"),
        ("localhost", port) => format!("127.0.0.1:{port}"),
        _ => text.to_owned(),
    };
    spelt.parse().ok()
}

fn on_or_off(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Labels of letters, digits and -_, such as `node-1.example`, perhaps with a last dot. Clients may send other characters as
/// a host, but no resolver knows a name with them, and a wildcard would be compared as it is.
fn host_name(text: &str) -> Option<String> {
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let is_name = text.strip_suffix('.').unwrap_or(text).split('.').all(is_label);
    is_name.then(|| text.to_owned())
}

fn word(text: &str) -> Option<Box<str>> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    (!text.is_empty() && text.len() <= 253 && text.bytes().all(is_allowed)).then(|| text.into())
}

/// The URL of the metadata server.
#[derive(Debug, Clone)]
pub(super) struct Server;

impl Syntax for Server {
    type Value = Target;

    fn expected() -> String {
        "http://HOST or http://HOST:PORT, without a path".to_owned()
    }

    fn parse(text: &str) -> Option<Target> {
        Target::parse(text).ok()
    }

    fn show(value: &Target) -> String {
        format!("http://{value}")
    }
}

/// A value, or `none`: there is no such server or provider.
#[derive(Debug, Clone)]
pub(super) struct OrNone<S>(PhantomData<fn() -> S>);

const NONE: &str = "none";

impl<S: Syntax> Syntax for OrNone<S> {
    type Value = Option<S::Value>;

    fn expected() -> String {
        format!("{}; or {NONE}", S::expected())
    }

    fn parse(text: &str) -> Option<Self::Value> {
        if text == NONE { Some(None) } else { S::parse(text).map(Some) }
    }

    fn show(value: &Self::Value) -> String {
        value.as_ref().map_or_else(|| NONE.to_owned(), S::show)
    }
}

/// A number of things, from `MIN` to [`MAX_COUNT`].
#[derive(Debug, Clone)]
pub(super) struct Count<const MIN: usize>;

/// Far more than a node needs, and so few that sums of counts, and the memory for them, cannot overflow.
const MAX_COUNT: usize = 1_000_000;

impl<const MIN: usize> Syntax for Count<MIN> {
    type Value = usize;

    fn expected() -> String {
        format!("a whole number from {MIN} to {MAX_COUNT}")
    }

    fn parse(text: &str) -> Option<usize> {
        text.parse().ok().filter(|count| (MIN..=MAX_COUNT).contains(count))
    }

    fn show(value: &usize) -> String {
        value.to_string()
    }
}

/// A duration with one unit. humantime's syntax is not used, because it also accepts hours, years, and several units at
/// once.
#[derive(Debug, Clone)]
pub(super) struct Time;

impl Syntax for Time {
    type Value = Duration;

    fn expected() -> String {
        "a number followed by ms, s or m, such as 10s".to_owned()
    }

    fn parse(text: &str) -> Option<Duration> {
        let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
        let number: u64 = digits.parse().ok()?;
        match &text[digits.len()..] {
            "ms" => Some(Duration::from_millis(number)),
            "s" => Some(Duration::from_secs(number)),
            "m" => number.checked_mul(60).map(Duration::from_secs),
            _ => None,
        }
    }

    fn show(value: &Duration) -> String {
        format!("{}ms", value.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_bounded_so_that_sums_of_them_are() {
        assert_eq!((Count::<1>::parse("1"), Count::<1>::parse("1000000")), (Some(1), Some(1_000_000)));
        assert_eq!(Count::<0>::parse("0"), Some(0));
        for text in ["0", "1000001", "18446744073709551615", "18446744073709551616", "-1", "1e3", ""] {
            assert_eq!(Count::<1>::parse(text), None, "{text}");
        }
        assert_eq!(Count::<1>::expected(), "a whole number from 1 to 1000000");
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(Time::parse("1500ms"), Some(Duration::from_millis(1500)));
        assert_eq!(Time::parse("2m"), Some(Duration::from_secs(120)));
        for text in ["", "10", "s", "-1s", "1h", "1.5s", "99999999999999999999s"] {
            assert_eq!(Time::parse(text), None, "{text}");
        }
    }
}
