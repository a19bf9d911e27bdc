//! [`Trie`]: matches a path against all patterns of a policy in one walk.
//!
//! A walk takes a path segment by segment and tracks every node reached. Where patterns overlap there are several
//! (after `instance`, `*/attributes` and `instance/id` may both continue), but each node appears only once. So the
//! policy limits the work per segment, and no path can increase it. Merging such nodes when a policy is loaded would
//! save the built-in policies a comparison or two, but a custom policy could then use unlimited memory.
//!
//! Names are compared in place and folded byte by byte: most differ in the first byte, so copying them or
//! calling `memcmp` would take longer.

use std::borrow::Cow;
use std::mem;

use smallvec::SmallVec;

use super::document::Ruling;
use super::fold::{fold, folded};
use super::pattern::{Glob, Pattern, Segment};

/// Position of a rule. Lower positions take precedence.
pub(super) type Order = usize;

/// Patterns as a tree of segments. Rules that allow are below one root and matched strictly. Rules that conceal
/// are below another and matched leniently.
#[derive(Debug)]
pub(super) struct Trie {
    nodes: Vec<Node>,
}

/// Result of a walk: the first rule of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Matches {
    /// Allows the path itself.
    pub(super) allowed_by: Option<Order>,
    /// Allows the path, or could allow a path below it.
    pub(super) leads_to: Option<Order>,
    /// Conceals the path or a directory above it.
    pub(super) concealed_by: Option<Order>,
}

#[derive(Debug)]
struct Node {
    ruling: Ruling,
    /// Sorted. Folded if the rules conceal.
    literals: Vec<(Box<str>, usize)>,
    /// The node after a `*`.
    any: Option<usize>,
    globs: Vec<(Glob, usize)>,
    /// The node after a `**`.
    deep: Option<usize>,
    /// The node follows a `**`, so it also matches any further segment.
    repeats: bool,
    /// The first rule that ends here.
    ends: Option<Order>,
    /// The first rule that ends here or below.
    leads_to: Option<Order>,
}

/// Maximum length of a name that is folded while it is compared, in bytes. A longer name is folded once in advance;
/// otherwise its hyphens and underscores would be skipped again for each literal.
const MAX_INLINE_NAME_BYTES: usize = 64;

/// The nodes that a walk has reached. More than eight at once are rare.
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

    /// Finds the rules that match a path.
    pub(super) fn walk(&self, path: &str) -> Matches {
        let mut found = Matches::default();
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

    /// Follows the edges of a node that match a name.
    fn follow(&self, at: usize, name: &[u8], places: &mut Places, found: &mut Matches) {
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

    /// Enters a node, and the node after a `**`, which may match no segments.
    fn enter(&self, at: usize, places: &mut Places, found: &mut Matches) {
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

    /// Adds a node below another.
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

    /// The node that a literal name leads to. Searches the literals with the same first byte.
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
