//! The decision on a request, and its reason. Pure.

use std::borrow::Cow;
use std::fmt;

use super::document::{Listings, OtherKeys, Rule, Ruling, Tree};
use super::pattern::{Pattern, TOPS};
use super::trie::Matches;
use super::{Answer, Order, Policy, Recursive};
use crate::metadata::query::Param;
use crate::metadata::{Endpoint, MetadataPath, Method, Principal, Query, Request};

/// The decision on a request.
#[derive(Debug, Clone, Copy)]
pub enum Decision<'a> {
    /// Forward it unchanged.
    Allow,
    /// Forward it without `recursive`, which has no effect on a path without a trailing slash: the server ignores it
    /// for a leaf, and redirects for a directory.
    Flat,
    /// Forward it, and remove concealed values from the response.
    Redact,
    /// Answer with the redirect that the server sends for a directory without its trailing slash. It is not forwarded,
    /// because the name might be that of a concealed leaf.
    Redirect,
    /// Refuse it.
    Conceal(Cause<'a>),
}

/// Reason why a request is refused. Displays as the end of the sentence "... is concealed from pods: ".
#[derive(Debug, Clone, Copy)]
pub enum Cause<'a> {
    /// A rule conceals the path.
    Rule(&'a Rule),
    /// No rule allows the path.
    Unmatched,
    /// A recursive response would contain concealed values.
    Recursive,
    /// An unknown API version.
    UnknownVersion,
    /// An API version that is not served.
    Tree(Tree),
    /// A method that is not served.
    Method(Method),
    /// A query key that is not allowed.
    QueryKey(&'a str),
    /// A recursive response or listing that could not be parsed, so nothing could be removed from it.
    Unreadable,
}

/// A path of a rule to which an earlier rule applies. Rules count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overruled<'a> {
    pub rule: usize,
    pub path: &'a Pattern,
    /// The earlier rule.
    pub by: usize,
}

/// A path as matched by rules: relative to the API version, in the layout of v1, without leading or trailing
/// slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject<'a> {
    tree: Option<Tree>,
    path: Cow<'a, str>,
}

impl<'a> Subject<'a> {
    /// Converts a path. The API version may be unknown.
    pub fn new(path: &'a MetadataPath) -> Self {
        if let Some(below) = path.as_str().strip_prefix("/computeMetadata/v1/") {
            return Self { tree: Some(Tree::V1), path: Cow::Borrowed(below.strip_suffix('/').unwrap_or(below)) };
        }
        let mut rest = path.as_str().trim_matches('/').splitn(3, '/');
        let (tree, below) = match (rest.next(), rest.next(), rest.next().unwrap_or_default()) {
            (Some("computeMetadata"), Some("v1"), _) => (Some(Tree::V1), Cow::Borrowed("")),
            (Some("computeMetadata"), Some("v1beta1"), below) => (Some(Tree::V1Beta1), with_token(below.into())),
            (Some("0.1"), Some("meta-data"), below) => (Some(Tree::V01), with_token(below_instance(below))),
            (Some("0.1"), ..) => (Some(Tree::V01), Cow::Borrowed("")),
            _ => (None, Cow::Borrowed("")),
        };
        Self { tree, path: below }
    }

    /// The text that rules match.
    pub fn as_str(&self) -> &str {
        &self.path
    }
}

/// Whether a pod with an identity requests a service account. It gets its own, and never the node's, which the rules
/// cover.
fn is_own_account(request: &Request) -> bool {
    let is_account = matches!(request.endpoint, Endpoint::Token(_) | Endpoint::Identity(_) | Endpoint::ServiceAccounts);
    is_account && matches!(request.principal, Principal::Workload(_))
}

/// Converts a path below `0.1/meta-data`, which corresponds to v1's `instance`. A name from the top level of v1 is
/// kept, in case some server mounts its whole tree there. `auth-token` names its account in the query, so it becomes
/// the token of the account `*`.
fn below_instance(below: &str) -> Cow<'_, str> {
    match below.split('/').next().unwrap_or_default() {
        "" => "instance".into(),
        name if name.eq_ignore_ascii_case("auth-token") => "instance/service-accounts/*/token".into(),
        name if TOPS.iter().any(|top| name.eq_ignore_ascii_case(top)) => below.into(),
        _ => format!("instance/{below}").into(),
    }
}

/// Replaces `acquire`, the name of tokens before v1.
fn with_token(path: Cow<'_, str>) -> Cow<'_, str> {
    let mut names = path.splitn(5, '/');
    match (names.next(), names.next(), names.next(), names.next()) {
        (Some("instance"), Some("service-accounts"), Some(account), Some(name))
            if name.eq_ignore_ascii_case("acquire") =>
        {
            format!("instance/service-accounts/{account}/token").into()
        }
        _ => path,
    }
}

impl Policy {
    /// Decides on a request.
    pub fn judge<'a>(&'a self, request: &'a Request) -> Decision<'a> {
        let subject = Subject::new(&request.path);
        if request.endpoint == Endpoint::Unknown {
            return Decision::Conceal(Cause::UnknownVersion);
        }
        if let Some(tree) = subject.tree.filter(|tree| !self.trees.contains(tree)) {
            return Decision::Conceal(Cause::Tree(tree));
        }
        let decision = if is_own_account(request) { Decision::Allow } else { self.judge_path(&subject, request) };
        if matches!(decision, Decision::Conceal(_)) {
            return decision;
        }
        if !self.methods.contains(&request.method) {
            return Decision::Conceal(Cause::Method(request.method));
        }
        if let Some(key) = self.refused_key(&request.query) {
            return Decision::Conceal(Cause::QueryKey(key));
        }
        decision
    }

    /// Whether a query parameter is forwarded.
    pub fn passes(&self, param: Param) -> bool {
        self.query_keys.contains(&param)
    }

    /// Removes parameters that are not forwarded.
    pub fn trim(&self, query: Query) -> Query {
        if query.params().all(|(param, _)| self.passes(param)) {
            return query;
        }
        query.only(|param| self.passes(param))
    }

    /// The first rule that matches a path, if any.
    pub fn rule_for(&self, subject: &str) -> Option<&Rule> {
        self.order_for(subject).map(|order| &self.rules[order])
    }

    fn order_for(&self, subject: &str) -> Option<Order> {
        let found = self.patterns.walk(subject);
        [found.allowed_by, found.concealed_by].into_iter().flatten().min()
    }

    /// The paths of the file's own rules to which an earlier one applies. Not all of them: a `**` is only compared with a lone one.
    pub fn overruled(&self) -> impl Iterator<Item = Overruled<'_>> {
        let paths = self.rules[..self.own_rules].iter().enumerate();
        paths.flat_map(|(order, rule)| rule.paths.iter().map(move |path| (order, path))).filter_map(|(order, path)| {
            // A rule that matches the pattern as if it were a path matches what the pattern does: none has a `*` among its letters.
            let by = self.order_for(path.as_str()).filter(|by| *by < order)?;
            let is_whole = !path.is_deep() || self.rules[by].paths.iter().any(Pattern::is_all);
            is_whole.then_some(Overruled { rule: order + 1, path, by: by + 1 })
        })
    }

    /// Position of the rule that is the cause, starting at 1. 0 if the cause is not a rule.
    pub fn place_of(&self, cause: Cause<'_>) -> usize {
        match cause {
            Cause::Rule(rule) => self.rules.iter().position(|known| std::ptr::eq(known, rule)).map_or(0, |at| at + 1),
            _ => 0,
        }
    }

    /// Whether the value of a path is served.
    pub fn shows(&self, subject: &str) -> bool {
        let found = self.patterns.walk(subject);
        self.ruling(found.allowed_by, found.concealed_by) == Ruling::Allow
    }

    /// Whether a directory is served, including one that only leads to an allowed path.
    pub fn leads_through(&self, subject: &str) -> bool {
        let found = self.patterns.walk(subject);
        self.ruling(found.leads_to, found.concealed_by) == Ruling::Allow
    }

    /// The status of a refusal of a request with this query.
    pub fn answer(&self, cause: Cause<'_>, query: &Query) -> Answer {
        match cause {
            Cause::Rule(rule) if rule.is_not_found_for(query) => Answer::NotFound,
            Cause::Rule(rule) => rule.answer.unwrap_or(self.answer),
            _ => self.answer,
        }
    }

    fn judge_path<'a>(&'a self, subject: &Subject<'_>, request: &Request) -> Decision<'a> {
        let path = subject.as_str();
        // A `recursive` that the policy does not accept is refused or dropped, so the response is not
        // recursive.
        let recursive = request.query.is_recursive() && self.query_keys.contains(&Param::Recursive);
        if subject.tree.is_none() {
            // Above the API versions, only a recursive response could contain anything to conceal.
            return if recursive { Decision::Conceal(Cause::Recursive) } else { Decision::Allow };
        }
        let Matches { allowed_by, leads_to, concealed_by } = match request.path.common() {
            Some(common) => self.common[common as usize],
            None => self.patterns.walk(path),
        };
        if !request.path.is_directory() && self.ruling(allowed_by, concealed_by) == Ruling::Allow {
            return if recursive { Decision::Flat } else { Decision::Allow };
        }
        if self.ruling(leads_to, concealed_by) == Ruling::Conceal {
            return Decision::Conceal(concealed_by.map_or(Cause::Unmatched, |order| Cause::Rule(&self.rules[order])));
        }
        if !request.path.is_directory() {
            return Decision::Redirect;
        }
        match (recursive, self.listings) {
            (true, _) if subject.tree == Some(Tree::V01) => Decision::Conceal(Cause::Recursive),
            (true, _)
                if self.recursive == Recursive::Redact || self.recursive_except.walk(path).allowed_by.is_some() =>
            {
                Decision::Redact
            }
            (true, _) => Decision::Conceal(Cause::Recursive),
            (false, Listings::Redact) => Decision::Redact,
            (false, Listings::Whole) => Decision::Allow,
        }
    }

    /// The ruling of the earlier of these rules, or the one for unmatched paths.
    fn ruling(&self, allowed_by: Option<Order>, concealed_by: Option<Order>) -> Ruling {
        match (allowed_by, concealed_by) {
            (Some(allowed), Some(concealed)) if allowed < concealed => Ruling::Allow,
            (_, Some(_)) => Ruling::Conceal,
            (Some(_), None) => Ruling::Allow,
            (None, None) => self.unmatched,
        }
    }

    fn refused_key<'a>(&self, query: &'a Query) -> Option<&'a str> {
        if self.other_query_keys == OtherKeys::Drop {
            return None;
        }
        let known = query.params().map(|(param, _)| param).find(|param| !self.query_keys.contains(param));
        query.unknown().or(known.map(Param::key))
    }
}

impl Rule {
    fn is_not_found_for(&self, query: &Query) -> bool {
        query
            .value(Param::Audience)
            .is_some_and(|audience| self.not_found_for_audiences.iter().any(|of| **of == *"*" || **of == *audience))
    }
}

impl Cause<'_> {
    /// A label from a fixed set, for logs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Rule(_) => "rule",
            Self::Unmatched => "unmatched",
            Self::Recursive => "recursive",
            Self::UnknownVersion | Self::Tree(_) => "version",
            Self::Method(_) => "method",
            Self::QueryKey(_) => "query_key",
            Self::Unreadable => "unreadable",
        }
    }
}

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => f.write_str(rule.reason.as_deref().unwrap_or_default()),
            Self::Unmatched => f.write_str("no rule allows it"),
            Self::Recursive => {
                f.write_str("a recursive response would contain concealed values; request values one by one")
            }
            Self::UnknownVersion => f.write_str(
                "the metadata API versions known here are computeMetadata/v1, computeMetadata/v1beta1 and 0.1/meta-data",
            ),
            Self::Tree(tree) => write!(f, "the API version {tree} is not served; use computeMetadata/v1"),
            Self::Method(method) => write!(f, "the method {} is not served", http::Method::from(*method)),
            Self::QueryKey(key) => write!(f, "the query parameter {key:?} is not known here"),
            Self::Unreadable => f.write_str("concealed values could not be identified in the response"),
        }
    }
}

#[cfg(test)]
mod tests;
