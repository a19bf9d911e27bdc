//! Removes concealed values from listings and recursive responses. Pure.
//!
//! A recursive answer is read as JSON even where text was asked for: in the text form a value of several lines cannot be
//! told from the next path. Its keys are turned back into path segments (the server writes its own names in camel case and
//! leaves users' names as they are) and judged like the path of a request, so a value is in the answer if and only if it
//! would be served on its own. What cannot be read is refused, never passed on.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::metadata::Query;
use crate::metadata::query::Param;
use crate::policy::Policy;

/// Maximum nesting of a tree. The server's tree has seven levels.
const MAX_DEPTH: usize = 32;

/// Why an answer cannot be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Uncut {
    /// It is no listing and no tree, or nested too deep.
    #[error("the response is not a JSON tree")]
    Unreadable,
    /// What is left of it is larger than there is room for.
    #[error("the response is too large as text")]
    TooLarge,
}

/// What the upstream is asked for an answer that can be cut: never for a tree as text.
pub fn asked(query: Query) -> Query {
    if query.is_recursive() && query.value(Param::Alt) == Some("text") { query.with(Param::Alt, "json") } else { query }
}

/// A listing, one entry a line, without the entries that are concealed.
pub fn listing(policy: &Policy, directory: &str, listing: &str) -> String {
    let visible = |entry: &&str| match entry.strip_suffix('/') {
        Some(name) => is_name(name) && policy.leads_through(&below(directory, name)),
        None => is_name(entry) && policy.shows(&below(directory, entry)),
    };
    listing.lines().filter(visible).flat_map(|entry| [entry, "\n"]).collect()
}

/// A tree in JSON, without what is concealed. It does not grow.
pub fn json(policy: &Policy, directory: &str, tree: &[u8]) -> Result<Vec<u8>, Uncut> {
    let mut json = Json(Vec::with_capacity(tree.len()));
    cut(policy, directory, tree, &mut json, tree.len())?;
    Ok(json.0)
}

/// A tree in JSON as `path value` lines, without what is concealed, in at most so many bytes.
pub fn text(policy: &Policy, directory: &str, tree: &[u8], at_most: usize) -> Result<Vec<u8>, Uncut> {
    let mut text = Text { lines: Vec::with_capacity(tree.len().min(at_most)), above: directory.len() };
    cut(policy, directory, tree, &mut text, at_most)?;
    Ok(text.lines)
}

fn cut(policy: &Policy, directory: &str, tree: &[u8], out: &mut impl Form, at_most: usize) -> Result<(), Uncut> {
    let tree: &RawValue = serde_json::from_slice(tree).map_err(|_| Uncut::Unreadable)?;
    if !tree.get().starts_with('{') && !tree.get().starts_with('[') {
        return Err(Uncut::Unreadable);
    }
    let mut cut = Cut { policy, out, at_most };
    let read = cut.node(directory, tree.get(), MAX_DEPTH);
    if cut.out.len() > at_most { Err(Uncut::TooLarge) } else { read }
}

/// How what is left is written.
trait Form {
    /// Bytes so far.
    fn len(&self) -> usize;
    fn open(&mut self, bracket: u8);
    fn close(&mut self, bracket: u8);
    /// The next entry begins: a key, or nothing in an array.
    fn entry(&mut self, first: bool, key: Option<&str>);
    /// A value that is neither object nor array, as JSON, and its path.
    fn value(&mut self, path: &str, json: &str);
}

struct Cut<'a, F> {
    policy: &'a Policy,
    out: &'a mut F,
    /// Most bytes that may be written. Nothing more is written after the value that goes beyond them.
    at_most: usize,
}

impl<F: Form> Cut<'_, F> {
    /// Writes a node that was found to be visible.
    fn node(&mut self, path: &str, json: &str, deeper: usize) -> Result<(), Uncut> {
        let deeper = deeper.checked_sub(1).ok_or(Uncut::Unreadable)?;
        if self.out.len() > self.at_most {
            return Err(Uncut::TooLarge);
        }
        if json.starts_with(['{', '[']) {
            let inside = Inside { cut: self, path, deeper };
            return serde_json::Deserializer::from_str(json).deserialize_any(inside).map_err(|_| Uncut::Unreadable);
        }
        self.out.value(path, json);
        Ok(())
    }

    fn is_visible(&self, path: &str, node: &RawValue) -> bool {
        if is_value(node) { self.policy.shows(path) } else { self.policy.leads_through(path) }
    }
}

/// What is in an object or an array: each child is written or left out as it is read, since a list of them could take
/// many times the memory of the tree.
struct Inside<'c, 'a, F> {
    cut: &'c mut Cut<'a, F>,
    path: &'c str,
    deeper: usize,
}

impl<'de, F: Form> Visitor<'de> for Inside<'_, '_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Self { cut, path, deeper } = self;
        cut.out.open(b'{');
        let mut first = true;
        while let Some((key, node)) = entries.next_entry::<String, &RawValue>()? {
            if !is_name(&key) {
                continue;
            }
            let child = below(path, &segment(path, &key));
            if cut.is_visible(&child, node) {
                cut.out.entry(first, Some(&key));
                first = false;
                cut.node(&child, node.get(), deeper).map_err(A::Error::custom)?;
            }
        }
        cut.out.close(b'}');
        Ok(())
    }

    /// The items of an array are numbered directories (disks), numbered values (aliases of an address), or lines of one
    /// value (tags), which are visible as that value is.
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self { cut, path, deeper } = self;
        cut.out.open(b'[');
        let mut first = true;
        let mut number = 0_usize;
        while let Some(item) = items.next_element::<&RawValue>()? {
            let child = below(path, &number.to_string());
            number += 1;
            let is_line = is_value(item) && has_lines(path);
            if if is_line { cut.policy.shows(path) } else { cut.is_visible(&child, item) } {
                cut.out.entry(first, None);
                first = false;
                cut.node(&child, item.get(), deeper).map_err(A::Error::custom)?;
            }
        }
        cut.out.close(b']');
        Ok(())
    }
}

fn is_value(node: &RawValue) -> bool {
    !node.get().starts_with(['{', '['])
}

/// Arrays that the server writes as the lines of one value, not as numbered values.
const MULTILINE_VALUES: [&str; 4] = ["aliases", "dns-servers", "scopes", "tags"];

fn has_lines(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| MULTILINE_VALUES.contains(&name))
}

/// Names of attributes and accounts are users' own and stay as they are; the server's are in camel case.
fn segment<'a>(directory: &str, key: &'a str) -> Cow<'a, str> {
    let above = directory.rsplit('/').next().unwrap_or_default();
    if ["attributes", "guest-attributes", "partner-attributes", "service-accounts"].contains(&above)
        || directory.contains("guest-attributes/")
    {
        return key.into();
    }
    kebab(key).into()
}

fn kebab(key: &str) -> String {
    key.chars().fold(String::with_capacity(key.len() + 4), |mut name, letter| {
        if letter.is_ascii_uppercase() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
        name
    })
}

fn below(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

/// Whether it could be a segment of a path that somebody asks for. Whatever else is in an answer was not judged by its
/// true name, so it is left out.
fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~@+!$'()*,:".contains(&byte))
}

struct Json(Vec<u8>);

impl Form for Json {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn open(&mut self, bracket: u8) {
        self.0.push(bracket);
    }

    fn close(&mut self, bracket: u8) {
        self.0.push(bracket);
    }

    fn entry(&mut self, first: bool, key: Option<&str>) {
        if !first {
            self.0.push(b',');
        }
        if let Some(key) = key {
            // A name has nothing that needs an escape.
            self.0.push(b'"');
            self.0.extend_from_slice(key.as_bytes());
            self.0.extend_from_slice(b"\":");
        }
    }

    fn value(&mut self, _: &str, json: &str) {
        self.0.extend_from_slice(json.as_bytes());
    }
}

/// The form of `alt=text`: a line for each value, with its path below the directory that was asked for.
struct Text {
    lines: Vec<u8>,
    above: usize,
}

impl Form for Text {
    fn len(&self) -> usize {
        self.lines.len()
    }

    fn open(&mut self, _: u8) {}

    fn close(&mut self, _: u8) {}

    fn entry(&mut self, _: bool, _: Option<&str>) {}

    fn value(&mut self, path: &str, json: &str) {
        let mut path = path;
        if let Some((above, number)) = path.rsplit_once('/')
            && number.bytes().all(|byte| byte.is_ascii_digit())
            && has_lines(above)
        {
            path = above;
        }
        let text: Option<String> = serde_json::from_str(json).ok();
        self.lines.extend_from_slice(path[self.above.min(path.len())..].trim_start_matches('/').as_bytes());
        self.lines.push(b' ');
        self.lines.extend_from_slice(text.as_deref().unwrap_or(json).as_bytes());
        self.lines.push(b'\n');
    }
}

#[cfg(test)]
mod tests;
