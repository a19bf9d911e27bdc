//! Expectations on a response, and descriptions of deviations.

use std::ops::RangeInclusive;
use std::time::Duration;

use mock::SECRET_MARKER;
use serde_json::Value;

use super::ask::{HOST, full};
use super::stage::Came;
use crate::support::Answer;

/// How an answer must look.
#[derive(Debug, Clone)]
pub struct Expect {
    status: u16,
    author: Author,
    content_type: &'static str,
    headers: Vec<(&'static str, String)>,
    etag: Etag,
    body: Body,
    within: Option<Duration>,
    /// How many requests of the proxy's it may cost.
    upstream: RangeInclusive<u64>,
}

/// Who made the answer, which tells its common headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Author {
    Server,
    Proxy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Etag {
    /// 16 hexadecimal digits without quotes.
    Needed,
    Absent,
    Open,
}

#[derive(Debug, Clone)]
enum Body {
    Exactly(String),
    Holding(&'static str),
    That(fn(&str) -> bool),
}

fn expect(status: u16, author: Author, content_type: &'static str, body: Body) -> Expect {
    let etag = if status == 200 && author == Author::Server { Etag::Open } else { Etag::Absent };
    let upstream = match author {
        Author::Server => 1..=1,
        Author::Proxy => 0..=0,
    };
    Expect { status, author, content_type, headers: Vec::new(), etag, body, within: None, upstream }
}

/// The text of a leaf.
pub fn leaf(value: &str) -> Expect {
    let body = Body::Exactly(value.to_owned());
    Expect { etag: Etag::Needed, ..expect(200, Author::Server, "application/text", body) }
}

/// The text of a leaf that the proxy knows by itself, and answers as the server did.
pub fn known_leaf(value: &str) -> Expect {
    leaf(value).known()
}

/// A listing or another text without an etag of its own.
pub fn text(value: &str) -> Expect {
    expect(200, Author::Server, "application/text", Body::Exactly(value.to_owned()))
}

/// A text that a predicate takes.
pub fn text_that(is_right: fn(&str) -> bool) -> Expect {
    expect(200, Author::Server, "application/text", Body::That(is_right))
}

/// A value in JSON.
pub fn json(value: &str) -> Expect {
    expect(200, Author::Server, "application/json", Body::Exactly(value.to_owned()))
}

/// A document that a predicate takes.
pub fn json_that(is_right: fn(&str) -> bool) -> Expect {
    expect(200, Author::Server, "application/json", Body::That(is_right))
}

/// An identity token that a predicate takes.
pub fn identity_that(is_right: fn(&str) -> bool) -> Expect {
    expect(200, Author::Server, "text/html", Body::That(is_right))
}

/// An access token.
pub fn token() -> Expect {
    json_that(is_token)
}

/// An access token that the proxy keeps, or fetches for whoever asks first.
pub fn kept_token() -> Expect {
    let kept = expect(200, Author::Proxy, "application/json", Body::That(is_token));
    Expect { upstream: 0..=1, ..kept }
}

/// To the same path with a slash, under the same name.
pub fn redirect(path: &str) -> Expect {
    redirect_under(HOST, path)
}

/// As [`redirect`], under a name.
pub fn redirect_under(host: &str, path: &str) -> Expect {
    let path = full(path);
    let location = format!("http://{host}{path}");
    expect(301, Author::Server, "text/html", Body::Exactly(path + "\n")).header("location", &location)
}

/// The server's page about an error.
pub fn page(status: u16) -> Expect {
    expect(status, Author::Server, "text/html; charset=UTF-8", Body::Holding("<html"))
}

/// A listing that the proxy makes.
pub fn own_listing(listing: &str) -> Expect {
    text(listing).no_etag().by_proxy()
}

/// The proxy refuses, in one sentence.
pub fn refusal(status: u16) -> Expect {
    expect(status, Author::Proxy, "text/plain; charset=utf-8", Body::That(is_sentence))
}

/// The proxy lets only reading through.
pub fn method_refusal() -> Expect {
    refusal(405).header("allow", "GET, HEAD")
}

/// The proxy could not ask. Clients give up after 3 s.
pub fn unavailable() -> Expect {
    let sentence = Body::That(is_sentence);
    let unavailable = expect(503, Author::Proxy, "text/plain; charset=utf-8", sentence);
    Expect { upstream: 0..=2, ..unavailable }.header("retry-after", "1").within(Duration::from_secs(3))
}

impl Expect {
    /// The same, but made by the proxy without asking anybody.
    pub fn by_proxy(self) -> Self {
        Self { author: Author::Proxy, upstream: 0..=0, ..self }
    }

    /// The same, and the proxy knows it by itself: made by the server, which is not asked again.
    pub fn known(self) -> Self {
        Self { upstream: 0..=0, ..self }
    }

    /// With this header, too.
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// With an etag.
    pub fn etag(self) -> Self {
        Self { etag: Etag::Needed, ..self }
    }

    /// Without an etag.
    pub fn no_etag(self) -> Self {
        Self { etag: Etag::Absent, ..self }
    }

    /// With these words in its body, whatever else is there.
    pub fn holding(self, words: &'static str) -> Self {
        Self { body: Body::Holding(words), ..self }
    }

    /// The headers alone, with the length that the body would have had.
    pub fn headers_only(self) -> Self {
        let headers_only = match &self.body {
            Body::Exactly(body) => {
                let length = body.len().to_string();
                self.header("content-length", &length)
            }
            Body::Holding(_) | Body::That(_) => self,
        };
        Self { body: Body::Exactly(String::new()), ..headers_only }
    }

    /// Before this time is over.
    pub fn within(self, limit: Duration) -> Self {
        Self { within: Some(limit), ..self }
    }

    /// Every way in which an answer is not as expected.
    pub fn problems(&self, came: &Came) -> Vec<String> {
        let Some(answer) = came.answer() else {
            return vec![format!("no whole answer, or more than one: {:?}", String::from_utf8_lossy(&came.bytes))];
        };
        let mut problems = self.header_problems(&answer);
        if answer.status != self.status {
            problems.push(format!("status {}, not {}", answer.status, self.status));
        }
        if !self.body.takes(&answer.body) {
            problems.push(format!("body {:?}, not {:?}", shortened(&answer.body), self.body));
        }
        if let Some(limit) = self.within.filter(|limit| came.took >= *limit) {
            problems.push(format!("took {:?}, not less than {limit:?}", came.took));
        }
        if let Some(sent_on) = came.sent_on.filter(|sent_on| !self.upstream.contains(sent_on)) {
            problems.push(format!("{sent_on} upstream requests, not {:?}", self.upstream));
        }
        if came.sent_on.is_some() && String::from_utf8_lossy(&came.bytes).contains(SECRET_MARKER) {
            problems.push("a secret came through the proxy".to_owned());
        }
        problems
    }

    fn header_problems(&self, answer: &Answer) -> Vec<String> {
        let own = self.headers.iter().map(|(name, value)| (*name, Some(value.as_str())));
        let wanted = self.common().into_iter().chain(own);
        let mut problems: Vec<String> = wanted
            .map(|(name, value)| (name, value, answer.header(name)))
            .filter(|(_, wanted, found)| wanted != found)
            .map(|(name, wanted, found)| format!("{name} {found:?}, not {wanted:?}"))
            .collect();
        if answer.headers.iter().filter(|(name, _)| name == "metadata-flavor").count() > 1 {
            problems.push("more than one metadata-flavor".to_owned());
        }
        if answer.header("date").is_none() {
            problems.push("no date".to_owned());
        }
        let etag = answer.header("etag");
        let is_right = match self.etag {
            Etag::Needed => etag.is_some_and(is_etag),
            Etag::Absent => etag.is_none(),
            Etag::Open => etag.is_none_or(is_etag),
        };
        if !is_right {
            problems.push(format!("etag {etag:?}, which is {:?}", self.etag));
        }
        problems
    }

    /// What every answer of its author has, and has not.
    fn common(&self) -> Vec<(&'static str, Option<&'static str>)> {
        let always = [
            ("metadata-flavor", Some("Google")),
            ("content-type", Some(self.content_type)),
            ("transfer-encoding", None),
            ("content-encoding", None),
        ];
        let signed = match self.author {
            Author::Server => vec![
                ("server", Some("Metadata Server for VM")),
                ("x-xss-protection", Some("0")),
                ("x-frame-options", Some("SAMEORIGIN")),
            ],
            Author::Proxy => {
                let nosniff = self.content_type.starts_with("text/plain").then_some("nosniff");
                vec![("server", Some("gce-metadata-proxy")), ("x-content-type-options", nosniff)]
            }
        };
        [&always, &*signed].concat()
    }
}

impl Body {
    fn takes(&self, body: &str) -> bool {
        match self {
            Self::Exactly(wanted) => wanted == body,
            Self::Holding(words) => body.contains(words),
            Self::That(is_right) => is_right(body),
        }
    }
}

impl Came {
    /// The answer, if there is one and nothing behind it.
    pub fn answer(&self) -> Option<Answer> {
        Answer::parse(&self.bytes, self.is_head).filter(|(_, rest)| rest.is_empty()).map(|(answer, _)| answer)
    }
}

fn is_etag(etag: &str) -> bool {
    etag.len() == 16 && etag.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_sentence(body: &str) -> bool {
    body.ends_with(".\n") && body.lines().count() == 1
}

/// Three fields in the server's order, without blanks, and with life left.
fn is_token(body: &str) -> bool {
    let Ok(token) = serde_json::from_str::<Value>(body) else { return false };
    let (Some(access_token), Some(life)) = (token["access_token"].as_str(), token["expires_in"].as_u64()) else {
        return false;
    };
    let written = format!(r#"{{"access_token":"{access_token}","expires_in":{life},"token_type":"Bearer"}}"#);
    !access_token.is_empty() && (1..=3599).contains(&life) && body == written
}

fn shortened(body: &str) -> String {
    body.chars().take(300).collect()
}
