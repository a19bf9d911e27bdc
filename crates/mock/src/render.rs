//! A [`Tree`]'s nodes as text, as JSON, and as an [`Etag`].

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value};

use super::kind::Kind;
use super::tree::{Leaf, Tree};

/// Directories whose entries are numbered, and which are arrays in JSON.
const INDEXED: [&str; 6] =
    ["access-configs/", "disks/", "forwarded-ips/", "ip-aliases/", "network-interfaces/", "target-instance-ips/"];

/// Licences are numbered too, but only directly below the instance.
const LICENSES: &str = "instance/licenses/";

/// A hash of content: equal for equal content in any format, and different for the listing and the content of a
/// directory: no listing reads like JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Etag(u64);

/// Sixteen lower-case hexadecimal digits. The server sends them without quotes.
impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Etag {
    /// The etag of a leaf's value, of a listing, or of everything below a directory in its JSON format.
    pub(super) fn new(content: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        Self(hasher.finish())
    }
}

impl Leaf {
    /// The value in the format `alt=text`.
    pub(super) fn text(&self) -> String {
        match self.kind {
            Kind::Lines | Kind::JsonLines => self.value.lines().flat_map(|item| [item, "\n"]).collect(),
            _ => self.value.clone(),
        }
    }

    /// The value in the format `alt=json`.
    pub(super) fn json(&self) -> Value {
        let text = || Value::from(self.value.as_str());
        match self.kind {
            Kind::Number => self.value.parse::<u64>().map_or_else(|_| text(), Value::from),
            Kind::Lines | Kind::JsonLines => self.value.lines().collect(),
            Kind::Json => serde_json::from_str(&self.value).unwrap_or_else(|_| text()),
            Kind::Text | Kind::Token | Kind::Identity | Kind::Directory => text(),
        }
    }

    /// Whether it is JSON by default.
    pub(super) fn is_json(&self) -> bool {
        matches!(self.kind, Kind::Json | Kind::JsonLines)
    }

    /// Whether recursive responses include it.
    fn is_recursed(&self) -> bool {
        !matches!(self.kind, Kind::Token | Kind::Identity | Kind::Directory)
    }
}

impl Tree {
    /// The names in a directory, sorted, one per line, directories with a trailing `/`.
    pub(super) fn listing(&self, directory: &str) -> String {
        let entry = |(name, is_directory): (&str, bool)| format!("{name}{}\n", if is_directory { "/" } else { "" });
        self.children(directory).into_iter().map(entry).collect()
    }

    /// Everything below a directory as lines of `path value`. A leaf of several items has one line per item.
    pub(super) fn lines(&self, directory: &str) -> String {
        let mut lines = String::new();
        for (path, leaf) in self.below(directory).filter(|(_, leaf)| leaf.is_recursed()) {
            let items = matches!(leaf.kind, Kind::Lines | Kind::JsonLines);
            let values = if items { leaf.value.lines().collect() } else { vec![leaf.value.as_str()] };
            for value in values {
                lines.extend([path, " ", value, "\n"]);
            }
        }
        lines
    }

    /// Everything below a directory as JSON. Numbered directories are arrays, the server's own names are in
    /// camel case, and users' names (attributes, accounts) are unchanged.
    pub(super) fn json(&self, directory: &str) -> Value {
        let children = self.children(directory);
        let values = children
            .iter()
            .filter_map(|(name, is_directory)| Some((*name, self.child(directory, name, *is_directory)?)));
        if is_indexed(directory) {
            values.map(|(_, value)| value).collect()
        } else {
            let key = |name: &str| if keeps_names(directory) { name.to_owned() } else { camel_case(name) };
            Value::Object(values.map(|(name, value)| (key(name), value)).collect::<Map<_, _>>())
        }
    }

    fn child(&self, directory: &str, name: &str, is_directory: bool) -> Option<Value> {
        let path = format!("{directory}{name}");
        if is_directory {
            Some(self.json(&format!("{path}/")))
        } else {
            self.leaf(&path).filter(|leaf| leaf.is_recursed()).map(Leaf::json)
        }
    }

    /// Each name in a directory, and whether it is a directory.
    fn children<'a>(&'a self, directory: &'a str) -> BTreeMap<&'a str, bool> {
        let names =
            self.below(directory).map(|(path, _)| path.split_once('/').map_or((path, false), |(name, _)| (name, true)));
        names.filter(|(name, _)| !name.is_empty()).collect()
    }
}

fn is_indexed(directory: &str) -> bool {
    directory == LICENSES || INDEXED.iter().any(|name| directory.ends_with(&format!("/{name}")))
}

fn keeps_names(directory: &str) -> bool {
    directory.ends_with("attributes/")
        || directory.ends_with("/service-accounts/")
        || directory.contains("/guest-attributes/")
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('-');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    camel
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_numbers_arrays_camel_case_and_no_tokens() {
        let tree = Tree::new();
        let instance = tree.json("instance/");
        assert_eq!(instance["id"], 4_520_031_799_277_581_759_u64);
        assert_eq!(instance["disks"][0]["deviceName"], "persistent-disk-0");
        assert_eq!(instance["networkInterfaces"][0]["ipAliases"][0], "10.4.1.0/24");
        assert_eq!(instance["networkInterfaces"][0]["forwardedIps"], Value::Array(Vec::new()));
        assert_eq!(instance["licenses"][1]["id"], "1001010");
        assert_eq!(instance["scheduling"]["automaticRestart"], "TRUE");
        assert_eq!(instance["guestAttributes"], Value::Object(Map::new()));
        assert_eq!(instance["attributes"]["cluster-name"], "mock-cluster");
        assert_eq!(instance["serviceAccounts"]["default"].as_object().map(Map::len), Some(3));
    }
}
