//! Times at which tokens are fetched that nobody has requested yet.

use std::collections::BTreeMap;

use http::{HeaderMap, StatusCode};

use super::super::tests::lab::{Does, GOOGLE_ACCOUNT, Lab};
use super::*;
use proxy::tokens::Refused;

fn account(number: u64) -> (WorkloadId, AccountKey) {
    (WorkloadId(number), ("a".into(), number.to_string().into()))
}

/// Begins everything that is planned. Returns the seconds after `began` at which each is due.
fn due(plan: &mut Plan, began: BootTime) -> Vec<u64> {
    let mut seconds = Vec::new();
    while let Some(next) = plan.next() {
        plan.begin().expect("there is a next one");
        seconds.push(next.since(began).as_secs());
    }
    seconds
}

#[test]
fn a_thousand_nodes_that_restart_stay_within_googles_quota() {
    let now = BootTime::now();
    let accounts: Vec<_> = (0..50).map(account).collect();
    let running: HashSet<_> = accounts.iter().map(|(_, key)| key.clone()).collect();
    let mut random = fastrand::Rng::with_seed(7);
    let mut by_minute = BTreeMap::<u64, usize>::new();
    for _ in 0..1000 {
        let mut plan = Plan::new(running.clone(), now);
        let jitter: Vec<f64> = (0..50).map(|_| random.f64()).collect();
        let next = std::cell::Cell::new(0);
        plan.take_in(&accounts, now, || jitter[next.replace(next.get() + 1)]);
        for seconds in due(&mut plan, now) {
            *by_minute.entry(seconds / 60).or_default() += 1;
        }
    }
    assert_eq!(by_minute.values().sum::<usize>(), 50_000);
    let most = by_minute.values().max().expect("ten minutes");
    assert!(*most <= 6_000, "{by_minute:?}");
}

#[test]
fn new_accounts_are_fetched_at_once_unless_there_are_many() {
    let now = BootTime::now();
    let mut plan = Plan::default();
    plan.take_in(&(0..30).map(account).collect::<Vec<_>>(), now, || 0.5);
    let seconds = due(&mut plan, now);
    assert_eq!((seconds.iter().filter(|at| **at == 0).count(), seconds[20..].to_vec()), (20, vec![15; 10]));
    // Known accounts are not planned again. Half a minute later there is room for another burst.
    plan.take_in(&(0..30).map(account).collect::<Vec<_>>(), now, || 0.5);
    assert_eq!(due(&mut plan, now), [0; 0]);
    plan.take_in(&(0..31).map(account).collect::<Vec<_>>(), now + BURST_SPREAD, || 0.5);
    assert_eq!(due(&mut plan, now), [30]);
}

#[test]
fn what_is_gone_is_not_fetched() {
    let now = BootTime::now();
    let mut plan = Plan::default();
    plan.take_in(&[account(1), account(2)], now, || 0.5);
    plan.take_in(&[account(2)], now, || 0.5);
    assert_eq!((plan.begin(), plan.begin()), (Some(WorkloadId(2)), None));
}

#[test]
fn after_failures_everything_pauses_for_longer_each_time() {
    let began = BootTime::now();
    let mut plan = Plan::default();
    plan.take_in(&[account(1), account(2), account(3)], began, || 0.0);
    let failure = || Err(NoToken::from(ExchangeFailure::Sts("429".to_owned())));
    let mut now = began;
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let (one, other) = (plan.begin().expect("planned"), plan.begin().expect("planned"));
        plan.ended(one, failure(), now, 0.0);
        plan.ended(other, failure(), now, 0.0);
        let next = plan.next().expect("planned");
        pauses.push(next.since(now).as_secs());
        now = next;
    }
    assert_eq!(pauses, [30, 60, 120, 240, 480, 600]);
    let one = plan.begin().expect("planned");
    plan.ended(one, Ok(Prepared::Needless), now, 0.0);
    let other = plan.begin().expect("planned");
    plan.ended(other, failure(), now, 0.0);
    assert_eq!(plan.next().expect("planned").since(now).as_secs(), 600, "nobody was asked meanwhile");
    now = now + Duration::from_secs(600);
    let other = plan.begin().expect("planned");
    plan.ended(other, Ok(Prepared::Fetched), now, 0.0);
    let last = plan.begin().expect("planned");
    plan.ended(last, failure(), now, 0.0);
    assert_eq!(plan.next().expect("planned").since(now).as_secs(), 30);
}

#[test]
fn an_account_without_a_pod_delays_no_other() {
    let now = BootTime::now();
    let mut plan = Plan::default();
    plan.take_in(&[account(1), account(2)], now, || 0.0);
    let one = plan.begin().expect("planned");
    plan.ended(one, Err(NoToken::from(ExchangeFailure::Kubernetes("no pod".to_owned()))), now, 0.0);
    assert_eq!((plan.next(), plan.begin()), (Some(now), Some(WorkloadId(2))));
    assert_eq!(plan.next(), Some(now + OWN_PAUSE), "it is tried again");
}

#[test]
fn a_projects_quota_delays_no_other_account() {
    let now = BootTime::now();
    let mut plan = Plan::default();
    plan.take_in(&[account(1), account(2)], now, || 0.0);
    let one = plan.begin().expect("planned");
    let refused =
        Refused::copied(StatusCode::SERVICE_UNAVAILABLE, &HeaderMap::new(), b"").withholding(Withheld::Project);
    plan.ended(one, Err(NoToken::Refused(Arc::new(refused))), now, 0.0);
    assert_eq!((plan.next(), plan.begin()), (Some(now), Some(WorkloadId(2))));
    assert_eq!(plan.next(), Some(now + OWN_PAUSE), "it is tried again");
}

#[tokio::test(start_paused = true)]
async fn a_429_of_the_api_server_or_iam_is_an_accounts_own_and_that_of_exchanges_is_everybodys() {
    let (issue, throttle) = (|| Does::Issue(3600), || Does::PutOff(429, "1"));
    for (kubernetes, sts, iam, is_own) in [
        (throttle(), issue(), issue(), true),
        (issue(), throttle(), issue(), false),
        // The quota of the Google account's project.
        (issue(), issue(), throttle(), true),
    ] {
        let lab = Lab::new(GOOGLE_ACCOUNT);
        lab.servers.change(|script| (script.kubernetes, script.sts, script.iam) = (kubernetes, sts, iam));
        let Err(why) = lab.source.prepare(lab.number).await else { panic!("a token") };
        assert_eq!(is_its_own(&why), is_own, "{why:?}");
    }
}

#[test]
fn an_account_that_comes_later_is_not_spread_with_the_first() {
    let began = BootTime::now();
    let mut plan = Plan::new(HashSet::from([account(1).1]), began);
    let now = began + START_SPREAD;
    plan.take_in(&[account(1)], now, || 0.5);
    assert_eq!(plan.next(), Some(now));
}
