//! [`Leaf`]: the cached values, and their lifetimes.

use std::fmt;
use std::time::Duration;

use protocol::metadata::query::Param;
use protocol::metadata::{CommonPath, Query, Request};

/// A cached value: a common path, requested in one form.
///
/// Listings and accounts are directories of the server's tree, but clients request them just as often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    path: CommonPath,
    is_recursive: bool,
}

/// Frequency with which a value can change, and is therefore refreshed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// The value belongs to the machine, and changes only while the machine is stopped. A 404 does not remove it.
    Machine,
    /// An operator can set or remove the value while the machine runs. A 404 removes it.
    Attribute,
    /// A tree, some of whose values change while the machine runs. A request for a tree that is not fresh fetches it
    /// again; without requests, it is refreshed as rarely as the machine's values. A 404 does not remove it.
    Tree,
}

impl Lifetime {
    pub const ALL: [Self; 3] = [Self::Machine, Self::Attribute, Self::Tree];

    /// Time for which a tree is fresh. A machine is notified 30 s before it is preempted, and its trees contain that
    /// notice.
    const FRESH: Duration = Duration::from_secs(5);

    /// Interval between refreshes.
    ///
    /// Attributes are polled each minute. The server could report their changes (`wait_for_change`), but that would
    /// hold an upstream connection for each of them and does not work for an attribute that is missing.
    pub fn refresh_interval(self) -> Duration {
        match self {
            Self::Machine | Self::Tree => Duration::from_secs(10 * 60),
            Self::Attribute => Duration::from_secs(60),
        }
    }

    /// Whether a value of this age is served without a refresh.
    pub(super) fn is_fresh(self, age: Duration) -> bool {
        self != Self::Tree || age < Self::FRESH
    }
}

/// The forms in which a path's value is cached: plain, and recursive.
fn forms(path: CommonPath) -> [bool; 2] {
    match path {
        // In the token cache.
        CommonPath::DefaultToken => [false, false],
        CommonPath::DefaultAccount
        | CommonPath::Accounts
        | CommonPath::Instance
        | CommonPath::Project
        | CommonPath::Version => [true, true],
        CommonPath::UniverseDomain
        | CommonPath::ProjectId
        | CommonPath::NumericProjectId
        | CommonPath::InstanceId
        | CommonPath::Zone
        | CommonPath::InstanceName
        | CommonPath::Hostname
        | CommonPath::DefaultEmail
        | CommonPath::DefaultScopes
        | CommonPath::Attributes
        | CommonPath::InstanceTemplate
        | CommonPath::CreatedBy
        | CommonPath::Ipv6s
        | CommonPath::ClusterName
        | CommonPath::ClusterLocation
        | CommonPath::MachineType => [true, false],
    }
}

impl Leaf {
    /// The leaf at a path, in this form. `None` if it is not cached here.
    pub fn new(path: CommonPath, is_recursive: bool) -> Option<Self> {
        forms(path)[usize::from(is_recursive)].then_some(Self { path, is_recursive })
    }

    /// The leaf at a path, in the form that a query requests. `None` for a query with any parameter other than
    /// `recursive`, or `alt` of a tree: all formats of a tree are made from the cached one.
    pub(super) fn from_query(path: CommonPath, query: &Query) -> Option<Self> {
        let leaf = Self::new(path, query.is_recursive())?;
        let is_form =
            |param| param == Param::Recursive || param == Param::Alt && leaf.is_tree() && query.is_format_of_tree();
        (query.unknown().is_none() && query.params().all(|(param, _)| is_form(param))).then_some(leaf)
    }

    pub fn all() -> impl Iterator<Item = Self> {
        let both = |path| [Self::new(path, false), Self::new(path, true)];
        CommonPath::ALL.into_iter().flat_map(both).flatten()
    }

    pub fn path(self) -> CommonPath {
        self.path
    }

    /// Whether a request is for a tree that may be cached.
    pub fn is_kept_tree(request: &Request) -> bool {
        let leaf = request.path.common().and_then(|path| Self::from_query(path, &request.query));
        leaf.is_some_and(Self::is_tree)
    }

    /// Whether it is a tree of values, some of which may be concealed from pods. It is cached as the policy redacts it.
    /// Trees of an account are single values to clients.
    pub fn is_tree(self) -> bool {
        self.is_recursive && matches!(self.path, CommonPath::Instance | CommonPath::Project | CommonPath::Version)
    }

    /// The request that fetches this leaf.
    pub fn request(self) -> Request {
        Request::get(self.path.into(), Query::from_params(self.is_recursive.then(|| (Param::Recursive, "true".into()))))
    }

    /// Frequency with which the value can change.
    pub fn lifetime(self) -> Lifetime {
        match self.path {
            _ if self.is_tree() => Lifetime::Tree,
            // A running machine can get and lose its IPv6 addresses, too.
            CommonPath::ClusterName | CommonPath::ClusterLocation | CommonPath::Attributes | CommonPath::Ipv6s => {
                Lifetime::Attribute
            }
            // The template and the group are also attributes, but set by the creator of the machine.
            _ => Lifetime::Machine,
        }
    }

    /// Whether the server may lack this leaf, so that 404 is an answer. For other leaves, a 404 comes from a server
    /// that is not ready, or is not the metadata server.
    pub fn may_be_missing(self) -> bool {
        match self.path {
            // A machine may have no account, no universe, no cluster, no template and no IPv6. GKE's own metadata server has
            // no machine type and no name. A simple server may list nothing but the machine.
            CommonPath::UniverseDomain
            | CommonPath::DefaultToken
            | CommonPath::DefaultEmail
            | CommonPath::DefaultAccount
            | CommonPath::DefaultScopes
            | CommonPath::Accounts
            | CommonPath::Attributes
            | CommonPath::ClusterName
            | CommonPath::ClusterLocation
            | CommonPath::InstanceName
            | CommonPath::InstanceTemplate
            | CommonPath::CreatedBy
            | CommonPath::Ipv6s
            | CommonPath::MachineType
            | CommonPath::Project
            | CommonPath::Version => true,
            CommonPath::ProjectId
            | CommonPath::NumericProjectId
            | CommonPath::InstanceId
            | CommonPath::Zone
            | CommonPath::Hostname
            | CommonPath::Instance => false,
        }
    }

    /// Position in a table of the plain and the recursive form of each path.
    pub(super) fn place(self) -> (usize, usize) {
        (self.path as usize, usize::from(self.is_recursive))
    }
}

/// The path and query that a client requests.
impl fmt::Display for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path.as_str())?;
        f.write_str(if self.is_recursive { "?recursive=true" } else { "" })
    }
}
