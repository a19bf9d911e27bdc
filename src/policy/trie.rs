//! [`Trie`]: many patterns, matched against a path in one walk.

use smallvec::SmallVec;

use super::pattern::{Glob, Pattern, Segment, to_text};

/// The place of a rule among all; a lower one wins.
pub(super) type Order = usize;

/// Patterns as a tree of segments.
#[derive(Debug)]
pub(super) struct Trie {
    reading: Reading,
    nodes: Vec<Node>,
}

/// How paths are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// Letter by letter.
    Strict,
    /// Without regard to case and hyphens.
    Lenient,
}

#[derive(Debug, Default)]
struct Node {
    literals: Vec<(Box<str>, usize)>,
    globs: Vec<(Glob, usize)>,
    /// The node behind a `**`.
    deep: Option<usize>,
    /// It is behind a `**`, so any further segment leads back to it.
    repeats: bool,
    /// Of the first rule that ends here.
    ends: Option<Order>,
    /// Of the first rule that ends here or further down.
    leads_to: Option<Order>,
}

impl Trie {
    pub(super) fn new(reading: Reading) -> Self {
        Self { reading, nodes: vec![Node::default()] }
    }

    pub(super) fn add(&mut self, pattern: &Pattern, order: Order) {
        let is_lenient = self.reading == Reading::Lenient;
        let mut at = 0;
        self.nodes[at].lead_to(order);
        for segment in pattern.segments() {
            at = match segment {
                Segment::Literal(name) if is_lenient => self.literal(at, to_text(&fold(name))),
                Segment::Literal(name) => self.literal(at, name.clone()),
                Segment::Glob(glob) if is_lenient => self.glob(at, glob.folded()),
                Segment::Glob(glob) => self.glob(at, glob.clone()),
                Segment::Deep => self.deep(at),
            };
            self.nodes[at].lead_to(order);
        }
        let ends = &mut self.nodes[at].ends;
        *ends = Some(ends.map_or(order, |known| known.min(order)));
    }

    /// The first rule that matches a path as a whole.
    pub(super) fn exact(&self, path: &str) -> Option<Order> {
        self.first(path, |node, at_end| node.ends.filter(|_| at_end))
    }

    /// The first rule that matches a path or a directory above it.
    pub(super) fn covers(&self, path: &str) -> Option<Order> {
        self.first(path, |node, _| node.ends)
    }

    /// The first rule that matches a path or could match something below it.
    pub(super) fn leads_to(&self, path: &str) -> Option<Order> {
        self.first(path, |node, at_end| node.leads_to.filter(|_| at_end))
    }

    fn first(&self, path: &str, found: impl Fn(&Node, bool) -> Option<Order> + Copy) -> Option<Order> {
        let mut first = None;
        match self.reading {
            Reading::Strict => self.walk(0, path.as_bytes(), found, &mut first),
            Reading::Lenient => self.walk(0, &fold(path), found, &mut first),
        }
        first
    }

    /// Keeps the first of what is found at the nodes on the way of a path; `found` is told where the path ends.
    fn walk(
        &self,
        at: usize,
        rest: &[u8],
        found: impl Fn(&Node, bool) -> Option<Order> + Copy,
        first: &mut Option<Order>,
    ) {
        let node = &self.nodes[at];
        if let Some(deep) = node.deep {
            self.walk(deep, rest, found, first);
        }
        let Some((name, rest)) = split(rest) else {
            return keep_first(first, found(node, true));
        };
        keep_first(first, found(node, false));
        if let Some((_, next)) = node.literals.iter().find(|(literal, _)| literal.as_bytes() == name) {
            self.walk(*next, rest, found, first);
        }
        for (_, next) in node.globs.iter().filter(|(glob, _)| glob.matches(name)) {
            self.walk(*next, rest, found, first);
        }
        if node.repeats {
            self.walk(at, rest, found, first);
        }
    }

    fn literal(&mut self, at: usize, name: Box<str>) -> usize {
        if let Some((_, known)) = self.nodes[at].literals.iter().find(|(literal, _)| *literal == name) {
            return *known;
        }
        let new = self.grow();
        self.nodes[at].literals.push((name, new));
        new
    }

    fn glob(&mut self, at: usize, glob: Glob) -> usize {
        if let Some((_, known)) = self.nodes[at].globs.iter().find(|(known, _)| *known == glob) {
            return *known;
        }
        let new = self.grow();
        self.nodes[at].globs.push((glob, new));
        new
    }

    fn deep(&mut self, at: usize) -> usize {
        if let Some(known) = self.nodes[at].deep {
            return known;
        }
        let new = self.grow();
        self.nodes[new].repeats = true;
        self.nodes[at].deep = Some(new);
        new
    }

    fn grow(&mut self) -> usize {
        self.nodes.push(Node::default());
        self.nodes.len() - 1
    }
}

impl Node {
    fn lead_to(&mut self, order: Order) {
        keep_first(&mut self.leads_to, Some(order));
    }
}

fn keep_first(first: &mut Option<Order>, found: Option<Order>) {
    if let Some(found) = found {
        *first = Some(first.map_or(found, |first| first.min(found)));
    }
}

/// The first segment of a path, and the rest.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    match memchr::memchr(b'/', path) {
        Some(0) => split(&path[1..]),
        Some(end) => Some((&path[..end], &path[end + 1..])),
        None if path.is_empty() => None,
        None => Some((path, &[])),
    }
}

/// The most lenient reading: without case and hyphens, but for one of a name that is nothing else, since a name that
/// vanished would be no longer matched by `*`. On the stack, but for paths longer than any real one.
pub(super) fn fold(path: &str) -> SmallVec<[u8; 128]> {
    let path = path.as_bytes();
    let mut folded: SmallVec<[u8; 128]> = SmallVec::new();
    let mut kept = 0;
    for hyphen in memchr::memchr_iter(b'-', path) {
        folded.extend_from_slice(&path[kept..hyphen]);
        kept = hyphen + 1;
        let ends_a_name = path.get(kept).is_none_or(|next| *next == b'/');
        if ends_a_name && folded.last().is_none_or(|last| *last == b'/') {
            folded.push(b'-');
        }
    }
    folded.extend_from_slice(&path[kept..]);
    folded.make_ascii_lowercase();
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trie(patterns: &[&str]) -> Trie {
        let mut trie = Trie::new(Reading::Strict);
        for (order, pattern) in patterns.iter().enumerate() {
            trie.add(&pattern.parse().expect("a pattern"), order);
        }
        trie
    }

    #[test]
    fn the_first_rule_wins_however_it_is_spelt() {
        let trie = trie(&["instance/*/b", "instance/a/*", "instance/a/b", "**/b"]);
        assert_eq!(trie.exact("instance/a/b"), Some(0));
        assert_eq!(trie.exact("instance/a/c"), Some(1));
        assert_eq!(trie.exact("project/x/y/b"), Some(3));
        assert_eq!(trie.exact("instance/a"), None);
    }

    #[test]
    fn a_directory_covers_all_below_it() {
        let trie = trie(&["instance/credentials"]);
        assert_eq!(trie.covers("instance/credentials/x/y"), Some(0));
        assert_eq!(trie.covers("instance/credentials"), Some(0));
        assert_eq!(trie.covers("instance"), None);
        assert_eq!(trie.exact("instance/credentials/x"), None);
    }

    #[test]
    fn deep_stands_for_none_and_for_many() {
        let trie = trie(&["instance/service-accounts/**", "instance/**/mtu"]);
        assert_eq!(trie.exact("instance/service-accounts"), Some(0));
        assert_eq!(trie.exact("instance/service-accounts/a/b/c"), Some(0));
        assert_eq!(trie.exact("instance/mtu"), Some(1));
        assert_eq!(trie.exact("instance/a/0/mtu"), Some(1));
        assert_eq!(trie.exact("instance/a/0"), None);
    }

    #[test]
    fn a_lenient_reading_sees_neither_case_nor_hyphens() {
        let mut trie = Trie::new(Reading::Lenient);
        trie.add(&"instance/attributes/ssh-keys".parse().expect("a pattern"), 0);
        trie.add(&"instance/attributes/windows-*".parse().expect("a pattern"), 1);
        for (name, order) in [("ssh-keys", 0), ("sshKeys", 0), ("SSH-KEYS", 0), ("windowsKeys", 1), ("Windows-X", 1)] {
            assert_eq!(trie.covers(&format!("Instance/attributes/{name}")), Some(order), "{name}");
        }
    }

    /// `-` is a name that a key of metadata may have.
    #[test]
    fn a_name_of_hyphens_is_a_name() {
        let mut trie = Trie::new(Reading::Lenient);
        trie.add(&"instance/attributes/*".parse().expect("a pattern"), 0);
        trie.add(&"instance/service-accounts/*/identity".parse().expect("a pattern"), 1);
        trie.add(&"project/-/x".parse().expect("a pattern"), 2);
        for path in ["instance/attributes/-", "instance/attributes/--/x"] {
            assert_eq!(trie.covers(path), Some(0), "{path}");
        }
        assert_eq!(trie.covers("instance/service-accounts/-/identity"), Some(1));
        assert_eq!(trie.covers("project/--/x"), Some(2));
        assert_eq!(trie.covers("project/x"), None);
    }

    #[test]
    fn a_directory_leads_to_what_lies_below() {
        let trie = trie(&["instance/attributes/cluster-name", "project/**/x"]);
        for path in ["", "instance", "instance/attributes", "instance/attributes/cluster-name"] {
            assert_eq!(trie.leads_to(path), Some(0), "{path}");
        }
        assert_eq!(trie.leads_to("project/a/b"), Some(1));
        assert_eq!(trie.leads_to("instance/disks"), None);
    }
}
