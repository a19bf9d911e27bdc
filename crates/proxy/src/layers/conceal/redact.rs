//! Removes concealed values from listings and recursive responses. Pure functions.
//!
//! A recursive response is requested as JSON even if the client requests text, because in text a value with several
//! lines cannot be distinguished from the next path. Its keys are converted back to path segments (the server writes
//! its own names in camel case and leaves users' names unchanged) and judged like the path of a request, so a value is
//! in the response if and only if it would be served on its own. A response that cannot be parsed is refused, never
//! passed on.
//!
//! The tree of a pod never contains the node's service accounts. It has a place for the pod's own.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::policy::Policy;
use protocol::metadata::query::Param;
use protocol::metadata::{Query, names_accounts};

/// Maximum nesting of a tree. The server's tree has seven levels.
const MAX_DEPTH: usize = 32;

/// Reason why a response cannot be redacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RedactError {
    /// It is neither a listing nor a JSON tree, or is nested too deeply.
    #[error("the response is not a JSON tree")]
    Unreadable,
    /// The redacted response exceeds its size limit.
    #[error("the response is too large as text")]
    TooLarge,
}

/// The visible part of a tree.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Conceals values. Without a policy none are concealed.
    pub policy: Option<&'a Policy>,
    /// Whether service accounts are shown. Those in the tree are the node's.
    pub has_accounts: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Redacted {
    /// The tree in the requested format.
    pub bytes: Vec<u8>,
    /// The place for a pod's accounts, if the tree contains the directory above them.
    pub place: Option<Place>,
    /// Whether an item of an array was left out, which changes the numbers of the next ones.
    pub is_renumbered: bool,
}

/// A place for another entry, at the end of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index in the bytes.
    pub at: usize,
    /// Whether it would be the first entry of the directory.
    pub is_first: bool,
}

/// The directory that contains `service-accounts`.
const ABOVE_ACCOUNTS: &str = "instance";

impl View<'_> {
    fn shows(self, path: &str) -> bool {
        self.policy.is_none_or(|policy| policy.shows(path))
    }

    fn leads_through(self, path: &str) -> bool {
        self.policy.is_none_or(|policy| policy.leads_through(path))
    }
}

/// The query of the upstream request for a response that can be redacted. A tree is requested without `alt`, which
/// means JSON. The server refuses other formats. So the requests for all formats of a tree are the same.
pub fn upstream_query(query: Query) -> Query {
    if query.is_recursive() && query.is_format_of_tree() { query.without(Param::Alt) } else { query }
}

/// Removes concealed entries from a listing, which has one entry per line.
pub fn listing(view: View<'_>, directory: &str, listing: &str) -> String {
    let visible = |entry: &&str| match entry.strip_suffix('/') {
        Some(name) => is_name(name) && view.leads_through(&below(directory, name)),
        None => is_name(entry) && view.shows(&below(directory, entry)),
    };
    listing.lines().filter(visible).flat_map(|entry| [entry, "\n"]).collect()
}

/// Removes concealed values from a JSON tree. The result is never longer than the tree.
pub fn json(view: View<'_>, directory: &str, tree: &[u8]) -> Result<Redacted, RedactError> {
    redact(view, directory, tree, None, tree.len())
}

/// Removes concealed values from a JSON tree, and writes the rest as the format of `alt=text`: one line per value, with its
/// path relative to the requested directory, of at most `max_bytes` in total.
pub fn text(view: View<'_>, directory: &str, tree: &[u8], max_bytes: usize) -> Result<Redacted, RedactError> {
    redact(view, directory, tree, Some(directory.len()), max_bytes)
}

/// Writes the visible part.
fn redact(
    view: View<'_>,
    directory: &str,
    tree: &[u8],
    text_below: Option<usize>,
    max_bytes: usize,
) -> Result<Redacted, RedactError> {
    let bytes = Vec::with_capacity(tree.len().min(max_bytes));
    let tree: &RawValue = serde_json::from_slice(tree).map_err(|_| RedactError::Unreadable)?;
    if is_value(tree) {
        return Err(RedactError::Unreadable);
    }
    let redacted = Redacted { bytes, place: None, is_renumbered: false };
    let mut redactor = Redactor { view, text_below, max_bytes, redacted };
    let written = redactor.node(directory, tree, MAX_DEPTH);
    if redactor.redacted.bytes.len() > max_bytes {
        return Err(RedactError::TooLarge);
    }
    written.map(|()| redactor.redacted)
}

struct Redactor<'a> {
    view: View<'a>,
    /// Length of the requested directory's path, in bytes, if the tree is written as text.
    text_below: Option<usize>,
    /// Writing stops after the value that exceeds this limit.
    max_bytes: usize,
    redacted: Redacted,
}

impl Redactor<'_> {
    /// Writes a visible node. `depth` is the number of further levels allowed.
    fn node(&mut self, path: &str, node: &RawValue, depth: usize) -> Result<(), RedactError> {
        let depth = depth.checked_sub(1).ok_or(RedactError::Unreadable)?;
        if self.redacted.bytes.len() > self.max_bytes {
            return Err(RedactError::TooLarge);
        }
        if !is_value(node) {
            let children = Children { redactor: self, path, depth };
            let mut deserializer = serde_json::Deserializer::from_str(node.get());
            return deserializer.deserialize_any(children).map_err(|_| RedactError::Unreadable);
        }
        match self.text_below {
            Some(directory_len) => self.line(path, node.get(), directory_len),
            None => self.json(node.get()),
        }
        Ok(())
    }

    fn is_visible(&self, path: &str, node: &RawValue) -> bool {
        if is_value(node) { self.view.shows(path) } else { self.view.leads_through(path) }
    }

    /// Writes a part of the JSON. Text has lines only.
    fn json(&mut self, part: &str) {
        if self.text_below.is_none() {
            self.redacted.bytes.extend_from_slice(part.as_bytes());
        }
    }

    /// Writes the line of a value.
    fn line(&mut self, mut path: &str, json: &str, directory_len: usize) {
        if let Some((above, number)) = path.rsplit_once('/')
            && number.bytes().all(|byte| byte.is_ascii_digit())
            && has_lines(above)
        {
            path = above;
        }
        let text: Option<String> = serde_json::from_str(json).ok();
        let below = path[directory_len.min(path.len())..].trim_start_matches('/');
        for part in [below, " ", text.as_deref().unwrap_or(json), "\n"] {
            self.redacted.bytes.extend_from_slice(part.as_bytes());
        }
    }
}

/// Visits the children of an object or an array. Each child is written or left out as soon as it is read, because a
/// list of them could take many times the memory of the tree.
struct Children<'c, 'a> {
    redactor: &'c mut Redactor<'a>,
    path: &'c str,
    depth: usize,
}

impl<'de> Visitor<'de> for Children<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Self { redactor, path, depth } = self;
        redactor.json("{");
        let mut first = true;
        while let Some((key, node)) = entries.next_entry::<String, &RawValue>()? {
            if !is_name(&key) {
                continue;
            }
            let name = segment(path, &key);
            let child = below(path, &name);
            let is_hidden = !redactor.view.has_accounts && names_accounts(&name);
            if !is_hidden && redactor.is_visible(&child, node) {
                // `is_name` allows no character that needs an escape.
                for part in [if first { "\"" } else { ",\"" }, &key, "\":"] {
                    redactor.json(part);
                }
                first = false;
                redactor.node(&child, node, depth).map_err(A::Error::custom)?;
            }
        }
        if path == ABOVE_ACCOUNTS {
            redactor.redacted.place = Some(Place { at: redactor.redacted.bytes.len(), is_first: first });
        }
        redactor.json("}");
        Ok(())
    }

    /// The items of an array are numbered directories (disks), numbered values (aliases of an address), or the lines of
    /// one value (tags), which are visible if that value is.
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self { redactor, path, depth } = self;
        redactor.json("[");
        let mut first = true;
        let mut number = 0_usize;
        while let Some(item) = items.next_element::<&RawValue>()? {
            let child = below(path, &number.to_string());
            number += 1;
            let is_line = is_value(item) && has_lines(path);
            if if is_line { redactor.view.shows(path) } else { redactor.is_visible(&child, item) } {
                redactor.json(if first { "" } else { "," });
                first = false;
                redactor.node(&child, item, depth).map_err(A::Error::custom)?;
            } else {
                redactor.redacted.is_renumbered = true;
            }
        }
        redactor.json("]");
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

/// The path segment of a key. Names of attributes and accounts are chosen by users and unchanged; the server's own
/// names are in camel case.
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

/// Whether a name can be a segment of a canonical request path. Any other name is left out of the response, because the
/// policy cannot judge it.
fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~@+!$'()*,:".contains(&byte))
}

#[cfg(test)]
mod tests;
