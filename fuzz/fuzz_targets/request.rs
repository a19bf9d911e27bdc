//! A request target: path, query and verdict. What goes upstream must read as what was judged.
#![no_main]

use std::sync::LazyLock;

use protocol::metadata::query::Param;
use protocol::metadata::{MetadataPath, Query, Request};
use proxy::policy::{Choice, Decision, Policy, Recursive, Source};
use http::Uri;
use libfuzzer_sys::fuzz_target;

static POLICIES: LazyLock<[Policy; 3]> = LazyLock::new(|| {
    [("compat", None), ("compat", Some(Recursive::Redact)), ("strict", None)]
        .map(|(name, recursive)| Choice { source: Source::parse(name), recursive }.load().expect("built in"))
});

/// Names that no spelling of may go upstream, as a server reads them that knows neither case, hyphens nor underscores.
const SECRETS: [&str; 6] = ["kubeenv", "sshkeys", "startupscript", "windowskeys", "userdata", "kubeconfig"];

fuzz_target!(|target: &[u8]| {
    // As hyper reads it.
    let Ok(uri) = Uri::try_from(target) else { return };
    let Some(target) = uri.path_and_query().filter(|target| target.as_str().starts_with('/')) else { return };
    let Ok(path) = MetadataPath::parse(target) else { return };
    assert_canonical(path.as_str());
    assert_eq!(again(path.as_str()).0, path);
    let Ok(query) = Query::parse(target.query()) else { return };
    for policy in &*POLICIES {
        let request = Request::get(path.clone(), query.clone());
        let sent = match policy.judge(&request) {
            Decision::Allow | Decision::Redact => policy.trim(query.clone()),
            Decision::Flat => policy.trim(query.clone()).without(Param::Recursive),
            Decision::Redirect | Decision::Conceal(_) => continue,
        };
        let (path_upstream, query_upstream) = again(&format!("{path}{sent}"));
        assert_eq!(path_upstream, path);
        assert_eq!(query_upstream.to_string(), sent.to_string());
        assert!(query_upstream.unknown().is_none());
        assert_no_secret(path.as_str());
        let is_cut = matches!(policy.judge(&Request::get(path_upstream, query_upstream)), Decision::Redact);
        assert!(is_cut || !sent.is_recursive(), "a recursive answer would be passed on whole");
    }
});

fn again(target: &str) -> (MetadataPath, Query) {
    let target = target.parse::<http::uri::PathAndQuery>().expect("what is sent is a target");
    let path = MetadataPath::parse(&target).expect("what is sent is a path");
    (path, Query::parse(target.query()).expect("what is sent is a query"))
}

fn assert_canonical(path: &str) {
    assert!(path.starts_with('/') && path.is_ascii());
    assert!(!path.contains("//") && !path.contains(['%', ';', '\\', '?', '#', ' ']), "{path}");
    assert!(!path.split('/').any(|name| name == "." || name == ".."), "{path}");
}

fn assert_no_secret(path: &str) {
    let names: Vec<String> = path.split('/').map(|name| name.to_ascii_lowercase().replace(['-', '_'], "")).collect();
    let names: Vec<&str> = names.iter().skip(1).map(String::as_str).collect();
    if let ["computemetadata", _, "instance" | "project", "attributes", key, ..]
    | ["0.1", "metadata", "attributes", key, ..] = names[..]
    {
        assert!(!SECRETS.contains(&key), "{path}");
    }
}
