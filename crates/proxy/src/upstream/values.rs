//! [`Values`]: answers on a machine without a metadata server, from the configuration and the API server's node object.

use std::collections::BTreeMap;

use arc_swap::ArcSwap;
use http::header::{HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::{Map, Value};

use crate::reply::{self, Body};
use protocol::metadata::Request;
use protocol::metadata::query::Param;

/// The values of the instance and the project on a machine without a metadata server.
#[derive(Debug)]
pub struct Values {
    given: Named,
    known: ArcSwap<Known>,
}

/// The current values.
#[derive(Debug)]
struct Known {
    /// By path, below the API version.
    leaves: BTreeMap<&'static str, Box<str>>,
    /// Whether the node's object will be read, and has not been read yet.
    awaits_node: bool,
}

/// Values by their names in the metadata tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Named {
    /// `project/project-id`
    pub project_id: Option<Box<str>>,
    /// `project/numeric-project-id`
    pub numeric_project_id: Option<u64>,
    /// `instance/attributes/cluster-name`
    pub cluster_name: Option<Box<str>>,
    /// `instance/attributes/cluster-location`, a region or a zone.
    pub cluster_location: Option<Box<str>>,
    /// `instance/attributes/cluster-uid`
    pub cluster_uid: Option<Box<str>>,
    /// The last part of `instance/zone`.
    pub zone: Option<Box<str>>,
    /// `instance/name` and `instance/hostname`
    pub instance_name: Option<Box<str>>,
    /// `instance/id`
    pub instance_id: Option<u64>,
}

const ZONE: &str = "instance/zone";

const ID: &str = "instance/id";

/// The paths that are numbers in JSON.
const NUMBERS: [&str; 2] = ["project/numeric-project-id", ID];

/// The directory whose names are not converted in JSON.
const ATTRIBUTES: &str = "instance/attributes/";

/// Shown in listings, although its entries are answered elsewhere, with the pods' own accounts.
const ACCOUNTS: &str = "instance/service-accounts/";

const JSON: HeaderValue = HeaderValue::from_static("application/json");

impl Values {
    /// Creates values from the configuration. An instance with a name but without an ID gets an ID derived from its
    /// name.
    pub fn new(given: Named) -> Self {
        let values = Self { known: ArcSwap::from_pointee(Known::of(&given, false)), given };
        values.know_node(None, None);
        values
    }

    /// The same on this node of a cluster. Missing values are taken from the node's object, by [`Self::know_node`].
    pub fn of_node(given: Named, node: &str) -> Self {
        let given = Named { instance_name: given.instance_name.or_else(|| Some(node.into())), ..given };
        let awaits_node = given.zone.is_none() || given.instance_id.is_none();
        Self { known: ArcSwap::from_pointee(Known::of(&given, awaits_node)), given }
    }

    /// Whether the zone is not known.
    pub fn lacks_zone(&self) -> bool {
        !self.known.load().leaves.contains_key(ZONE)
    }

    /// Whether the node's object has yet to be read.
    pub fn awaits_node(&self) -> bool {
        self.known.load().awaits_node
    }

    /// Records the UID and the zone in the node's object, or `None` if it cannot be read.
    pub fn know_node(&self, uid: Option<&str>, zone: Option<&str>) {
        let given = &self.given;
        let name_or_uid = uid.or(given.instance_name.as_deref());
        let named = Named {
            zone: given.zone.clone().or_else(|| zone.map(Into::into)),
            instance_id: given.instance_id.or_else(|| name_or_uid.map(number_of)),
            ..given.clone()
        };
        self.known.store(Known::of(&named, false).into());
    }

    /// The answer that a metadata server with these values would give.
    pub(super) fn answer(&self, request: &Request) -> Response<Body> {
        self.known.load().answer(request)
    }
}

impl Known {
    fn of(named: &Named, awaits_node: bool) -> Self {
        let Named { project_id, numeric_project_id, cluster_name, cluster_location, cluster_uid, .. } = named.clone();
        let number = |number: Option<u64>| number.map(|number| number.to_string().into());
        let leaves = [
            ("project/project-id", project_id),
            (NUMBERS[0], number(numeric_project_id)),
            ("instance/attributes/cluster-name", cluster_name),
            ("instance/attributes/cluster-location", cluster_location),
            ("instance/attributes/cluster-uid", cluster_uid),
            (ZONE, named.full_zone().map(Into::into)),
            ("instance/name", named.instance_name.clone()),
            ("instance/hostname", named.instance_name.clone()),
            (ID, number(named.instance_id)),
        ];
        let leaves = leaves.into_iter().filter_map(|(path, value)| Some((path, value?))).collect();
        Self { leaves, awaits_node }
    }

    fn answer(&self, request: &Request) -> Response<Body> {
        let Some(path) = request.path.as_str().strip_prefix("/computeMetadata/v1/") else {
            return missing(request);
        };
        if request.query.waits_for_change() {
            // Clients that watch a value ask again at once after an answer, and after an error later.
            return reply::sentence(
                StatusCode::BAD_REQUEST,
                "wait_for_change needs a metadata server, and this node has none.\n",
            );
        }
        if self.will_have(path, request.query.is_recursive()) {
            return not_yet(request);
        }
        let format = request.query.value(Param::Alt);
        if let Some(value) = self.leaves.get(path) {
            return if format == Some("json") {
                json(&json_of(path, value))
            } else {
                reply::local(StatusCode::OK, reply::APPLICATION_TEXT, value.to_string())
            };
        }
        if !path.is_empty() && !path.ends_with('/') {
            let is_directory = self.entries(&format!("{path}/")).next().is_some();
            return if is_directory { reply::directory_redirect(request) } else { missing(request) };
        }
        if self.entries(path).next().is_none() {
            return missing(request);
        }
        match (request.query.is_recursive(), format) {
            (false, None) => reply::local(StatusCode::OK, reply::APPLICATION_TEXT, self.listing(path)),
            (false, Some(_)) => {
                reply::sentence(StatusCode::BAD_REQUEST, "A listing has only one format; leave out `alt`.\n")
            }
            (true, Some("text")) => reply::local(StatusCode::OK, reply::APPLICATION_TEXT, self.lines(path)),
            (true, _) => json(&self.tree(path)),
        }
    }

    /// Whether an answer now would lack values of the node's object. Clients remember that a value was missing.
    fn will_have(&self, path: &str, is_recursive: bool) -> bool {
        let is_asked = |leaf: &str| path == leaf || is_recursive && leaf.starts_with(path);
        self.awaits_node && [ZONE, ID].into_iter().any(|leaf| !self.leaves.contains_key(leaf) && is_asked(leaf))
    }

    /// The entries below a directory: path, remaining path, and value.
    fn entries<'a>(&'a self, directory: &str) -> impl Iterator<Item = (&'static str, &'static str, &'a str)> {
        let below = move |path: &&'static str| path.strip_prefix(directory);
        self.leaves.iter().filter_map(move |(path, value)| Some((*path, below(path)?, &**value)))
    }

    fn listing(&self, directory: &str) -> String {
        let mut names: Vec<String> = self
            .entries(directory)
            .map(|(_, below, _)| below.split_once('/').map_or_else(|| below.to_owned(), |(name, _)| format!("{name}/")))
            .collect();
        names.extend(ACCOUNTS.strip_prefix(directory).filter(|rest| rest.matches('/').count() == 1).map(str::to_owned));
        names.sort_unstable();
        names.dedup();
        names.iter().flat_map(|name| [name, "\n"]).collect()
    }

    fn lines(&self, directory: &str) -> String {
        self.entries(directory).flat_map(|(_, below, value)| [below, " ", value, "\n"]).collect()
    }

    fn tree(&self, directory: &str) -> Value {
        let mut tree = Map::new();
        for (path, below, value) in self.entries(directory) {
            let mut at = &mut tree;
            let mut parent = directory.to_owned();
            let mut names = below.split('/').peekable();
            while let Some(name) = names.next() {
                let key = if parent == ATTRIBUTES { name.to_owned() } else { camel_case(name) };
                if names.peek().is_none() {
                    at.insert(key, json_of(path, value));
                    break;
                }
                parent.extend([name, "/"]);
                let child = at.entry(key).or_insert_with(|| Value::Object(Map::new()));
                let Value::Object(child) = child else { break };
                at = child;
            }
        }
        Value::Object(tree)
    }
}

impl Named {
    /// The zone as the metadata server returns it: with its project, if that is known.
    fn full_zone(&self) -> Option<String> {
        let zone = self.zone.as_ref()?;
        let number = self.numeric_project_id.map(|number| number.to_string());
        let project = number.as_deref().or(self.project_id.as_deref());
        Some(project.map_or_else(|| format!("zones/{zone}"), |project| format!("projects/{project}/zones/{zone}")))
    }
}

/// The number for a UID or name: the same in every version of the proxy (FNV-1a), and positive also for clients with
/// signed integers.
fn number_of(text: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step) >> 1
}

fn json_of(path: &str, value: &str) -> Value {
    let number = NUMBERS.contains(&path).then(|| value.parse::<u64>().ok()).flatten();
    number.map_or_else(|| Value::from(value), Value::from)
}

fn json(value: &Value) -> Response<Body> {
    reply::local(StatusCode::OK, JSON, value.to_string())
}

fn missing(request: &Request) -> Response<Body> {
    let path = &request.path;
    let sentence = format!("{path} is not known: this node has no metadata server (--upstream none).\n");
    reply::sentence(StatusCode::NOT_FOUND, sentence)
}

/// The answer while the node's object is not known. The message is not that of a missing value: clients retry after
/// 503.
fn not_yet(request: &Request) -> Response<Body> {
    let path = &request.path;
    let sentence =
        format!("{path} is not known yet: the API server has not described this node; try again in a second.\n");
    let mut answer = reply::sentence(StatusCode::SERVICE_UNAVAILABLE, sentence);
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// `numeric-project-id` as `numericProjectId`.
fn camel_case(name: &str) -> String {
    let mut words = name.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |camel, word| {
        let mut letters = word.chars();
        camel
            + &letters.next().map(|first| first.to_ascii_uppercase()).into_iter().collect::<String>()
            + letters.as_str()
    })
}

#[cfg(test)]
mod tests;
