//! [`Finding`]: an operator command's finding about one topic, and its fix. [`render`] formats a report of findings.

use std::fmt;
use std::time::Duration;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use telemetry::logging::Format;

/// A finding about one topic. Its texts have no control characters, which could come from an annotation or a server.
/// Of all findings in JSON, only the facts of a proxy's condition are read back.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Finding<T, V> {
    /// A name for scripts.
    #[serde(rename = "fact")]
    pub topic: T,
    #[serde(rename = "condition")]
    pub verdict: V,
    /// The action that was tried.
    pub tried: String,
    /// The observation, in plain words.
    pub seen: String,
    /// The message of the server that refused.
    pub said: Option<String>,
    /// The fix, if it needs an explanation.
    pub advice: Option<String>,
    /// Commands that show more. They change nothing in the cluster, on the node or at Google.
    #[serde(rename = "look")]
    pub looks: Vec<String>,
    /// Commands that fix the problem, in order.
    #[serde(rename = "do")]
    pub commands: Vec<String>,
    /// Time until the response. `None` if there was no response or the time does not matter.
    #[serde(skip)]
    pub took: Option<Duration>,
}

/// A verdict whose findings have the JSON form below. `check` has another.
pub trait Written: Serialize {
    /// The keys of a finding's topic and verdict.
    const KEYS: [&str; 2];
}

/// All fields but the time.
impl<T: Serialize, V: Written> Serialize for Finding<T, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let [topic, verdict] = V::KEYS;
        map.serialize_entry(topic, &self.topic)?;
        map.serialize_entry(verdict, &self.verdict)?;
        map.serialize_entry("tried", &self.tried)?;
        map.serialize_entry("seen", &self.seen)?;
        for (key, text) in [("said", &self.said), ("advice", &self.advice)] {
            if let Some(text) = text {
                map.serialize_entry(key, text)?;
            }
        }
        map.serialize_entry("look", &self.looks)?;
        map.serialize_entry("do", &self.commands)?;
        map.end()
    }
}

/// The meaning of a finding. A greater one is worse.
pub trait Verdict: Copy + Ord {
    /// The beginning of a finding's line: a word, padded with blanks.
    fn mark(self) -> &'static str;
}

impl<T, V> Finding<T, V> {
    /// A finding without advice.
    pub fn new(topic: T, verdict: V, tried: impl AsRef<str>, seen: impl AsRef<str>) -> Self {
        Self {
            topic,
            verdict,
            tried: clean(tried.as_ref()),
            seen: clean(seen.as_ref()),
            said: None,
            advice: None,
            looks: Vec::new(),
            commands: Vec::new(),
            took: None,
        }
    }

    /// Adds a server's message.
    #[must_use]
    pub fn saying(self, said: impl AsRef<str>) -> Self {
        Self { said: Some(clean(said.as_ref())), ..self }
    }

    /// Adds an explanation of the fix.
    #[must_use]
    pub fn advising(self, advice: impl AsRef<str>) -> Self {
        Self { advice: Some(clean(advice.as_ref())), ..self }
    }

    /// Adds a command that shows the problem and changes nothing.
    #[must_use]
    pub fn looking(mut self, command: impl AsRef<str>) -> Self {
        self.looks.push(clean(command.as_ref()));
        self
    }

    /// Adds a command that fixes the problem.
    #[must_use]
    pub fn running(mut self, command: impl AsRef<str>) -> Self {
        self.commands.push(clean(command.as_ref()));
        self
    }
}

/// Maximum characters of a text: a server's message or document can be long.
const MAX_TEXT: usize = 4000;

/// Makes characters visible that could move a terminal's cursor or change the display order, and cuts long texts.
pub fn clean(text: &str) -> String {
    let is_hidden = |char: char| {
        char.is_control() || matches!(char, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}')
    };
    let visible = |char: char| if is_hidden(char) { '\u{fffd}' } else { char };
    text.trim_end().chars().take(MAX_TEXT).map(visible).collect()
}

/// One line, followed by lines for a server's message, commands and advice.
impl<T, V: Verdict> fmt::Display for Finding<T, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}: {}", self.verdict.mark(), self.tried, self.seen)?;
        if let Some(took) = self.took {
            write!(f, " ({} ms)", took.as_millis())?;
        }
        writeln!(f)?;
        let advice = if self.commands.is_empty() { "fix" } else { "note" };
        let lines = (self.said.iter().map(|said| ("it said", said)))
            .chain(self.looks.iter().map(|command| ("look", command)))
            .chain(self.commands.iter().map(|command| ("fix", command)))
            .chain(self.advice.iter().map(|text| (advice, text)));
        for (label, text) in lines {
            writeln!(f, "        {label}: {text}")?;
        }
        Ok(())
    }
}

/// Formats a report, with a trailing newline.
pub fn render(report: &(impl fmt::Display + Serialize), format: Format) -> String {
    match format {
        Format::Text => report.to_string(),
        Format::Json => serde_json::to_string_pretty(report).expect("texts and numbers are always JSON") + "\n",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    struct Bad;

    impl Verdict for Bad {
        fn mark(self) -> &'static str {
            "BAD     "
        }
    }

    #[test]
    fn it_is_a_line_and_what_to_do() {
        let finding = Finding::new((), Bad, "GET /", "it failed");
        assert_eq!(finding.to_string(), "BAD     GET /: it failed\n");
        let timed = Finding { took: Some(Duration::from_micros(3999)), ..finding.clone() }.advising("try again");
        assert_eq!(timed.to_string(), "BAD     GET /: it failed (3 ms)\n        fix: try again\n");
        let whole = finding.running("c1").running("c2").advising("why").looking("l").saying("no");
        let lines = ["BAD     GET /: it failed", "it said: no", "look: l", "fix: c1", "fix: c2", "note: why"];
        assert_eq!(whole.to_string(), lines.join("\n        ") + "\n");
    }

    #[test]
    fn hostile_texts_are_cut_and_cannot_move_the_cursor() {
        let hostile = "\u{1b}[2K\u{202e}ok\n";
        let finding = Finding::new((), Bad, hostile, hostile).saying(hostile).advising(hostile);
        let finding = finding.looking(hostile).running(hostile);
        assert!(finding.to_string().lines().all(|line| line.ends_with("\u{fffd}[2K\u{fffd}ok")), "{finding}");
        assert_eq!(finding.saying("é".repeat(9999)).said.map(|said| said.chars().count()), Some(MAX_TEXT));
    }
}
