use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::tests::lab::{Does, GOOGLE_ACCOUNT, Lab};
use super::*;

const TOKEN: &str = "default/token";

/// The records of a process, as they are sent.
fn sent(lab: &Lab) -> Vec<Value> {
    let record =
        |exported: &ExportedWorkload| serde_json::to_value(lab.source.record(exported, BootTime::now())).expect("JSON");
    lab.source.exported().iter().map(record).collect()
}

fn take(lab: &Lab, record: &Value) -> Result<usize, NotTaken> {
    // Through text, as it comes.
    let record = serde_json::from_str(&record.to_string()).expect("a record");
    lab.source.take_over(record, BootTime::now()).map(|(_, tokens)| tokens)
}

/// A record, of which a value was changed.
fn with(record: &Value, pointer: &str, value: Value) -> Value {
    let mut changed = record.clone();
    *changed.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} in {record}")) = value;
    changed
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_over_costs_nothing_and_ends_when_it_would_have() {
    let before = Lab::new(GOOGLE_ACCOUNT);
    before.token(TOKEN).await;
    sleep(Duration::from_secs(600)).await;
    let [record] = &sent(&before)[..] else { panic!("one workload") };

    let after = Lab::new(GOOGLE_ACCOUNT);
    assert_eq!(take(&after, record), Ok(2));
    assert!(after.source.kept.of(after.number, BootTime::now()).were_asked(), "nothing is fetched in advance");
    assert_eq!(after.token("default/token?scopes=a").await, "google-1");
    assert_eq!(after.servers.counts(), [0, 0, 1], "IAM only");
    let now = BootTime::now();
    let stages = after.source.kept.of(after.number, now);
    assert!(stages.federated.has_valid(now + Duration::from_secs(2980)));
    assert!(!stages.federated.has_valid(now + Duration::from_secs(2992)), "it is 600 s old");
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_over_is_due_when_it_would_have_been() {
    let before = Lab::new("");
    before.token(TOKEN).await;
    sleep(Duration::from_secs(1430)).await;
    let [record] = &sent(&before)[..] else { panic!("one workload") };
    let due = |lab: &Lab, now| lab.source.kept.of(lab.number, now).federated.known(now).0.expect("a token").due;
    for _ in 0..20 {
        let (after, now) = (Lab::new(""), BootTime::now());
        assert_eq!(take(&after, record), Ok(2));
        assert_eq!(due(&after, now), due(&before, now));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_under_way_is_handed_over_and_nothing_is_renewed_after_that() {
    let before = Lab::new("");
    before.token(TOKEN).await;
    let source = std::sync::Arc::clone(&before.source);
    let _renewing = tokio::spawn(async move { match crate::tokens::renew(source).await {} });
    before.servers.change(|script| script.delay = Duration::from_millis(200));
    sleep(Duration::from_secs(1430)).await;
    // Until the Kubernetes token is being renewed, and the exchange has not begun.
    while before.servers.counts() != [2, 1, 0] {
        sleep(Duration::from_millis(90)).await;
    }
    before.source.settle().await;
    assert_eq!(before.servers.counts(), [2, 2, 0]);
    let [record] = &sent(&before)[..] else { panic!("one workload") };
    let after = Lab::new("");
    assert_eq!(take(&after, record), Ok(2));
    assert_eq!(after.token(TOKEN).await, "fed-2", "it is young");
    assert_eq!(after.servers.counts(), [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn what_was_handed_over_is_not_renewed_here_for_a_while_also_if_it_is_handed_over_again() {
    let before = Lab::new("");
    before.token(TOKEN).await;
    let source = std::sync::Arc::clone(&before.source);
    let _renewing = tokio::spawn(async move { match crate::tokens::renew(source).await {} });
    let due =
        before.source.kept.of(before.number, BootTime::now()).federated.known(BootTime::now()).0.expect("a token").due;
    sleep(due.since(BootTime::now()).saturating_sub(Duration::from_secs(30))).await;
    // A process that takes over ends again each 20 s.
    for _ in 0..6 {
        before.source.settle().await;
        before.token(TOKEN).await;
        assert_eq!(before.servers.counts(), [1, 1, 0]);
        sleep(Duration::from_secs(20)).await;
    }
    assert!(BootTime::now() > due + Duration::from_secs(60));
    for _ in 0..3 {
        before.source.settle().await;
        sleep(Duration::from_secs(20)).await;
    }
    assert_eq!(before.servers.counts(), [2, 2, 0]);
}

#[tokio::test(start_paused = true)]
async fn an_exchange_that_takes_long_is_not_waited_for() {
    let before = Lab::new("");
    before.servers.change(|script| script.delay = Duration::from_secs(4));
    let _ = before.ask(TOKEN).await;
    let began = tokio::time::Instant::now();
    before.source.settle().await;
    assert_eq!(began.elapsed(), MAX_SETTLING);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_holds_as_long_as_it_would_have() {
    let before = Lab::new("");
    before.servers.change(|script| script.sts = Does::PutOff(429, "30"));
    assert_eq!(before.refusal(TOKEN).await.0, 503);
    let [record] = &sent(&before)[..] else { panic!("one workload") };

    let after = Lab::new("");
    assert_eq!(take(&after, record), Ok(1), "the Kubernetes token");
    assert_eq!(after.refusal(TOKEN).await.0, 503);
    assert_eq!(after.servers.counts(), [0, 0, 0]);
    sleep(Duration::from_secs(46)).await;
    after.token(TOKEN).await;
    assert_eq!(after.servers.counts(), [0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn many_refusals_do_not_make_a_record_long() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    let message = "a".repeat(3500).leak();
    lab.servers.change(|script| script.iam = Does::Refuse(403, message));
    for scope in 0..60 {
        let scope = format!("{scope}{}", "s".repeat(500));
        assert_eq!(lab.refusal(&format!("default/token?scopes={scope}")).await.0, 403);
    }
    let [record] = &sent(&lab)[..] else { panic!("one workload") };
    let refusals = record["google"].as_array().expect("a list").len();
    assert!(refusals > 2, "{refusals}");
    assert!(record.to_string().len() < 16 << 10, "{}", record.to_string().len());
    assert_eq!(take(&Lab::new(GOOGLE_ACCOUNT), record), Ok(2));
}

#[tokio::test(start_paused = true)]
async fn what_is_invalid_is_not_taken_over() {
    let before = Lab::new(GOOGLE_ACCOUNT);
    before.token(TOKEN).await;
    let [record] = &sent(&before)[..] else { panic!("one workload") };
    let now = BootTime::now().as_nanos();
    let later = |seconds: u64| json!(now + seconds * 1_000_000_000);
    for (pointer, value, expected) in [
        ("/namespace", json!("A"), Err(NotTaken::Invalid)),
        ("/name", json!("a/b"), Err(NotTaken::Invalid)),
        ("/uid", json!(""), Err(NotTaken::Invalid)),
        ("/link/google_account", json!("nonsense"), Err(NotTaken::Invalid)),
        ("/name", json!("gone"), Err(NotTaken::NoPod)),
        ("/subject/token/text", json!("a\r\nb"), Err(NotTaken::Invalid)),
        ("/subject/token/text", json!("a".repeat(MAX_TOKEN + 1)), Err(NotTaken::Invalid)),
        ("/subject/token/asked", later(10), Err(NotTaken::Invalid)),
        ("/subject/token/expires", later(2 * 86_400), Err(NotTaken::Invalid)),
        ("/subject/token/expires", json!(0), Err(NotTaken::Invalid)),
        // It has less than ten seconds left: only the federated token is of use.
        ("/subject/token/expires", later(9), Ok(1)),
    ] {
        let after = Lab::new(GOOGLE_ACCOUNT);
        assert_eq!(take(&after, &with(record, pointer, value.clone())), expected, "{pointer}: {value}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_account_that_is_another_by_now_gets_nothing() {
    let before = Lab::new(GOOGLE_ACCOUNT);
    before.token(TOKEN).await;
    let [record] = &sent(&before)[..] else { panic!("one workload") };
    for (pointer, value) in
        [("/uid", json!("u2")), ("/link/google_account", json!("other@shop.iam.gserviceaccount.com"))]
    {
        let after = Lab::new(GOOGLE_ACCOUNT);
        after.source.means.workloads.link(after.number).await.expect("it is read");
        assert_eq!(take(&after, &with(record, pointer, value)), Err(NotTaken::Changed), "{pointer}");
        after.token(TOKEN).await;
        assert_eq!(after.servers.counts(), [1, 1, 1], "{pointer}");
    }
}

/// The other process may have read it days ago.
#[tokio::test(start_paused = true)]
async fn an_account_that_was_taken_over_is_read_again() {
    let before = Lab::new(GOOGLE_ACCOUNT);
    before.token(TOKEN).await;
    let [record] = &sent(&before)[..] else { panic!("one workload") };
    let link = |lab: &Lab| lab.source.means.workloads.get(lab.number).map(|workload| workload.link.clone());
    let after = Lab::new("other@shop.iam.gserviceaccount.com");
    assert_eq!(take(&after, record), Ok(2));
    assert!(link(&after).is_some(), "it is used until then");
    sleep(Duration::from_millis(100)).await;
    assert_eq!(link(&after), None, "it has changed");
    let same = Lab::new(GOOGLE_ACCOUNT);
    assert_eq!(take(&same, record), Ok(2));
    sleep(Duration::from_millis(100)).await;
    assert!(link(&same).is_some(), "number and tokens stay");
}

#[tokio::test(start_paused = true)]
async fn what_is_known_already_stays() {
    let (before, after) = (Lab::new(""), Lab::new(""));
    before.token(TOKEN).await;
    let [record] = &sent(&before)[..] else { panic!("one workload") };
    after.token(TOKEN).await;
    assert_eq!(take(&after, record), Ok(0));
}
