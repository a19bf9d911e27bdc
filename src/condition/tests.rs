use std::time::Duration;

use http::StatusCode;

use super::*;
use crate::door_probe::DoorTrouble;
use crate::readiness::{State, TokenUsers, Trouble};
use identity::CredentialStatus;
use proxy::layers::conceal::Mode;
use proxy::layers::leaves::Leaf;
use telemetry::minute::Tally;
use telemetry::requests::Requests;
use telemetry::shedding::{Shed, Shedding};

/// A proxy that is well.
fn well() -> Seen {
    let policy = PolicySeen { source: "/p.yaml".to_owned(), mode: Mode::Enforce, served: 0, rejected: None };
    Seen {
        state: State::Ready,
        troubles: Vec::new(),
        policy,
        minute: Tally::default(),
        busiest: None,
        redirect: None,
        watch_error: None,
        state_error: None,
        credential: Some(CredentialStatus { state: "confined", findings: Vec::new() }),
    }
}

fn troubled(trouble: Trouble) -> Seen {
    Seen { state: State::Degraded(trouble.to_string()), troubles: vec![trouble], ..well() }
}

fn upstream(seconds: u64) -> Seen {
    troubled(Trouble::Upstream { failure: "closed".to_owned(), lasts: Duration::from_secs(seconds) })
}

fn token(expires_in: u32) -> Seen {
    troubled(Trouble::Token { failure: "closed".to_owned(), is_refused: false, expires_in, users: TokenUsers::All })
}

fn overloaded() -> Tally {
    let shedding = Shedding::default();
    for _ in 0..3 {
        shedding.shed(Shed::InFlight, None);
    }
    Tally::of(&Requests::default(), &shedding)
}

#[test]
fn each_state_has_its_condition_its_fact_and_what_to_do() {
    use Condition::{Degraded, Failing};
    let silent = || troubled(Trouble::Identity("identity: silent".to_owned()));
    let policy = || well().policy;
    let door = ([10, 0, 0, 1], 988).into();
    let refused = Leaf::all().next().map(|leaf| (leaf, StatusCode::FORBIDDEN));
    let credential = |state| Some(CredentialStatus { state, findings: vec!["why".to_owned()] });
    for (seen, topic, condition) in [
        (Seen { state: State::Starting, ..well() }, Topic::Readiness, Degraded),
        (Seen { state: State::Draining, ..well() }, Topic::Readiness, Degraded),
        (Seen { state: State::Unable("no list".to_owned()), ..well() }, Topic::Readiness, Failing),
        (troubled(Trouble::Door(DoorTrouble::Silent { door, failures: 2 })), Topic::Door, Failing),
        (troubled(Trouble::Door(DoorTrouble::Gone(door))), Topic::Door, Failing),
        (troubled(Trouble::Cold(None)), Topic::Warmup, Degraded),
        (troubled(Trouble::Cold(refused)), Topic::Warmup, Degraded),
        (upstream(59), Topic::MetadataServer, Degraded),
        (upstream(60), Topic::MetadataServer, Failing),
        (token(100), Topic::NodeToken, Degraded),
        (token(0), Topic::NodeToken, Failing),
        (silent(), Topic::Identity, Degraded),
        (Seen { minute: Tally { unidentified: 1, ..Tally::default() }, ..silent() }, Topic::Identity, Failing),
        (Seen { minute: Tally { unidentified: 1, ..Tally::default() }, ..well() }, Topic::Unidentified, Degraded),
        (Seen { minute: Tally { unread_account: 1, ..Tally::default() }, ..well() }, Topic::UnreadAccount, Degraded),
        (Seen { state_error: Some("Read-only file system".to_owned()), ..well() }, Topic::StateDir, Degraded),
        (Seen { minute: Tally { no_token: 1, ..Tally::default() }, ..well() }, Topic::Tokens, Degraded),
        (Seen { minute: Tally { panics: 1, ..Tally::default() }, ..well() }, Topic::Panics, Degraded),
        (Seen { policy: PolicySeen { mode: Mode::Audit, ..policy() }, ..well() }, Topic::PolicyMode, Degraded),
        (
            Seen {
                policy: PolicySeen { rejected: Some(("7:1: no".to_owned(), Duration::ZERO)), ..policy() },
                ..well()
            },
            Topic::PolicyFile,
            Degraded,
        ),
        (Seen { minute: overloaded(), ..well() }, Topic::Overload, Degraded),
        (Seen { redirect: Some("no nft".to_owned()), ..well() }, Topic::Redirect, Failing),
        (Seen { credential: credential("missing"), ..well() }, Topic::Credential, Degraded),
        (Seen { credential: credential("dangerous"), ..well() }, Topic::Credential, Degraded),
    ] {
        let facts = facts(&seen);
        let first = facts.first().unwrap_or_else(|| panic!("nothing is said of {seen:?}"));
        assert_eq!((first.topic, first.verdict, Condition::of(&facts)), (topic, condition, condition), "{first}");
        assert!(first.advice.is_some() || !first.looks.is_empty(), "nothing to do: {first}");
        let written = serde_json::to_value(&facts).expect("JSON");
        assert_eq!(serde_json::from_value::<Vec<Fact>>(written).expect("JSON"), facts);
    }
    assert_eq!(facts(&well()), []);
    for provoked in
        [Tally { account_refused: 1000, ..Tally::default() }, Tally { server_failed: 1000, ..Tally::default() }]
    {
        let facts = facts(&Seen { minute: provoked, ..well() });
        assert_eq!((facts.len(), Condition::of(&facts)), (1, Condition::Ok), "one pod can provoke it");
    }
    let failed = Tally { server_failed: 1, ..Tally::default() };
    assert_eq!(facts(&Seen { minute: failed, ..upstream(59) }).len(), 1, "one fact about the server is enough");
    let requests = Tally { requests: 9, refused: 9, ..Tally::default() };
    assert_eq!(facts(&Seen { minute: requests, ..well() }), [], "the policy refuses as it should");
}

#[test]
fn a_rejected_policy_says_what_a_restart_does_and_quotes_the_mistake() {
    let rejected = Some(("/p.yaml:7:1: unknown field".to_owned(), Duration::from_secs(300)));
    let seen = Seen { policy: PolicySeen { rejected, ..well().policy }, ..well() };
    let text = facts(&seen)[0].to_string();
    for part in
        ["DEGRADED policy /p.yaml: ", "5 min 0 s ago", "a restart fails (exit code 1)", "it said: /p.yaml:7:1: "]
    {
        assert!(text.contains(part), "{part} is missing from {text}");
    }
}

#[test]
fn an_overload_names_reasons_and_the_busiest_client_but_not_for_anybody() {
    let seen =
        Seen { minute: overloaded(), busiest: Some("the client shed most is shop/a (10.8.0.5)".to_owned()), ..well() };
    let fact = facts(&seen).remove(0);
    let text = fact.to_string();
    assert!(text.contains("in the last minute, 3 requests or connections were shed: in_flight 3"), "{text}");
    assert!(text.contains("it said: the client shed most is shop/a (10.8.0.5)"), "{text}");
    assert!(!for_anybody(fact).to_string().contains("10.8.0.5"));
}

#[test]
fn late_turns_are_not_counted_as_requests_that_were_shed() {
    let turns = |late, shed| {
        let by_shed = Shed::ALL.map(|reason| match reason {
            Shed::CpuShare => late,
            Shed::InFlight => shed,
            _ => 0,
        });
        facts(&Seen { minute: Tally { by_shed, ..Tally::default() }, ..well() }).remove(0).to_string()
    };
    let both = turns(18_000, 7);
    assert!(
        both.contains("7 requests or connections were shed: in_flight 7; 18000 turns of connections came late"),
        "{both}"
    );
    let late = turns(18_000, 0);
    assert!(late.contains("in the last minute, 18000 turns") && !late.contains("were shed"), "{late}");
}

#[test]
fn pods_that_need_the_node_s_token_are_named_but_not_for_anybody() {
    let users = TokenUsers::Only(vec!["kube-system/agent-1".to_owned(), "kube-system/agent-2".to_owned()]);
    let lost = Trouble::Token { failure: "closed".to_owned(), is_refused: false, expires_in: 0, users };
    let fact = facts(&troubled(lost)).remove(0);
    let text = fact.to_string();
    assert!(text.contains("it is used by kube-system/agent-1, kube-system/agent-2 (--passthrough)"), "{text}");
    let public = for_anybody(fact).to_string();
    assert!(public.contains("needed by 2 pods") && !public.contains("agent"), "{public}");
}

#[test]
fn a_silent_api_server_is_quoted_but_not_for_anybody() {
    let error = "the API server answered 403 Forbidden: pods is forbidden";
    let silent = || troubled(Trouble::Identity("identity: silent".to_owned()));
    for state in [State::Unable("no list".to_owned()), silent().state] {
        let troubles = if state.is_ready() { silent().troubles } else { Vec::new() };
        let fact = facts(&Seen { state, troubles, watch_error: Some(error.to_owned()), ..well() }).remove(0);
        assert!(fact.to_string().contains(&format!("it said: {error}")), "{fact}");
        assert!(!for_anybody(fact).to_string().contains("Forbidden"));
    }
}

#[test]
fn the_worst_comes_first() {
    let seen = Seen { policy: PolicySeen { mode: Mode::Audit, ..well().policy }, ..upstream(3600) };
    let topics: Vec<Topic> = facts(&seen).iter().map(|fact| fact.topic).collect();
    assert_eq!(topics, [Topic::MetadataServer, Topic::PolicyMode]);
}
