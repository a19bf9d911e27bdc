//! Tokens that are bound to the certificate which a pod sends by POST.

use std::path::Path;
use std::sync::Arc;

use mock::google::{Authority, Endpoint, Subject, Workload};
use serde_json::{Value, json};

use crate::google::world_with_google;
use crate::kube::keys::openssl;
use crate::pod::{Asked, Pod};
use crate::support::needs::{Test, tests};
use crate::tokens::{linked_accounts, proxy, subject};

/// The tests of this module.
pub const TESTS: &[Test] = tests![a_token_is_bound_to_the_pods_own_certificate, without_the_flag_none_is];

const TOKEN: &str = "/computeMetadata/v1/instance/service-accounts/default/token";
const IDENTITY: &str = "/computeMetadata/v1/instance/service-accounts/default/identity?audience=https://a.example";
const OPT_OUT: &str = "GOOGLE_API_ENABLE_RUNTIME_BOUND_TOKEN=false";

/// The chain of a new certificate for an account of team-0. What the second one signed is not checked.
fn chain(account: &str) -> String {
    let name = format!("spiffe://agents.global.org-1.system.id.goog/ns/team-0/sa/{account}");
    let leaf = openssl(
        Path::new("/"),
        &format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -config /dev/null -subj /O=agents \
             -addext subjectAltName=critical,URI:{name} -keyout /dev/null"
        ),
    );
    leaf + Authority::USUAL.pem
}

/// Posts a body on a new connection, which goes on after the answer.
fn post(pod: &Arc<Pod>, target: &'static str, body: String) -> Asked {
    let text = pod.inside(move |pod| {
        let mut connection = pod.connect().expect("the proxy listens");
        let answer = connection.post(target, &body).expect("an answer");
        if !answer.starts_with("HTTP/1.1 503 ") {
            connection.ask("/whoami").expect("the connection goes on");
        }
        answer
    });
    Asked::read(text)
}

fn post_chain(pod: &Arc<Pod>, target: &'static str, chain: &str) -> Asked {
    post(pod, target, json!({ "certificate_chain": chain }).to_string())
}

/// What a token says of itself.
fn read(asked: &Asked) -> Subject {
    let token: Value = serde_json::from_str(&asked.body).unwrap_or_else(|_| panic!("{}", asked.text));
    Subject::read(token["access_token"].as_str().expect("a token")).expect("a token of the fake Google")
}

fn assert_not_found(asked: &Asked, why: &str) {
    assert_eq!(asked.status, 404, "{why}: {}", asked.text);
    assert!(asked.body.contains(why) && asked.body.contains(OPT_OUT), "{why}: {}", asked.body);
}

fn a_token_is_bound_to_the_pods_own_certificate() {
    let (world, mut api, google) = world_with_google();
    linked_accounts(&mut api, &google, 1);
    api.create_account("team-0", "plain");
    api.create_account("team-0", "node");
    let proxy = proxy(&world, &google, &["--bound-tokens", "--passthrough=team-0/node", "--audit"]);
    let pods = world.pods_of(&mut api, &["plain", "plain", "app-0", "node"]);
    let [pod, beside, linked, node] = &pods[..] else { unreachable!("there are four") };

    // A plain token before and after: neither is given in place of the other.
    let plain = subject(pod, "/default/token");
    assert_eq!(plain.bound_to, None);
    let own = chain("plain");
    let bound = read(&post_chain(pod, TOKEN, &own));
    assert_eq!(bound.workload, Workload::new("team-0", "plain"));
    let fingerprint = bound.bound_to.clone().expect("it is bound");
    assert_eq!(read(&post_chain(pod, TOKEN, &own)), bound, "from the cache");
    assert_eq!(subject(pod, "/default/token"), plain);
    let other = read(&post_chain(pod, TOKEN, &chain("plain")));
    assert!(other.bound_to.is_some_and(|other| other != fingerprint), "another certificate, another token");
    // A pod of the same account with this certificate would get the same, and no more of it.
    assert_eq!(read(&post_chain(beside, TOKEN, &own)), bound);
    let exchanges = || google.count_of(Endpoint::Sts, &Workload::new("team-0", "plain"));
    assert_eq!(exchanges(), 3, "one for all plain tokens, and one for each certificate");

    // What is not understood, and what is not its own.
    for (body, why) in [
        (String::new(), "in JSON"),
        (json!({ "certificate_chain": own.repeat(30) }).to_string(), "in JSON"),
        (json!({ "certificate_chain": "x" }).to_string(), "certificates in PEM"),
        (json!({ "certificate_chain": Authority::USUAL.pem }).to_string(), "exactly one URI"),
        (json!({ "certificate_chain": chain("app-0") }).to_string(), "not that of the pod's own"),
    ] {
        assert_not_found(&post(pod, TOKEN, body), why);
    }
    assert_not_found(&post_chain(pod, IDENTITY, &own), "identity tokens are not bound");
    assert_not_found(&post_chain(linked, TOKEN, &chain("app-0")), "linked to a Google account");
    assert_not_found(&post_chain(node, TOKEN, &chain("node")), "acts as the node");
    assert_eq!(exchanges(), 3);

    // A pod that makes up chains has four, and the pod beside it is served.
    let answers: Vec<_> = (0..20).map(|_| post_chain(pod, TOKEN, &chain("plain"))).collect();
    let refused: Vec<_> = answers.iter().filter(|asked| asked.status == 503).collect();
    assert_eq!((answers.iter().filter(|asked| asked.status == 200).count(), refused.len()), (2, 18));
    assert!(refused[0].body.contains("other certificates within the last hour"), "{}", refused[0].body);
    assert_eq!(exchanges(), 5);
    assert!(read(&post_chain(beside, TOKEN, &chain("plain"))).bound_to.is_some());
    assert_eq!(read(&post_chain(pod, TOKEN, &own)), bound);
    assert_eq!(subject(pod, "/default/token"), plain);
    let written = proxy.written().join("\n");
    assert!(written.contains(&format!("bound_to={fingerprint}")), "{written}");
}

fn without_the_flag_none_is() {
    let (world, mut api, google) = world_with_google();
    linked_accounts(&mut api, &google, 1);
    let _proxy = proxy(&world, &google, &["--prefetch=none"]);
    let pod = world.pod(&mut api, "pod-0", world.address(0));
    for target in [TOKEN, IDENTITY] {
        let asked = post_chain(&pod, target, &chain("app-0"));
        assert_not_found(&asked, "this server issues no tokens that are bound to a certificate");
    }
    assert_eq!(google.count(Endpoint::Sts), 0);
}
