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
    let mut json = Json(Vec::with_capacity(tree.len()));
    let (place, is_renumbered) = redact(view, directory, tree, &mut json, tree.len())?;
    Ok(Redacted { bytes: json.0, place, is_renumbered })
}

/// Removes concealed values from a JSON tree, and writes the rest as `path value` lines of at most `max_bytes` in
/// total.
pub fn text(view: View<'_>, directory: &str, tree: &[u8], max_bytes: usize) -> Result<Redacted, RedactError> {
    let mut text = Text { lines: Vec::with_capacity(tree.len().min(max_bytes)), directory_len: directory.len() };
    let (place, is_renumbered) = redact(view, directory, tree, &mut text, max_bytes)?;
    Ok(Redacted { bytes: text.lines, place, is_renumbered })
}

/// Writes the visible part. Returns the place for accounts, and whether the tree is renumbered.
fn redact(
    view: View<'_>,
    directory: &str,
    tree: &[u8],
    out: &mut impl TreeWriter,
    max_bytes: usize,
) -> Result<(Option<Place>, bool), RedactError> {
    let tree: &RawValue = serde_json::from_slice(tree).map_err(|_| RedactError::Unreadable)?;
    if !tree.get().starts_with('{') && !tree.get().starts_with('[') {
        return Err(RedactError::Unreadable);
    }
    let mut redactor = Redactor { view, out, max_bytes, place: None, is_renumbered: false };
    let written = redactor.node(directory, tree.get(), MAX_DEPTH);
    if redactor.out.len() > max_bytes {
        return Err(RedactError::TooLarge);
    }
    written.map(|()| (redactor.place, redactor.is_renumbered))
}

/// Writes a redacted tree in one format.
trait TreeWriter {
    /// Bytes written so far.
    fn len(&self) -> usize;
    fn open(&mut self, bracket: u8);
    fn close(&mut self, bracket: u8);
    /// Begins the next entry, with its key in an object or without one in an array.
    fn entry(&mut self, first: bool, key: Option<&str>);
    /// Writes a value that is neither an object nor an array, given its path and its JSON.
    fn value(&mut self, path: &str, json: &str);
}

struct Redactor<'a, W> {
    view: View<'a>,
    out: &'a mut W,
    /// Writing stops after the value that exceeds this limit.
    max_bytes: usize,
    place: Option<Place>,
    is_renumbered: bool,
}

impl<W: TreeWriter> Redactor<'_, W> {
    /// Writes a visible node. `depth` is the number of further levels allowed.
    fn node(&mut self, path: &str, json: &str, depth: usize) -> Result<(), RedactError> {
        let depth = depth.checked_sub(1).ok_or(RedactError::Unreadable)?;
        if self.out.len() > self.max_bytes {
            return Err(RedactError::TooLarge);
        }
        if json.starts_with(['{', '[']) {
            let children = Children { redactor: self, path, depth };
            let mut deserializer = serde_json::Deserializer::from_str(json);
            return deserializer.deserialize_any(children).map_err(|_| RedactError::Unreadable);
        }
        self.out.value(path, json);
        Ok(())
    }

    fn is_visible(&self, path: &str, node: &RawValue) -> bool {
        if is_value(node) { self.view.shows(path) } else { self.view.leads_through(path) }
    }
}

/// Visits the children of an object or an array. Each child is written or left out as soon as it is read, because a
/// list of them could take many times the memory of the tree.
struct Children<'c, 'a, W> {
    redactor: &'c mut Redactor<'a, W>,
    path: &'c str,
    depth: usize,
}

impl<'de, W: TreeWriter> Visitor<'de> for Children<'_, '_, W> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Self { redactor, path, depth } = self;
        redactor.out.open(b'{');
        let mut first = true;
        while let Some((key, node)) = entries.next_entry::<String, &RawValue>()? {
            if !is_name(&key) {
                continue;
            }
            let name = segment(path, &key);
            let child = below(path, &name);
            let is_hidden = !redactor.view.has_accounts && names_accounts(&name);
            if !is_hidden && redactor.is_visible(&child, node) {
                redactor.out.entry(first, Some(&key));
                first = false;
                redactor.node(&child, node.get(), depth).map_err(A::Error::custom)?;
            }
        }
        if path == ABOVE_ACCOUNTS {
            redactor.place = Some(Place { at: redactor.out.len(), is_first: first });
        }
        redactor.out.close(b'}');
        Ok(())
    }

    /// The items of an array are numbered directories (disks), numbered values (aliases of an address), or the lines of
    /// one value (tags), which are visible if that value is.
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self { redactor, path, depth } = self;
        redactor.out.open(b'[');
        let mut first = true;
        let mut number = 0_usize;
        while let Some(item) = items.next_element::<&RawValue>()? {
            let child = below(path, &number.to_string());
            number += 1;
            let is_line = is_value(item) && has_lines(path);
            if if is_line { redactor.view.shows(path) } else { redactor.is_visible(&child, item) } {
                redactor.out.entry(first, None);
                first = false;
                redactor.node(&child, item.get(), depth).map_err(A::Error::custom)?;
            } else {
                redactor.is_renumbered = true;
            }
        }
        redactor.out.close(b']');
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

struct Json(Vec<u8>);

impl TreeWriter for Json {
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
            // `is_name` allows no character that needs an escape.
            self.0.push(b'"');
            self.0.extend_from_slice(key.as_bytes());
            self.0.extend_from_slice(b"\":");
        }
    }

    fn value(&mut self, _: &str, json: &str) {
        self.0.extend_from_slice(json.as_bytes());
    }
}

/// The format of `alt=text`: one line per value, with its path relative to the requested directory.
struct Text {
    lines: Vec<u8>,
    /// Length of the requested directory's path, in bytes.
    directory_len: usize,
}

impl TreeWriter for Text {
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
        self.lines.extend_from_slice(path[self.directory_len.min(path.len())..].trim_start_matches('/').as_bytes());
        self.lines.push(b' ');
        self.lines.extend_from_slice(text.as_deref().unwrap_or(json).as_bytes());
        self.lines.push(b'\n');
    }
}

#[cfg(test)]
mod tests;
