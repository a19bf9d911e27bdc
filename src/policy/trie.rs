//! [`Trie`]: matches a path against all patterns of a policy in one walk.
//!
//! A walk takes a path segment by segment and keeps every node that it has come to. Where patterns overlap there are
//! several (a path that begins with `instance` may go on by `*/attributes` and by `instance/id`), but none is there twice, so
//! the work of a step has a bound that the policy sets and no path can raise. To merge such nodes when a policy is loaded
//! would spare the built-in ones a comparison or two, and could take another's author all memory.
//!
//! Names are compared as they stand in the path and folded letter by letter on the way: most differ at the first letter, and
//! to copy them or to call the C library's comparison takes longer than that.

use std::borrow::Cow;
use std::mem;

use smallvec::SmallVec;

use super::document::Ruling;
use super::fold::{fold, folded};
use super::pattern::{Glob, Pattern, Segment};

/// The place of a rule among all; a lower one wins.
pub(super) type Order = usize;

/// Patterns as a tree of segments: those of rules that allow below one root, read strictly, and those of rules that conceal
/// below another, read leniently.
#[derive(Debug)]
pub(super) struct Trie {
    nodes: Vec<Node>,
}

/// What a walk found; of each kind, the first rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// That allows the path itself.
    pub(super) allowed_by: Option<Order>,
    /// That allows the path, or could allow something below it.
    pub(super) leads_to: Option<Order>,
    /// That conceals the path or a directory above it.
    pub(super) concealed_by: Option<Order>,
}

#[derive(Debug)]
struct Node {
    ruling: Ruling,
    /// In alphabetical order; folded where the rule conceals.
    literals: Vec<(Box<str>, usize)>,
    /// The node behind a `*`.
    any: Option<usize>,
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

/// Maximum length of a name that is folded while it is compared, in bytes. A longer name is folded once in advance;
/// otherwise its hyphens would be skipped again for each literal.
const MAX_INLINE_NAME_BYTES: usize = 64;

/// Where a walk is. More than these nodes at once are rare.
type Places = SmallVec<[usize; 8]>;

impl Trie {
    pub(super) fn new() -> Self {
        Self { nodes: vec![Node::new(Ruling::Allow), Node::new(Ruling::Conceal)] }
    }

    pub(super) fn add(&mut self, pattern: &Pattern, ruling: Ruling, order: Order) {
        let mut at = root(ruling);
        self.nodes[at].lead_to(order);
        for segment in pattern.segments() {
            at = match (segment, ruling) {
                (Segment::Literal(name), Ruling::Allow) => self.literal(at, name.clone()),
                (Segment::Literal(name), Ruling::Conceal) => self.literal(at, folded(name)),
                (Segment::Glob(glob), Ruling::Allow) => self.glob(at, glob.clone()),
                (Segment::Glob(glob), Ruling::Conceal) => self.glob(at, glob.folded()),
                (Segment::Deep, _) => self.deep(at),
            };
            self.nodes[at].lead_to(order);
        }
        keep_first(&mut self.nodes[at].ends, Some(order));
    }

    /// What the rules say of a path.
    pub(super) fn walk(&self, path: &str) -> Found {
        let mut found = Found::default();
        let (mut here, mut next) = (&mut Places::new(), &mut Places::new());
        for ruling in [Ruling::Allow, Ruling::Conceal] {
            self.enter(root(ruling), here, &mut found);
        }
        for name in path.as_bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let lenient =
                if name.len() > MAX_INLINE_NAME_BYTES { Cow::Owned(fold(name).collect()) } else { Cow::Borrowed(name) };
            for &at in &*here {
                match self.nodes[at].ruling {
                    Ruling::Allow => self.follow(at, name, next, &mut found),
                    Ruling::Conceal => self.follow(at, &lenient, next, &mut found),
                }
            }
            here.clear();
            mem::swap(&mut here, &mut next);
            if here.is_empty() {
                return found;
            }
        }
        for node in here.iter().map(|at| &self.nodes[*at]).filter(|node| node.ruling == Ruling::Allow) {
            keep_first(&mut found.allowed_by, node.ends);
            keep_first(&mut found.leads_to, node.leads_to);
        }
        found
    }

    /// Goes on from a node by a name.
    fn follow(&self, at: usize, name: &[u8], places: &mut Places, found: &mut Found) {
        let node = &self.nodes[at];
        if let Some(to) = node.literal(name) {
            self.enter(to, places, found);
        }
        if !node.globs.is_empty() {
            let folded: SmallVec<[u8; MAX_INLINE_NAME_BYTES]>;
            let name = match node.ruling {
                Ruling::Allow => name,
                Ruling::Conceal => {
                    folded = fold(name).collect();
                    &folded
                }
            };
            for (_, to) in node.globs.iter().filter(|(glob, _)| glob.matches(name)) {
                self.enter(*to, places, found);
            }
        }
        if let Some(to) = node.any {
            self.enter(to, places, found);
        }
        if node.repeats {
            places.push(at);
        }
    }

    /// Comes to a node, and through a `**` that stands for nothing to the one behind it.
    fn enter(&self, at: usize, places: &mut Places, found: &mut Found) {
        let node = &self.nodes[at];
        if node.ruling == Ruling::Conceal {
            keep_first(&mut found.concealed_by, node.ends);
        }
        places.push(at);
        if let Some(deep) = node.deep {
            self.enter(deep, places, found);
        }
    }

    fn literal(&mut self, at: usize, name: Box<str>) -> usize {
        match self.nodes[at].literals.binary_search_by(|(literal, _)| (**literal).cmp(&*name)) {
            Ok(known) => self.nodes[at].literals[known].1,
            Err(place) => {
                let new = self.grow(at);
                self.nodes[at].literals.insert(place, (name, new));
                new
            }
        }
    }

    fn glob(&mut self, at: usize, glob: Glob) -> usize {
        if glob.is_any() {
            return self.any(at);
        }
        if let Some((_, known)) = self.nodes[at].globs.iter().find(|(known, _)| *known == glob) {
            return *known;
        }
        let new = self.grow(at);
        self.nodes[at].globs.push((glob, new));
        new
    }

    fn any(&mut self, at: usize) -> usize {
        if let Some(known) = self.nodes[at].any {
            return known;
        }
        let new = self.grow(at);
        self.nodes[at].any = Some(new);
        new
    }

    fn deep(&mut self, at: usize) -> usize {
        if let Some(known) = self.nodes[at].deep {
            return known;
        }
        let new = self.grow(at);
        self.nodes[new].repeats = true;
        self.nodes[at].deep = Some(new);
        new
    }

    /// A new node below another.
    fn grow(&mut self, above: usize) -> usize {
        self.nodes.push(Node::new(self.nodes[above].ruling));
        self.nodes.len() - 1
    }
}

fn root(ruling: Ruling) -> usize {
    match ruling {
        Ruling::Allow => 0,
        Ruling::Conceal => 1,
    }
}

impl Node {
    fn new(ruling: Ruling) -> Self {
        Self {
            ruling,
            literals: Vec::new(),
            any: None,
            globs: Vec::new(),
            deep: None,
            repeats: false,
            ends: None,
            leads_to: None,
        }
    }

    /// Where a name leads that this node's rules spell out. It is looked for among those with its first letter.
    fn literal(&self, name: &[u8]) -> Option<usize> {
        let first = match self.ruling {
            Ruling::Allow => name.first().copied(),
            Ruling::Conceal => fold(name).next(),
        };
        let begin = self.literals.partition_point(|(literal, _)| literal.bytes().next() < first);
        let mut alike = self.literals[begin..].iter().take_while(|(literal, _)| literal.bytes().next() == first);
        alike.find(|(literal, _)| self.reads(name, literal.as_bytes())).map(|(_, to)| *to)
    }

    fn reads(&self, name: &[u8], literal: &[u8]) -> bool {
        match self.ruling {
            Ruling::Allow => literal.len() == name.len() && literal.iter().eq(name),
            Ruling::Conceal => literal.len() <= name.len() && fold(name).eq(literal.iter().copied()),
        }
    }

    fn lead_to(&mut self, order: Order) {
        keep_first(&mut self.leads_to, Some(order));
    }
}

fn keep_first(first: &mut Option<Order>, found: Option<Order>) {
    if let Some(found) = found {
        *first = Some(first.map_or(found, |first| first.min(found)));
    }
}

#[cfg(test)]
mod tests;
