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
mod tests {
    use http::header::CONTENT_TYPE;
    use http_body_util::BodyExt;

    use super::*;
    use protocol::metadata::{MetadataPath, Query};

    fn all() -> Named {
        Named {
            project_id: Some("shop".into()),
            numeric_project_id: Some(123),
            cluster_name: Some("one".into()),
            cluster_location: Some("europe-west3".into()),
            cluster_uid: Some("5f0c".into()),
            ..Named::default()
        }
    }

    async fn answer(values: &Values, target: &str) -> (u16, String, String) {
        let target: http::uri::PathAndQuery = format!("/computeMetadata/v1/{target}").parse().expect("a target");
        let query = Query::parse(target.query()).expect("a query");
        let response = values.answer(&Request::get(MetadataPath::parse(&target).expect("a path"), query));
        assert_eq!(response.headers()["metadata-flavor"], "Google");
        let content_type = response.headers()[CONTENT_TYPE].to_str().expect("text").to_owned();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("it is in memory").to_bytes();
        (status, content_type, String::from_utf8(body.to_vec()).expect("text"))
    }

    #[tokio::test]
    async fn what_is_given_is_answered_as_the_server_would() {
        let (text, json) = ("application/text", "application/json");
        for (target, content_type, expected) in [
            ("project/project-id", text, "shop"),
            ("project/numeric-project-id", text, "123"),
            ("project/numeric-project-id?alt=json", json, "123"),
            ("project/project-id?alt=json", json, "\"shop\""),
            ("instance/attributes/cluster-location", text, "europe-west3"),
            ("instance/attributes/cluster-uid", text, "5f0c"),
            ("", text, "instance/\nproject/\n"),
            ("instance/", text, "attributes/\nservice-accounts/\n"),
            ("project/", text, "numeric-project-id\nproject-id\n"),
            ("project/?recursive=true", json, r#"{"numericProjectId":123,"projectId":"shop"}"#),
            ("project/?recursive=true&alt=text", text, "numeric-project-id 123\nproject-id shop\n"),
            (
                "instance/?recursive=true",
                json,
                r#"{"attributes":{"cluster-location":"europe-west3","cluster-name":"one","cluster-uid":"5f0c"}}"#,
            ),
        ] {
            assert_eq!(
                answer(&Values::new(all()), target).await,
                (200, content_type.to_owned(), expected.to_owned()),
                "{target}"
            );
        }
        assert_eq!(answer(&Values::new(all()), "project").await.0, 301);
        assert_eq!(answer(&Values::new(all()), "project/?alt=json").await.0, 400);
    }

    #[tokio::test]
    async fn all_else_is_missing_and_says_why() {
        for target in
            ["instance/zone", "instance/service-accounts/default/token", "universe/universe-domain", "oslogin/"]
        {
            let (status, _, text) = answer(&Values::new(all()), target).await;
            assert_eq!(status, 404, "{target}");
            assert!(text.contains("--upstream none"), "{text}");
        }
        assert_eq!(answer(&Values::new(Named::default()), "project/project-id").await.0, 404);
        assert_eq!(answer(&Values::new(Named::default()), "project/").await.0, 404);
    }

    #[tokio::test]
    async fn the_instance_is_called_as_its_node() {
        let values = Values::of_node(all(), "node-1");
        assert!(values.awaits_node());
        for target in ["instance/zone", "instance/id", "?recursive=true", "instance/?recursive=true&alt=text"] {
            let (status, _, text) = answer(&values, target).await;
            assert_eq!(status, 503, "{target}");
            assert!(text.contains("not known yet") && !text.contains("metadata server"), "{text}");
        }
        for target in ["instance/name", "instance/hostname"] {
            assert_eq!(answer(&values, target).await.2, "node-1");
        }
        assert_eq!(answer(&values, "project/?recursive=true").await.0, 200);
        assert_eq!(answer(&values, "instance/").await.0, 200, "Node's library detects by it");

        values.know_node(Some("6f0a9d3e-5b1c-4c7e-9d51-0a1b2c3d4e5f"), Some("europe-west3-a"));
        let id = answer(&values, "instance/id").await.2;
        assert_eq!(answer(&values, "instance/zone").await.2, "projects/123/zones/europe-west3-a");
        assert_eq!(answer(&values, "instance/").await.2, "attributes/\nhostname\nid\nname\nservice-accounts/\nzone\n");
        let tree: Value = serde_json::from_str(&answer(&values, "instance/?recursive=true").await.2).expect("JSON");
        assert_eq!(tree["id"].as_u64().map(|id| id.to_string()), Some(id.clone()), "a number");
        assert!(tree["id"].as_i64().is_some_and(|id| id > 0) && tree["zone"] == "projects/123/zones/europe-west3-a");

        values.know_node(None, None);
        assert_ne!(answer(&values, "instance/id").await.2, id, "made of the name");
        assert_eq!(answer(&values, "instance/zone").await.0, 404);
    }

    #[tokio::test]
    async fn what_is_given_is_more_than_what_the_node_says() {
        let given = Named {
            project_id: Some("shop".into()),
            zone: Some("rack-1".into()),
            instance_name: Some("a".into()),
            instance_id: Some(7),
            ..Named::default()
        };
        let values = Values::of_node(given, "node-1");
        assert!(!values.awaits_node());
        values.know_node(Some("u"), Some("z"));
        for (target, expected) in
            [("instance/zone", "projects/shop/zones/rack-1"), ("instance/name", "a"), ("instance/id", "7")]
        {
            assert_eq!(answer(&values, target).await.2, expected);
        }
        // Without a cluster, a name is enough for a number.
        let alone = Values::new(Named { instance_name: Some("a".into()), ..Named::default() });
        assert_eq!(answer(&alone, "instance/id").await.0, 200);
        assert_eq!(answer(&Values::new(Named::default()), "instance/id").await.0, 404);
    }

    #[test]
    fn a_node_has_the_same_number_in_each_version() {
        assert_eq!(number_of("a"), 0xaf63_dc4c_8601_ec8c >> 1);
    }
}
