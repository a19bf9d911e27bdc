//! [`Proxy`]: what a running proxy says of a pod. Broken set-ups that only it knows of.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::api::{ACCOUNT, NAMESPACE, POD};
use super::cases::{Case, case};
use super::ward::Ward;
use super::{Verdict, judge};
use crate::doctor::Step;

/// The listener for operators of a running proxy.
pub(super) struct Proxy {
    pub(super) addr: SocketAddr,
    answer: Arc<Mutex<(u16, String)>>,
}

impl Proxy {
    /// It knows the pod.
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("bound");
        let proxy = Self { addr, answer: Arc::default() };
        proxy.takes_it_for(&taken_for(&format!("{NAMESPACE}/{POD}"), false));
        let answer = Arc::clone(&proxy.answer);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = Arc::clone(&answer);
                let service = service_fn(move |request: Request<Incoming>| {
                    assert_eq!(request.uri().query(), Some("pod=shop%2Fcheckout-7d9c&format=json"));
                    let (status, body) = answer.lock().expect("no panic").clone();
                    let response = Response::builder().status(status).body(Full::<Bytes>::from(body));
                    async move { Ok::<_, Infallible>(response.expect("a response")) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        proxy
    }

    fn says(&self, status: u16, body: impl Into<String>) {
        *self.answer.lock().expect("no panic") = (status, body.into());
    }

    /// At its only address.
    fn takes_it_for(&self, taken: &Value) {
        let whois = json!({"addresses": [["10.8.0.5", taken]], "without": null, "evidence": [["kernel", "shows it"]]});
        self.says(200, whois.to_string());
    }
}

fn taken_for(pod: &str, passthrough: bool) -> Value {
    json!({"pod": {"pod": pod, "account": ACCOUNT, "evidence": "kernel", "passthrough": passthrough}})
}

/// All else is well in these.
fn of_the_proxy() -> Vec<Case> {
    vec![
        case(
            "the proxy does not know the pod",
            |ward| {
                ward.proxy.takes_it_for(&json!({"unknown": "no process on this node has it in a pod's network"}));
            },
            Step::Proxy,
            "its requests from 10.8.0.5 get 503: no process on this node has it",
            "kubectl get pod checkout-7d9c --namespace=shop",
        ),
        case(
            "the proxy sees no address",
            |ward| {
                let none = json!({"addresses": [], "without": "none yet: it has no address", "evidence": []});
                ward.proxy.says(200, none.to_string());
            },
            Step::Proxy,
            "it takes the pod for nobody: none yet: it has no address",
            "kubectl get pod",
        ),
        case(
            "another pod has the address",
            |ward| ward.proxy.takes_it_for(&taken_for("shop/other", false)),
            Step::Proxy,
            "it takes requests from 10.8.0.5 for those of the pod shop/other",
            "kubectl get pod",
        ),
        case(
            "the address is the node's",
            |ward| ward.proxy.takes_it_for(&json!("node")),
            Step::Proxy,
            "it takes requests from 10.8.0.5 for the node's",
            "kubectl get pod",
        ),
        case(
            "the running proxy has another --passthrough",
            |ward| ward.proxy.takes_it_for(&taken_for("shop/checkout-7d9c", true)),
            Step::Proxy,
            "it takes requests from 10.8.0.5 for the node's",
            "kubectl get pod",
        ),
        case(
            "the running proxy identifies nobody",
            |ward| ward.proxy.says(404, "Pods are not identified; see --workload-identity.\n"),
            Step::Proxy,
            "the proxy knows no pods",
            "start the proxy with --workload-identity",
        ),
    ]
}

#[tokio::test]
async fn a_pod_that_the_running_proxy_does_not_know_gets_no_tokens() {
    for (number, case) in of_the_proxy().into_iter().enumerate() {
        let mut ward = Ward::healthy(case.kind, &format!("proxy-{number}")).await;
        (case.breaks)(&mut ward);
        let report = ward.examine().await;
        println!("{}: {}", case.name, report.conclusion());
        judge(&case, &report).unwrap_or_else(|what| panic!("{}: {what} in\n{report}", case.name));
    }
}

#[tokio::test]
async fn a_proxy_that_is_not_reached_is_not_said_to_know_the_pod() {
    let mut ward = Ward::healthy(super::Kind::Provider, "no-proxy").await;
    ward.proxy.says(200, "of another version");
    let report = ward.examine().await;
    assert!(report.conclusion().contains("if the proxy knows them, which was not seen: its answer has"), "{report}");
    ward.proxy.says(403, "Only available from this machine, through its loopback address.\n");
    let report = ward.examine().await;
    let refuses = "if the proxy knows them, which was not seen: it refuses to say: Only available from this machine";
    assert!(report.conclusion().contains(refuses) && report.exit_code() == 0, "{report}");
    ward.proxy.addr = ([127, 0, 0, 1], 9).into();
    let report = ward.examine().await;
    let step = report.findings().iter().find(|finding| finding.topic == Step::Proxy).expect("it is said");
    assert_eq!((step.verdict, report.exit_code()), (Verdict::Warning, 0), "{report}");
    assert!(step.seen.contains("not seen: cannot reach the proxy at 127.0.0.1:9"), "{report}");
    assert!(report.conclusion().contains("if the proxy knows them, which was not seen"), "{report}");
}
