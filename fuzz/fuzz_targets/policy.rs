//! A policy file: whatever it holds, it is a policy or a mistake with a place, within bounds of time and memory; and a
//! policy judges.
#![no_main]

use protocol::metadata::{MetadataPath, Query, Request};
use proxy::policy::{Choice, LoadError};
use libfuzzer_sys::fuzz_target;

const TARGETS: [&str; 4] = [
    "/computeMetadata/v1/instance/attributes/kube-env",
    "/computeMetadata/v1/instance/service-accounts/default/?recursive=true",
    "/0.1/meta-data/a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/t/u/v/w/x/y/z/",
    "/computeMetadata/v1/-/--/a-b/A-B?alt=text",
];

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Choice::default().compile(text) {
        Ok(policy) => {
            for target in TARGETS {
                let target: http::uri::PathAndQuery = target.parse().expect("a target");
                let path = MetadataPath::parse(&target).expect("a path");
                let request = Request::get(path, Query::parse(target.query()).expect("a query"));
                let _ = policy.judge(&request);
            }
        }
        Err(LoadError::Invalid { line, column, what, .. }) => {
            assert!(line >= 1 && column >= 1 && !what.is_empty());
        }
        Err(error) => panic!("{error}"),
    }
});
