//! The decision: what becomes of a request, and why. Pure.

use std::borrow::Cow;
use std::fmt;

use super::document::{Listings, OtherKeys, Rule, Ruling, Tree};
use super::pattern::TOPS;
use super::{Answer, Order, Policy, Recursive};
use crate::metadata::query::Param;
use crate::metadata::{Endpoint, MetadataPath, Method, Query, Request};

/// What becomes of a request.
#[derive(Debug, Clone, Copy)]
pub enum Decision<'a> {
    /// It goes on as it is.
    Allow,
    /// It goes on without its `recursive`, which means nothing for a path without a final slash: the server answers a leaf
    /// as if it were not there, and a directory by a redirect.
    Flat,
    /// It goes on, and what is concealed is cut out of the answer.
    Redact,
    /// It is answered with the redirect that a directory without its final slash gets from the server. It is not sent
    /// there, for the name might be that of a leaf that is concealed.
    Redirect,
    /// It is refused.
    Conceal(Cause<'a>),
}

/// Why a request is refused. As text it is the end of the sentence "... is concealed from pods: ".
#[derive(Debug, Clone, Copy)]
pub enum Cause<'a> {
    /// A rule says so.
    Rule(&'a Rule),
    /// No rule says otherwise.
    Unmatched,
    /// A recursive answer would hold what is concealed.
    Recursive,
    /// No API version that anybody knows.
    UnknownVersion,
    /// An API version that is not served.
    Tree(Tree),
    /// A method that is not served.
    Method(Method),
    /// A query key that is not let through.
    QueryKey(&'a str),
    /// A recursive answer or a listing that could not be read, so nothing could be cut out of it.
    Unreadable,
}

/// A path as rules see it: below the API version, in the layout of v1, without a slash at either end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject<'a> {
    tree: Option<Tree>,
    path: Cow<'a, str>,
}

impl<'a> Subject<'a> {
    /// Reads it off a path that is no API version that nobody knows.
    pub fn of(path: &'a MetadataPath) -> Self {
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

    /// As rules are matched against it.
    pub fn as_str(&self) -> &str {
        &self.path
    }
}

/// A path below `0.1/meta-data`, which is v1's `instance`. What has a name of v1's top is taken for that, in case that
/// some server mounts its whole tree there. `auth-token` names its account in the query, so it is the token of an
/// account of which only `*` knows.
fn below_instance(below: &str) -> Cow<'_, str> {
    match below.split('/').next().unwrap_or_default() {
        "" => "instance".into(),
        name if name.eq_ignore_ascii_case("auth-token") => "instance/service-accounts/*/token".into(),
        name if TOPS.iter().any(|top| name.eq_ignore_ascii_case(top)) => below.into(),
        _ => format!("instance/{below}").into(),
    }
}

/// `acquire` was the token's name before v1.
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
    /// Judges a request.
    pub fn judge<'a>(&'a self, request: &'a Request) -> Decision<'a> {
        let subject = Subject::of(&request.path);
        if request.endpoint == Endpoint::Unknown {
            return Decision::Conceal(Cause::UnknownVersion);
        }
        if let Some(tree) = subject.tree.filter(|tree| !self.trees.contains(tree)) {
            return Decision::Conceal(Cause::Tree(tree));
        }
        let decision = self.judge_path(&subject, request);
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

    /// The query that goes on: keys that are not let through are left out.
    pub fn trim(&self, query: Query) -> Query {
        if query.params().all(|(param, _)| self.query_keys.contains(&param)) {
            return query;
        }
        query.only(|param| self.query_keys.contains(&param))
    }

    /// The rule that decides about a path, if any does.
    pub fn rule_for(&self, subject: &str) -> Option<&Rule> {
        let orders = [self.allowed.exact(subject), self.concealed.covers(subject)];
        orders.into_iter().flatten().min().map(|order| &self.rules[order])
    }

    /// Where the rule stands that is the cause, counted from 1; 0 if it is none.
    pub fn place_of(&self, cause: Cause<'_>) -> usize {
        match cause {
            Cause::Rule(rule) => self.rules.iter().position(|known| std::ptr::eq(known, rule)).map_or(0, |at| at + 1),
            _ => 0,
        }
    }

    /// Whether the value of a path is served.
    pub fn shows(&self, subject: &str) -> bool {
        self.ruling(self.allowed.exact(subject), self.concealed.covers(subject)) == Ruling::Allow
    }

    /// Whether a directory is served, if only as the way to something below it.
    pub fn leads_through(&self, subject: &str) -> bool {
        self.ruling(self.allowed.leads_to(subject), self.concealed.covers(subject)) == Ruling::Allow
    }

    /// The status of a refusal.
    pub fn answer(&self, cause: Cause<'_>) -> Answer {
        match cause {
            Cause::Rule(rule) => rule.answer.unwrap_or(self.answer),
            _ => self.answer,
        }
    }

    fn judge_path<'a>(&'a self, subject: &Subject<'_>, request: &Request) -> Decision<'a> {
        let path = subject.as_str();
        // One that is not let through is refused or dropped; either way the answer is not recursive.
        let recursive = request.query.is_recursive() && self.query_keys.contains(&Param::Recursive);
        if subject.tree.is_none() {
            // Above the API versions there is nothing to conceal but what a recursive answer would reach.
            return if recursive { Decision::Conceal(Cause::Recursive) } else { Decision::Allow };
        }
        let concealed_by = self.concealed.covers(path);
        if !request.path.is_directory() && self.ruling(self.allowed.exact(path), concealed_by) == Ruling::Allow {
            return if recursive { Decision::Flat } else { Decision::Allow };
        }
        if self.ruling(self.allowed.leads_to(path), concealed_by) == Ruling::Conceal {
            return Decision::Conceal(concealed_by.map_or(Cause::Unmatched, |order| Cause::Rule(&self.rules[order])));
        }
        if !request.path.is_directory() {
            return Decision::Redirect;
        }
        match (recursive, self.listings) {
            (true, _) if subject.tree == Some(Tree::V01) => Decision::Conceal(Cause::Recursive),
            (true, _) if self.recursive == Recursive::Redact || self.recursive_except.exact(path).is_some() => {
                Decision::Redact
            }
            (true, _) => Decision::Conceal(Cause::Recursive),
            (false, Listings::Redact) => Decision::Redact,
            (false, Listings::Whole) => Decision::Allow,
        }
    }

    /// Of the first rule that allows and the first that conceals, the earlier.
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

impl Cause<'_> {
    /// A name from a closed set, for logs.
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
                f.write_str("a recursive answer would hold what is concealed; ask for the values one by one")
            }
            Self::UnknownVersion => f.write_str(
                "the metadata API versions known here are computeMetadata/v1, computeMetadata/v1beta1 and 0.1/meta-data",
            ),
            Self::Tree(tree) => write!(f, "the API version {tree} is not served; use computeMetadata/v1"),
            Self::Method(method) => write!(f, "the method {} is not served", http::Method::from(*method)),
            Self::QueryKey(key) => write!(f, "the query parameter {key:?} is not known here"),
            Self::Unreadable => f.write_str("what is concealed could not be told from the rest of the answer"),
        }
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "computeMetadata/v1",
            Self::V1Beta1 => "computeMetadata/v1beta1",
            Self::V01 => "0.1/meta-data",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::conceal::Concealed;
    use crate::policy::{Choice, Source};

    fn request(target: &str) -> Request {
        let target = target.parse().expect("a target");
        Request::get(MetadataPath::parse(&target).expect("a path"), Query::parse(target.query()).expect("a query"))
    }

    fn built_in(name: &str) -> Policy {
        Choice { source: Source::named(name), recursive: None }.load().expect("built in")
    }

    #[derive(Debug, PartialEq, Eq)]
    enum Verdict {
        Allow,
        Flat,
        Redact,
        Redirect,
        Conceal(u16),
    }

    fn by(policy: &Policy, target: &str) -> Verdict {
        match policy.judge(&request(target)) {
            Decision::Allow => Verdict::Allow,
            Decision::Flat => Verdict::Flat,
            Decision::Redact => Verdict::Redact,
            Decision::Redirect => Verdict::Redirect,
            Decision::Conceal(cause) => Verdict::Conceal(policy.answer(cause).status().as_u16()),
        }
    }

    fn verdict(target: &str) -> Verdict {
        by(&built_in("compat"), target)
    }

    /// The published table of k8s-metadata-proxy (`metadata/metadata_test.go`) and the list of Kubernetes' own check
    /// (`test/check_metadata_concealment.go`), as far as a path and a query say it; what they refuse before that (an
    /// opaque URL, a `;`) is refused when the request is read.
    #[test]
    fn the_verdicts_are_those_of_k8s_metadata_proxy() {
        let allowed = [
            "/",
            "/0.1",
            "/0.1/",
            "/0.1/meta-data",
            "/0.1/meta-data/",
            "/computeMetadata/",
            "/computeMetadata/v1beta1",
            "/computeMetadata/v1beta1/",
            "/computeMetadata/v1",
            "/computeMetadata/v1/",
            "/computeMetadata/v1/instance/service-accounts/default/token",
            "/computeMetadata/v1/instance/service-accounts/12345-compute@developer.gserviceaccount.com/token",
            "/computeMetadata/v1/?alt=text",
            "/computeMetadata/v1/?wait_for_change=true",
            "/computeMetadata/v1/?wait_for_change=true&timeout_sec=3600",
            "/computeMetadata/v1/?wait_for_change=true&last_etag=d34db33fd34db33f",
            "/0.1/meta-data/service-accounts/default/acquire?scopes=cloud-platform+email",
            "/0.1/meta-data/auth-token?service_account=test@www.example.com&scope=cloud-platform",
        ];
        for target in allowed {
            assert_eq!(verdict(target), Verdict::Allow, "{target}");
        }
        for account in ["default", "12345-compute@developer.gserviceaccount.com"] {
            let tree = format!("/computeMetadata/v1/instance/service-accounts/{account}/?recursive=True");
            assert_eq!(verdict(&tree), Verdict::Redact, "answered, less what is concealed");
        }
        let concealed = [
            "/computeMetadata/v1/instance/?nonrecursive=true",
            "/computeMetadata/v1/?something_else=true",
            "/0.2/",
            "/computeMetadata/v2/",
            "/COMPUTEMETADATA/V1/",
            "/0.1/meta-data/attributes/kube-env",
            "/computeMetadata/v1beta1/instance/attributes/kube-env",
            "/computeMetadata/v1/instance/attributes/kube-env",
            "/0.1/meta-data/service-accounts/default/identity",
            "/computeMetadata/v1beta1/instance/service-accounts/default/identity",
            "/computeMetadata/v1/instance/service-accounts/default/identity",
            "/computeMetadata/v1/instance/service-accounts/default/identity?audience=www.example.com&format=full",
            "/computeMetadata/v1/instance/?recursive=true",
            "/computeMetadata/v1/instance/?%72%65%63%75%72%73%69%76%65=true",
            "/computeMetadata/v1/instance/?recursive",
            "/computeMetadata/v1/instance/?alt=text&recursive=true",
            "/computeMetadata/v1/instance/?recursive=true&alt=text",
            "/computeMetadata/v1/instance/attributes//kube-env",
            "/computeMetadata/v1/instance/attributes/../attributes/kube-env",
            "/computeMetadata/v1/instance/?recursive%3Dtrue",
            "/computeMetadata/v1/instance/service-accounts/../service-accounts/default/identity",
        ];
        for target in concealed {
            assert!(matches!(verdict(target), Verdict::Conceal(403)), "{target}");
        }
    }

    #[test]
    fn a_lenient_servers_spelling_is_concealed_too() {
        for name in ["KUBE-ENV", "kube-env/", "Kube-Env/x", "ssh-keys", "sshKeys"] {
            assert!(
                matches!(verdict(&format!("/computeMetadata/v1/instance/attributes/{name}")), Verdict::Conceal(403)),
                "{name}"
            );
        }
        for target in ["/computeMetadata/v1/project/attributes/ssh-keys", "/computeMetadata/v1/instance/credentials/x"]
        {
            assert!(matches!(verdict(target), Verdict::Conceal(403)), "{target}");
        }
    }

    #[test]
    fn every_name_that_is_known_to_be_secret_is_concealed() {
        let attributes = [
            "kube-env",
            "kubeconfig",
            "bootstrap-kubeconfig",
            "kubelet-config",
            "configure-sh",
            "containerd-configure-sh",
            "user-data",
            "startup-script",
            "startup-script-url",
            "shutdown-script",
            "shutdown-script-url",
            "ssh-keys",
            "sshKeys",
            "windows-keys",
        ];
        let directories = ["credentials", "gce-workload-certificates", "workload-identities"];
        let names = attributes.iter().map(|name| format!("attributes/{name}"));
        for name in names.chain(directories.iter().map(ToString::to_string)) {
            for tree in ["/computeMetadata/v1/instance", "/computeMetadata/v1beta1/instance", "/0.1/meta-data"] {
                assert!(matches!(verdict(&format!("{tree}/{name}")), Verdict::Conceal(403)), "{tree}/{name}");
            }
        }
    }

    #[test]
    fn a_name_that_only_begins_like_a_secret_is_none() {
        for target in [
            "/computeMetadata/v1/instance/attributes/kube-env-x",
            "/computeMetadata/v1/instance/attributes/",
            "/computeMetadata/v1/instance/",
        ] {
            assert_eq!(verdict(target), Verdict::Allow, "{target}");
        }
    }

    #[test]
    fn the_recursive_flag_does_not_go_upstream_where_it_means_nothing() {
        assert_eq!(verdict("/computeMetadata/v1/project/project-id?recursive=true"), Verdict::Flat);
        assert_eq!(verdict("/computeMetadata/v1/instance/service-accounts/default?recursive=true"), Verdict::Flat);
    }

    #[test]
    fn strict_serves_what_gkes_server_serves() {
        let strict = built_in("strict");
        let below = |path: &str| by(&strict, &format!("/computeMetadata/v1/{path}"));
        for path in [
            "instance/hostname",
            "instance/id?alt=json",
            "instance/zone?unknown=1",
            "instance/service-accounts/default/token?scopes=a",
            "instance/service-accounts/a@b.c/email",
            "instance/service-accounts",
            "instance/attributes/cluster-uid",
            "project/project-id",
        ] {
            assert_eq!(below(path), Verdict::Allow, "{path}");
        }
        for path in
            ["", "instance/", "instance/?recursive=true", "project/attributes/../", "instance/service-accounts/"]
        {
            assert_eq!(below(path), Verdict::Redact, "{path}");
        }
        for path in ["instance", "project", "instance/attributes"] {
            assert_eq!(below(path), Verdict::Redirect, "{path}");
        }
        for path in [
            "instance/image",
            "instance/ID",
            "instance/disks/",
            "instance/attributes/kube-env",
            "instance/attributes/my-app-password",
            "instance/attributes/clusterName",
            "instance/service-accounts/default/identity?audience=x",
            "project/attributes/",
            "oslogin/",
            "universe/universe-domain",
        ] {
            assert_eq!(below(path), Verdict::Conceal(404), "{path}");
        }
        assert_eq!(by(&strict, "/0.1/meta-data/zone"), Verdict::Conceal(404));
        assert_eq!(by(&strict, "/computeMetadata/v1beta1/instance/id"), Verdict::Conceal(404));
    }

    #[test]
    fn a_key_that_is_not_let_through_is_dropped_or_refused() {
        let policy = |other: &str| {
            let text = format!(
                "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\nunmatched: allow\n\
                 queryKeys: [alt]\notherQueryKeys: {other}\nrecursive: redact\n"
            );
            Choice::default().compile(&text).expect("a policy")
        };
        let (refuses, drops) = (policy("refuse"), policy("drop"));
        let target = "/computeMetadata/v1/instance/?recursive=true&alt=text&scopes=a&x=1";
        assert_eq!(by(&refuses, target), Verdict::Conceal(403));
        assert_eq!(by(&refuses, "/computeMetadata/v1/instance/id?scopes=a"), Verdict::Conceal(403));
        assert_eq!(by(&drops, target), Verdict::Redact, "as a listing");
        assert_eq!(by(&drops, "/computeMetadata/v1/instance/id?recursive=true"), Verdict::Allow);
        assert_eq!(drops.trim(request(target).query).to_string(), "?alt=text");
    }

    /// A name that is allowed to be a directory might be a leaf that is concealed, so it is not asked for.
    #[test]
    fn a_way_through_is_not_a_value() {
        let text = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\n\
                    rules:\n  - paths: [instance/attributes/*/shown]\n    verdict: allow\n";
        let policy = Choice::default().compile(text).expect("a policy");
        assert_eq!(by(&policy, "/computeMetadata/v1/instance/attributes/secret"), Verdict::Redirect);
        assert_eq!(by(&policy, "/computeMetadata/v1/instance/attributes/secret/shown"), Verdict::Allow);
    }

    /// Two names of the token that only the old trees have, one of which names its account in the query.
    #[test]
    fn the_old_names_of_a_token_are_judged_as_the_token() {
        let head = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\n";
        let policy = |rest: &str| Choice::default().compile(&format!("{head}{rest}")).expect("a policy");
        let closed = policy(
            "extends: compat\nrules:\n  - paths: [instance/service-accounts/*/token]\n    verdict: conceal\n    reason: x\n",
        );
        let one_account = policy(
            "trees: [v1, '0.1']\nrules:\n  - paths: [instance/service-accounts/default/token]\n    verdict: allow\n",
        );
        for target in [
            "/computeMetadata/v1beta1/instance/service-accounts/default/acquire",
            "/computeMetadata/v1beta1/instance/service-accounts/a@b.c/Acquire/",
            "/0.1/meta-data/service-accounts/default/acquire?scopes=a",
            "/0.1/meta-data/auth-token?service_account=a@b.c&scope=a",
            "/0.1/meta-data/Auth-Token/",
        ] {
            assert_eq!(by(&closed, target), Verdict::Conceal(403), "{target}");
        }
        assert_eq!(by(&one_account, "/0.1/meta-data/service-accounts/default/acquire"), Verdict::Allow);
        for target in ["/0.1/meta-data/auth-token?service_account=a@b.c", "/0.1/meta-data/auth-token"] {
            assert_eq!(by(&one_account, target), Verdict::Conceal(403), "{target}");
        }
    }

    #[test]
    fn the_layout_of_the_oldest_tree_hides_nothing() {
        for target in [
            "/0.1/meta-data/instance/attributes/kube-env",
            "/0.1/meta-data/project/attributes/ssh-keys",
            "/0.1/meta-data/oslogin/users",
        ] {
            assert_eq!(verdict(target), Verdict::Conceal(403), "{target}");
        }
    }

    #[test]
    fn an_earlier_rule_opens_what_a_later_one_conceals_letter_by_letter() {
        let text = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\nextends: compat\n\
                    rules:\n  - paths: [instance/attributes/user-data]\n    verdict: allow\n";
        let policy = Choice::default().compile(text).expect("a policy");
        assert_eq!(by(&policy, "/computeMetadata/v1/instance/attributes/user-data"), Verdict::Allow);
        for spelling in ["USER-DATA", "userData", "user-data/", "user-data/x"] {
            let target = format!("/computeMetadata/v1/instance/attributes/{spelling}");
            let visible = spelling == "user-data/";
            assert_eq!(by(&policy, &target) == Verdict::Conceal(403), !visible, "{spelling}");
        }
    }

    #[test]
    fn the_client_reads_what_and_why() {
        let policy = built_in("compat");
        let request = request("/computeMetadata/v1/instance/attributes//kube-env");
        let Decision::Conceal(cause) = policy.judge(&request) else { panic!("kube-env is concealed") };
        assert_eq!(
            Concealed::new(&policy, &request.path, cause).to_string(),
            "Refused: /computeMetadata/v1/instance/attributes/kube-env is concealed from pods by the policy compat: it \
             holds the credentials with which a node joins the cluster."
        );
    }
}
