//! The decision, as a table.

use super::*;

const BEGAN: u64 = 1_000_000_000_000;

fn uid(number: u8) -> PodUid {
    PodUid::parse(&format!("{number:032x}")).expect("32 digits")
}

fn pod(number: u8) -> Pod {
    Pod {
        uid: uid(number),
        namespace: "a".into(),
        name: format!("p{number}").into(),
        account: "app".into(),
        host_network: false,
        ended: false,
        terminating: false,
        created: 0,
        addresses: Vec::new(),
    }
}

fn sandbox(number: u8) -> Sandbox {
    Sandbox { uid: uid(number), began: BootTime::from_nanos(BEGAN) }
}

/// The evidence, and by default a connection that was accepted a second after the sandboxes began.
struct Case {
    holders: &'static [u8],
    /// The one that the connection's interface leads to.
    lead: Option<u8>,
    /// Those that have or had it.
    recent: &'static [u8],
    /// The one that began a second before the others.
    eldest: u8,
    reported: &'static [u8],
    /// Since when.
    since: Option<u64>,
    known: Vec<Pod>,
    anchor: Anchor,
    api_age: Duration,
    is_answered: bool,
    attest: Attest,
    accepted: u64,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            holders: &[],
            lead: None,
            recent: &[],
            eldest: 0,
            reported: &[],
            since: Some(BEGAN),
            known: vec![pod(1), pod(2), pod(3)],
            anchor: Anchor::None,
            api_age: Duration::ZERO,
            is_answered: true,
            attest: Attest::Prefer,
            accepted: BEGAN + 1_000_000_000,
        }
    }
}

impl Case {
    fn decide(&self) -> Result<(PodUid, Witness), NoOwner> {
        let began = |number| BootTime::from_nanos(if number == self.eldest { BEGAN - 1_000_000_000 } else { BEGAN });
        let of = |number| Sandbox { began: began(number), ..sandbox(number) };
        let [holders, recent] =
            [self.holders, self.recent].map(|these| these.iter().copied().map(of).collect::<Vec<_>>());
        let known_as = |number| self.known.iter().find(|pod| pod.uid == uid(number)).cloned();
        let reported = self.reported.iter().map(|number| known_as(*number).unwrap_or_else(|| pod(*number)));
        let since = self.since.map(BootTime::from_nanos);
        let reported: Vec<_> = reported.map(|pod| Reported { pod: Arc::new(pod), since }).collect();
        let evidence = Evidence {
            addr: "10.8.0.5".parse().expect("an address"),
            holders: &holders,
            lead: self.lead.map(of),
            recent: &recent,
            reported: &reported,
            api_age: self.api_age,
            is_answered: self.is_answered,
            attest: self.attest,
            accepted: BootTime::from_nanos(self.accepted),
            now: BootTime::from_nanos(self.accepted),
        };
        let known = |uid| self.known.iter().find(|pod| pod.uid == uid).cloned().map(Arc::new);
        decide(&evidence, known, |_| self.anchor).map(|owner| (owner.pod.uid, owner.by))
    }

    fn owner(&self) -> Option<(PodUid, Witness)> {
        self.decide().ok()
    }

    fn missing(&self) -> Missing {
        match self.decide() {
            Err(NoOwner::Unidentified(missing)) => missing,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_kernel_is_believed_before_the_api_server() {
    for reported in [&[][..], &[1], &[2], &[2, 3]] {
        let case = Case { holders: &[1], reported, ..Case::default() };
        assert_eq!(case.owner(), Some((uid(1), Witness::Kernel)), "{reported:?}");
        // The API server's age and --attest do not matter.
        let case = Case { api_age: Duration::from_secs(3600), attest: Attest::Kernel, ..case };
        assert_eq!(case.owner(), Some((uid(1), Witness::Kernel)));
    }
}

#[test]
fn a_uid_that_the_api_server_does_not_report_as_a_running_pod_is_nobody() {
    let known = |change: fn(&mut Pod)| {
        let mut pod = pod(1);
        change(&mut pod);
        Case { holders: &[1], reported: &[2], known: vec![pod, self::pod(2)], ..Case::default() }
    };
    let missing = Missing::Pod { uid: uid(1).to_string() };
    assert_eq!(Case { holders: &[1], reported: &[2], known: vec![pod(2)], ..Case::default() }.missing(), missing);
    assert_eq!(known(|pod| pod.ended = true).missing(), missing);
    assert_eq!(known(|pod| pod.host_network = true).missing(), missing);
    assert_eq!(known(|pod| pod.account = "".into()).missing(), missing, "a static pod");
    assert_eq!(known(|pod| pod.terminating = true).owner(), Some((uid(1), Witness::Kernel)), "it is still itself");
}

#[test]
fn of_a_pod_that_began_while_the_api_server_does_not_answer_nobody_says_that_it_is_not_reported() {
    let silent = |holders, known| {
        let api_age = Duration::from_secs(40);
        Case { holders, known, api_age, is_answered: false, ..Case::default() }
    };
    let missing = silent(&[1], vec![]).missing();
    assert_eq!(missing, Missing::Answer { uid: Some(uid(1).to_string()), silence: Some(40) });
    let text = missing.to_string();
    assert!(text.ends_with("and the API server has not answered for 40 s") && !text.contains("reports no"), "{text}");
    let never = Case { api_age: Duration::MAX, ..silent(&[], vec![]) }.missing();
    assert!(never.to_string().ends_with("and the API server has not answered yet"), "{never}");
    assert_eq!(silent(&[1], vec![pod(1)]).owner(), Some((uid(1), Witness::Kernel)), "a known pod is itself");
}

#[test]
fn a_static_pod_is_nobody_and_is_named() {
    let missing = Missing::Account { pod: "a/p2".to_owned() };
    let mirror = || Pod { account: "".into(), ..pod(2) };
    // The kernel has the UID that the kubelet has derived from the file.
    let case = Case { holders: &[9], reported: &[2], known: vec![mirror()], ..Case::default() };
    assert_eq!(case.missing(), missing);
    let bare = Anchor::Bare(sandbox(2));
    assert_eq!(Case { holders: &[], anchor: bare, ..case }.missing(), missing);
    // Only the message changes: a known pod stays known, and of several none is named.
    let known = || vec![pod(1), mirror()];
    assert_eq!(
        Case { holders: &[1], reported: &[2], known: known(), ..Case::default() }.owner(),
        Some((uid(1), Witness::Kernel))
    );
    assert_eq!(
        Case { holders: &[9], reported: &[1, 2], known: known(), ..Case::default() }.missing(),
        Missing::Pod { uid: uid(9).to_string() }
    );
}

#[test]
fn several_claims_are_decided_by_the_api_server_or_not_at_all() {
    let case = |reported| Case { holders: &[1, 2], eldest: 1, reported, ..Case::default() };
    assert_eq!(case(&[2]).owner(), Some((uid(2), Witness::Kernel)));
    assert_eq!(case(&[2, 3]).owner(), Some((uid(2), Witness::Kernel)), "3 has no such address");
    for reported in [&[][..], &[3], &[1, 2]] {
        assert_eq!(case(reported).missing(), Missing::Decision { claims: 2 }, "{reported:?}");
    }
}

#[test]
fn a_connection_is_of_the_network_that_its_interface_leads_to_whoever_else_has_its_address() {
    for reported in [&[][..], &[1], &[2], &[1, 2]] {
        for lead in [1, 2] {
            let case =
                Case { holders: &[1, 2], recent: &[1, 2], eldest: 1, reported, lead: Some(lead), ..Case::default() };
            assert_eq!(case.owner(), Some((uid(lead), Witness::Kernel)), "{reported:?}");
        }
    }
    let young = Case { holders: &[1], lead: Some(1), accepted: BEGAN, ..Case::default() };
    assert_eq!(young.decide(), Err(NoOwner::Outdated));
    let ended = Case { holders: &[2], lead: Some(1), ..Case::default() };
    assert_eq!(ended.owner(), Some((uid(2), Witness::Kernel)), "its own sandbox has lost the address");
    let unreported = Case { holders: &[1, 9], lead: Some(9), ..Case::default() };
    assert_eq!(unreported.missing(), Missing::Pod { uid: uid(9).to_string() });
}

#[test]
fn a_younger_claim_that_was_not_reported_yet_may_be_the_right_one() {
    let case = || Case { holders: &[1, 2], eldest: 1, reported: &[1], ..Case::default() };
    assert_eq!(case().missing(), Missing::Decision { claims: 2 });
    assert_eq!(Case { eldest: 0, ..case() }.missing(), Missing::Decision { claims: 2 }, "in the same tick");
    // The younger one was given another address, so it gave itself this one.
    let thief = Pod { addresses: vec!["10.8.0.9".parse().expect("an address")], ..pod(2) };
    assert_eq!(Case { known: vec![pod(1), thief], ..case() }.owner(), Some((uid(1), Witness::Kernel)));
}

#[test]
fn an_address_of_a_pod_without_addresses_of_its_own_cannot_be_taken_over() {
    let case = |anchor| Case { holders: &[2], reported: &[1], anchor, ..Case::default() };
    assert_eq!(case(Anchor::Bare(sandbox(1))).missing(), Missing::Decision { claims: 2 });
    assert_eq!(case(Anchor::None).owner(), Some((uid(2), Witness::Kernel)), "it has ended");
}

/// Its containers live on, and a younger pod has given itself the address.
#[test]
fn a_connection_by_the_interface_of_a_pod_whose_sandbox_died_is_not_another_pods() {
    let case = |lead| Case { holders: &[2], recent: &[1, 2], eldest: 1, lead, ..Case::default() };
    assert_eq!(case(Some(1)).missing(), Missing::Decision { claims: 2 });
    for lead in [None, Some(2)] {
        assert_eq!(case(lead).owner(), Some((uid(2), Witness::Kernel)), "{lead:?}: an heir");
    }
}

#[test]
fn an_address_that_had_passed_to_a_younger_pod_does_not_fall_back_when_that_one_dies() {
    let by_kernel = |eldest| Case { holders: &[1], recent: &[1, 2], eldest, ..Case::default() };
    let by_api = |eldest| {
        let began = BootTime::from_nanos(if eldest == 1 { BEGAN - 1_000_000_000 } else { BEGAN });
        let anchor = Anchor::Bare(Sandbox { began, ..sandbox(1) });
        Case { recent: &[2], eldest, reported: &[1], anchor, ..Case::default() }
    };
    for (case, witness) in [(by_kernel as fn(u8) -> Case, Witness::Kernel), (by_api, Witness::Api)] {
        assert_eq!(case(1).missing(), Missing::Decision { claims: 2 });
        assert_eq!(Case { reported: &[1], ..case(1) }.missing(), Missing::Decision { claims: 2 }, "an old report");
        assert_eq!(case(2).owner(), Some((uid(1), witness)), "the other one had it before");
        assert_eq!(Case { recent: &[1], ..case(1) }.owner(), Some((uid(1), witness)), "itself");
    }
    let thief = Pod { addresses: vec!["10.8.0.9".parse().expect("an address")], ..pod(1) };
    let of_thief = Case { known: vec![thief], ..by_kernel(2) };
    assert_eq!(of_thief.missing(), Missing::Decision { claims: 2 }, "a younger one that gave it to itself");
    assert_eq!(
        Case { recent: &[1], ..of_thief }.owner(),
        Some((uid(1), Witness::Kernel)),
        "a second network of its own"
    );
}

#[test]
fn a_younger_pod_that_hides_a_reported_address_leaves_it_to_nobody() {
    let hidden = |anchor| Case { holders: &[1], recent: &[1], reported: &[2], eldest: 1, anchor, ..Case::default() };
    assert_eq!(hidden(Anchor::Networked(sandbox(2))).missing(), Missing::Decision { claims: 2 });
    let older = Sandbox { began: BootTime::from_nanos(BEGAN - 2_000_000_000), ..sandbox(2) };
    for anchor in [Anchor::Networked(older), Anchor::None] {
        assert_eq!(hidden(anchor).owner(), Some((uid(1), Witness::Kernel)), "{anchor:?}: an old report");
    }
}

#[test]
fn the_api_server_alone_is_believed_about_a_pod_without_addresses_of_its_own() {
    let bare = || Case { reported: &[1], anchor: Anchor::Bare(sandbox(1)), ..Case::default() };
    assert_eq!(bare().owner(), Some((uid(1), Witness::Api)));
    let later = BEGAN + 7_200_000_000_000;
    let silent = |api_age| Case { api_age, accepted: later, ..bare() };
    assert_eq!(silent(MAX_API_AGE).owner(), Some((uid(1), Witness::Api)));

    let doubt = |because| Missing::Confirmation { pod: "a/p1".to_owned(), because };
    let late = MAX_API_AGE + Duration::from_secs(1);
    assert_eq!(silent(late).missing(), doubt(Doubt::Stale(1801)));
    assert_eq!(Case { attest: Attest::Kernel, ..bare() }.missing(), doubt(Doubt::Required));
    // The pod has ended, or has other addresses: this one may already be another's.
    for anchor in [Anchor::None, Anchor::Networked(sandbox(1))] {
        assert_eq!(Case { anchor, ..bare() }.missing(), doubt(Doubt::Contradicted));
    }
    assert_eq!(Case { reported: &[1, 2], ..bare() }.missing(), Missing::Decision { claims: 2 });
    assert_eq!(Case { reported: &[], ..bare() }.missing(), Missing::Claim);
}

/// A sandbox that was made again may have another address, and the one before be another pod's.
#[test]
fn the_api_server_alone_is_not_believed_about_a_younger_sandbox_until_it_has_had_time_to_report_it() {
    const SECOND: u64 = 1_000_000_000;
    let settled = BEGAN + u64::try_from(SETTLED.as_nanos()).expect("small");
    let unsettled = |left| Missing::Confirmation { pod: "a/p1".to_owned(), because: Doubt::Unsettled(left) };
    for since in [None, Some(BEGAN - 1)] {
        let asked = |accepted, api_age| {
            let anchor = Anchor::Bare(sandbox(1));
            Case { reported: &[1], since, anchor, accepted, api_age, ..Case::default() }
        };
        for (accepted, silent, left) in [(BEGAN + SECOND, 0, 29), (settled - 1, 0, 1), (settled + 59 * SECOND, 60, 0)] {
            let missing = asked(accepted, Duration::from_secs(silent)).missing();
            assert_eq!(missing, unsettled(left), "{since:?} {accepted}");
        }
        for (accepted, silent) in [(settled, 0), (settled + 60 * SECOND, 60)] {
            let owner = asked(accepted, Duration::from_secs(silent)).owner();
            assert_eq!(owner, Some((uid(1), Witness::Api)), "{since:?} {accepted}");
        }
    }
}

#[test]
fn a_connection_that_may_be_older_than_the_sandbox_is_outdated() {
    let tick = u64::try_from(TICK.as_nanos()).expect("small");
    for anchor in [None, Some(Anchor::Bare(sandbox(1)))] {
        let at = |accepted| match anchor {
            None => Case { holders: &[1], accepted, ..Case::default() }.decide(),
            Some(anchor) => Case { reported: &[1], anchor, accepted, ..Case::default() }.decide(),
        };
        for accepted in [0, BEGAN - 1, BEGAN, BEGAN + tick - 1] {
            assert_eq!(at(accepted), Err(NoOwner::Outdated), "{accepted}");
        }
        assert!(at(BEGAN + tick).is_ok());
    }
}
