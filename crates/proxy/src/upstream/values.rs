//! [`Values`]: what is configured where there is no metadata server. Pure.

use std::collections::BTreeMap;

use http::header::HeaderValue;
use http::{Response, StatusCode};
use serde_json::{Map, Value};

use crate::reply::{self, Body};
use protocol::metadata::Request;
use protocol::metadata::query::Param;

/// What pods read of the instance and the project on a machine that has no metadata server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values {
    /// By path, below the API version.
    leaves: BTreeMap<&'static str, Box<str>>,
}

/// What the metadata server has under these names.
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
}

/// The path that is a number in JSON.
const NUMERIC_PROJECT_ID: &str = "project/numeric-project-id";

/// The directory whose names are not converted in JSON.
const ATTRIBUTES: &str = "instance/attributes/";

/// Shown in listings, although its entries are answered elsewhere: pods' own accounts.
const ACCOUNTS: &str = "instance/service-accounts/";

const JSON: HeaderValue = HeaderValue::from_static("application/json");

impl Values {
    /// The values with these names.
    pub fn new(named: Named) -> Self {
        let Named { project_id, numeric_project_id, cluster_name, cluster_location, cluster_uid } = named;
        let leaves = [
            ("project/project-id", project_id),
            (NUMERIC_PROJECT_ID, numeric_project_id.map(|number| number.to_string().into())),
            ("instance/attributes/cluster-name", cluster_name),
            ("instance/attributes/cluster-location", cluster_location),
            ("instance/attributes/cluster-uid", cluster_uid),
        ];
        Self { leaves: leaves.into_iter().filter_map(|(path, value)| Some((path, value?))).collect() }
    }

    /// The values by name, as they were given.
    pub fn named(&self) -> Named {
        let text = |path: &str| self.leaves.get(path).cloned();
        Named {
            project_id: text("project/project-id"),
            numeric_project_id: self.leaves.get(NUMERIC_PROJECT_ID).and_then(|number| number.parse().ok()),
            cluster_name: text("instance/attributes/cluster-name"),
            cluster_location: text("instance/attributes/cluster-location"),
            cluster_uid: text("instance/attributes/cluster-uid"),
        }
    }

    /// The answer that a metadata server with these values would give.
    pub(super) fn answer(&self, request: &Request) -> Response<Body> {
        let Some(path) = request.path.as_str().strip_prefix("/computeMetadata/v1/") else {
            return missing(request);
        };
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

    /// What is below a directory: the rest of the path, and the value.
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

fn json_of(path: &str, value: &str) -> Value {
    let number = (path == NUMERIC_PROJECT_ID).then(|| value.parse::<u64>().ok()).flatten();
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

    fn all() -> Values {
        Values::new(Named {
            project_id: Some("shop".into()),
            numeric_project_id: Some(123),
            cluster_name: Some("one".into()),
            cluster_location: Some("europe-west3".into()),
            cluster_uid: Some("5f0c".into()),
        })
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
            assert_eq!(answer(&all(), target).await, (200, content_type.to_owned(), expected.to_owned()), "{target}");
        }
        assert_eq!(answer(&all(), "project").await.0, 301);
        assert_eq!(answer(&all(), "project/?alt=json").await.0, 400);
    }

    #[tokio::test]
    async fn all_else_is_missing_and_says_why() {
        for target in
            ["instance/zone", "instance/service-accounts/default/token", "universe/universe-domain", "oslogin/"]
        {
            let (status, _, text) = answer(&all(), target).await;
            assert_eq!(status, 404, "{target}");
            assert!(text.contains("--upstream none"), "{text}");
        }
        assert_eq!(answer(&Values::default(), "project/project-id").await.0, 404);
        assert_eq!(answer(&Values::default(), "project/").await.0, 404);
    }

    #[test]
    fn they_are_shown_as_given() {
        assert_eq!(Values::new(all().named()), all());
    }
}
