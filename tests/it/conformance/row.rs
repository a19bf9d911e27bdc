//! [`Row`]: a row of the table, and how it is written down.

use std::fmt;

use mock::Handle;

use super::ask::{Ask, get};
use super::expect::{Expect, kept_token, token};
use super::stage::Side;
use super::stories::Story;

/// A row of the table, with its test cases.
pub struct Row {
    pub id: &'static str,
    pub cases: Vec<Case>,
    ask: Ask,
    given: fn(&Handle),
}

/// One test case, for one side.
pub struct Case {
    pub side: Side,
    /// Setup of the mock.
    pub given: fn(&Handle),
    pub play: Play,
}

/// The requests of a test case.
pub enum Play {
    Exchange(Ask, Box<Expect>),
    /// A test of several requests, with a name for reports.
    Story(&'static str, Story),
}

pub fn row(id: &'static str) -> Row {
    Row { id, cases: Vec::new(), ask: get("/"), given: |_| () }
}

impl Row {
    /// The next expectations are for a GET of this target.
    pub fn get(self, target: &str) -> Self {
        self.ask(get(target))
    }

    /// The next expectations are for this request.
    pub fn ask(self, ask: Ask) -> Self {
        Self { ask, ..self }
    }

    /// The next expectations need this setup of the mock.
    pub fn given(self, given: fn(&Handle)) -> Self {
        Self { given, ..self }
    }

    /// The mock's response when it is requested directly.
    pub fn mock(self, expect: Expect) -> Self {
        let play = Play::Exchange(self.ask.clone(), Box::new(expect));
        self.play(Side::Mock, play)
    }

    /// The proxy's response.
    pub fn proxy(self, expect: Expect) -> Self {
        let play = Play::Exchange(self.ask.clone(), Box::new(expect));
        self.play(Side::Proxy, play)
    }

    /// The mock's response, which the proxy passes on.
    pub fn both(self, expect: Expect) -> Self {
        self.mock(expect.clone()).proxy(expect)
    }

    /// Both respond with a token.
    pub fn token(self) -> Self {
        self.mock(token()).proxy(kept_token())
    }

    pub fn story(self, side: Side, (name, story): (&'static str, Story)) -> Self {
        self.play(side, Play::Story(name, story))
    }

    pub fn stories(self, story: (&'static str, Story)) -> Self {
        self.story(Side::Mock, story).story(Side::Proxy, story)
    }

    fn play(mut self, side: Side, play: Play) -> Self {
        self.cases.push(Case { side, given: self.given, play });
        self
    }
}

/// The name in reports.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Mock => "mock",
            Side::Proxy => "proxy",
        };
        match &self.play {
            Play::Exchange(ask, _) => write!(f, "({side}) {}", ask.title()),
            Play::Story(name, _) => write!(f, "({side}) {name}"),
        }
    }
}
