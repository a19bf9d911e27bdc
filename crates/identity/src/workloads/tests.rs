//! Accounts that change, and the API server's reports of them.

use std::sync::LazyLock;

use http::StatusCode;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::{sleep, timeout};

use super::*;
use crate::cluster::fake::Fake;
use crate::tests::pod;
use protocol::metadata::Principal;

static LINKED: LazyLock<Annotations> = LazyLock::new(|| Annotations {
    google_account: Some("app@shop.iam.gserviceaccount.com".to_owned()),
    ..Annotations::default()
});

/// The account of a pod, and its number.
fn account(workloads: &Workloads, number: u8, namespace: &str, name: &str) -> (Arc<Account>, WorkloadId) {
    let account = workloads.of_pod(&pod(number, namespace, name));
    let number = account.number();
    (account, number)
}

/// The only account that is to be read now.
async fn wanted(workloads: &Workloads) -> Arc<Account> {
    let mut wanted = timeout(Duration::from_secs(60), workloads.wanted()).await.expect("one");
    assert_eq!(wanted.len(), 1);
    wanted.remove(0)
}

/// Records that an account could not be read.
fn unread(account: &Account, why: &str) {
    Workloads::unread(account, &RequestError::Unreachable(why.to_owned()));
}

fn is_any_wanted(workloads: &Workloads) -> bool {
    workloads.inner.lock().accounts.values().any(|account| account.state.borrow().reading == Reading::Wanted)
}

#[tokio::test(start_paused = true)]
async fn a_workloads_own_names_are_its_pools_and_once_it_is_read_its_google_accounts() {
    let workloads = Arc::new(Workloads::new(Some(super::federation::tests::elsewhere())));
    let (account, number) = account(&workloads, 1, "a", "app");
    let is_own = workloads.own_accounts();
    let names = |name: &str| is_own(number, &ServiceAccount::from_name(name));
    let email = "app@shop.iam.gserviceaccount.com";
    assert!(names("my-pool"));
    assert!(!names(email), "it is not known yet");
    workloads.found(&account, "u", &LINKED);
    assert!(names(email));
    assert!(!names("other@shop.iam.gserviceaccount.com"));
    assert!(!is_own(WorkloadId(99), &ServiceAccount::from_name(email)));
}

#[test]
fn pods_of_one_account_share_a_number_and_namespaces_tell_accounts_apart() {
    let workloads = Workloads::default();
    let (_, one) = account(&workloads, 1, "a", "app");
    assert_eq!(account(&workloads, 2, "a", "app").1, one);
    assert_ne!(account(&workloads, 3, "b", "app").1, one);
    assert_ne!(account(&workloads, 4, "a", "other").1, one);
}

#[test]
fn a_number_is_forgotten_with_the_last_pod_and_never_used_again() {
    let workloads = Workloads::default();
    let (app, other) = (pod(1, "a", "app"), pod(2, "a", "other"));
    let (first, kept) = (workloads.of_pod(&app).number(), workloads.of_pod(&other).number());
    let ended = Pod { ended: true, ..app.clone() };
    assert_eq!(workloads.retain(|| vec![Arc::new(other.clone()), Arc::new(ended)]), [first]);
    assert!(!workloads.has(first) && workloads.has(kept));
    assert_eq!(workloads.of_pod(&other).number(), kept);
    let again = workloads.of_pod(&app).number();
    assert!(![first, kept].contains(&again));
}

#[test]
fn the_cost_of_a_check_grows_with_the_accounts_and_not_with_their_square() {
    let cost = |accounts: u32| {
        let workloads = Workloads::default();
        let pods: Vec<_> = (0..accounts)
            .map(|number| Arc::new(pod(1, "a-namespace-of-a-tenant", &format!("account-{number}"))))
            .collect();
        for pod in &pods {
            workloads.of_pod(pod);
        }
        let cost = || {
            let began = clock_gettime(ClockId::ThreadCPUTime);
            assert_eq!(workloads.retain(|| pods.clone()), []);
            Duration::try_from(clock_gettime(ClockId::ThreadCPUTime) - began).expect("it grows")
        };
        let least = (0..20).map(|_| cost()).min().expect("some");
        assert_eq!(workloads.retain(|| pods[1..].to_vec()).len(), 1);
        least
    };
    // A ratio of this thread's CPU times. A pass over all accounts for each pod would make it 1,024.
    let (few, many) = (cost(100), cost(3_200));
    assert!(many < 200 * few, "{few:?} for 100 accounts, {many:?} for 3,200");
}

#[tokio::test(start_paused = true)]
async fn an_account_that_changes_gets_another_number_and_the_old_one_is_forgotten() {
    let workloads = Workloads::default();
    let live = || vec![Arc::new(pod(1, "a", "app"))];
    let (app, first) = account(&workloads, 1, "a", "app");
    let reading = wanted(&workloads).await;
    workloads.found(&reading, "u1", &LINKED);
    assert_eq!(app.principal(), Principal::Workload(first), "nothing was given out under it before");
    workloads.found(&reading, "u1", &LINKED);
    assert_eq!((app.number(), workloads.retain(live)), (first, vec![]), "nothing has changed");
    let linked = workloads.link(first).await.expect("a link");
    assert_eq!(linked.link, Link::parse(&LINKED));

    workloads.found(&reading, "u1", &Annotations::default());
    let second = app.number();
    assert_eq!(app.principal(), Principal::Workload(second));
    assert_eq!(workloads.retain(live), [first]);
    assert_eq!((workloads.get(first), workloads.link(first).await), (None, Err(LinkError::Outdated)));
    assert_eq!(workloads.link(second).await.expect("a link").link, Ok(Link::default()));

    workloads.found(&reading, "u2", &Annotations::default());
    assert_eq!(workloads.retain(live), [second], "it was deleted and created again");
    let third = app.number();
    workloads.missing(&reading);
    assert_eq!(workloads.retain(live), [third]);
    let error = workloads.link(app.number()).await.expect_err("deleted");
    assert_eq!(error.to_string(), "the Kubernetes service account a/app was deleted");
    assert_eq!(workloads.link(third).await, Err(LinkError::Outdated));
    let deleted = app.number();
    workloads.found(&reading, "u3", &LINKED);
    assert_eq!((app.number(), workloads.retain(live)), (deleted, vec![]), "nothing was given out under it");
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_until_its_account_was_read_through_a_failure() {
    let workloads = Arc::new(Workloads::default());
    let (_, number) = account(&workloads, 1, "a", "app");
    let asking = tokio::spawn({
        let workloads = Arc::clone(&workloads);
        async move { workloads.link(number).await }
    });
    unread(&*wanted(&workloads).await, "the API server is away");
    let began = Instant::now();
    let again = wanted(&workloads).await;
    assert!(began.elapsed() <= Duration::from_millis(250), "{:?}", began.elapsed());
    workloads.found(&again, "u1", &LINKED);
    assert_eq!(asking.await.expect("no panic").expect("a link").uid, "u1".into());
}

#[tokio::test(start_paused = true)]
async fn an_account_that_could_never_be_read_is_read_once_the_api_server_is_back() {
    let workloads = Workloads::default();
    let (_, number) = account(&workloads, 1, "a", "app");
    for _ in 0..8 {
        let reading = wanted(&workloads).await;
        unread(&reading, "the API server is away");
        tokio::time::advance(Duration::from_secs(10)).await;
        workloads.tend(BootTime::now());
    }
    unread(&*wanted(&workloads).await, "the API server is away");
    let began = Instant::now();
    workloads.retry();
    let reading = wanted(&workloads).await;
    workloads.found(&reading, "u1", &LINKED);
    assert_eq!(began.elapsed(), Duration::ZERO, "not after the pause");
    assert!(workloads.link(number).await.is_ok());
    workloads.retry();
    assert!(!is_any_wanted(&workloads), "one that is known has time");
}

#[tokio::test(start_paused = true)]
async fn an_account_is_read_again_when_the_api_server_wants_it_and_no_sooner() {
    for (demanded, (least, most)) in [(7, (7, 11)), (9_999, (60, 91))] {
        for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE] {
            let (mut fake, cluster) = Fake::new("node-1");
            let workloads = Arc::new(Workloads::default());
            let (_, number) = account(&workloads, 1, "a", "app");
            let reading = tokio::spawn(follow(cluster, Arc::clone(&workloads)));
            fake.asked().await.put_off(status.as_u16(), &demanded.to_string());
            sleep(Duration::from_millis(1)).await;
            let began = Instant::now();
            // Neither a request, nor a renewal, nor a watch that answers again brings it forward.
            let pressing = async {
                loop {
                    let asked = Instant::now();
                    // A request that comes shortly before waits for it.
                    let is_in_vain = began.elapsed() + LINK_TIMEOUT < Duration::from_secs(least);
                    assert!(workloads.link(number).await.is_err());
                    assert!(!is_in_vain || asked.elapsed().is_zero(), "it is in vain to wait");
                    workloads.recheck(number);
                    workloads.retry();
                    workloads.tend(BootTime::now());
                    sleep(Duration::from_millis(100)).await;
                }
            };
            let again = tokio::select! {
                again = timeout(Duration::from_secs(100), fake.asked()) => again.expect("it is read again"),
                never = pressing => never,
            };
            let pause = began.elapsed();
            assert!(
                (u128::from(least) * 1_000 - 5..=most * 1_000).contains(&pause.as_millis()),
                "{status}: {demanded}: {pause:?}"
            );
            drop(again);
            reading.abort();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_account_is_read_while_the_known_ones_wait_for_a_slow_api_server() {
    let (mut fake, cluster) = Fake::new("node-1");
    let workloads = Arc::new(Workloads::default());
    for number in 1..=8 {
        workloads.of_pod(&pod(number, "a", &format!("known-{number}")));
    }
    for known in workloads.wanted().await {
        workloads.found(&known, "u", &LINKED);
        workloads.want(&known);
    }
    let reading = tokio::spawn(follow(cluster, Arc::clone(&workloads)));
    sleep(Duration::from_millis(1)).await;
    workloads.of_pod(&pod(9, "a", "new"));
    let mut waiting = Vec::new();
    while waiting.len() < 8 {
        let asked = timeout(Duration::from_secs(1), fake.asked()).await.expect("it is read at once");
        if asked.request.uri().path().ends_with("/new") {
            reading.abort();
            return;
        }
        waiting.push(asked);
    }
    panic!("the new one is the last");
}

#[tokio::test(start_paused = true)]
async fn an_account_that_the_api_server_does_not_have_is_not_taken_for_one_without_annotations() {
    let (mut fake, cluster) = Fake::new("node-1");
    let workloads = Arc::new(Workloads::default());
    let (_, number) = account(&workloads, 1, "a", "app");
    let reading = tokio::spawn(follow(cluster, Arc::clone(&workloads)));
    fake.asked().await.refuse(404, "serviceaccounts \"app\" not found");
    let error = workloads.link(number).await.expect_err("there is none");
    assert!(matches!(error, LinkError::Deleted { .. }), "{error}");
    reading.abort();
}

#[tokio::test(start_paused = true)]
async fn a_request_does_not_wait_for_longer_than_its_deadline() {
    let workloads = Workloads::default();
    let (_, number) = account(&workloads, 1, "a", "app");
    let began = Instant::now();
    let error = workloads.link(number).await.expect_err("nobody reads");
    assert_eq!(began.elapsed(), LINK_TIMEOUT);
    assert_eq!(
        error.to_string(),
        "the Kubernetes service account a/app is not known yet: the API server has not answered yet"
    );
    for _ in 0..8 {
        let reading = wanted(&workloads).await;
        unread(&reading, "a right is missing");
        sleep(Duration::from_secs(10)).await;
        workloads.tend(BootTime::now());
    }
    let reading = wanted(&workloads).await;
    unread(&reading, "a right is missing");
    let began = Instant::now();
    let error = workloads.link(number).await.expect_err("it is not read again for seconds");
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(error.to_string().ends_with(": a right is missing"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_request_after_a_long_pause_waits_until_the_account_is_read_again() {
    let workloads = Workloads::default();
    let (app, number) = account(&workloads, 1, "a", "app");
    workloads.found(&wanted(&workloads).await, "u1", &LINKED);
    sleep(Duration::from_secs(119)).await;
    assert!(workloads.requested(number).is_some());
    sleep(Duration::from_secs(2)).await;
    assert!(workloads.requested(number).is_none() && workloads.recent(number).is_none());
    let (asked, ()) = tokio::join!(workloads.reread(number), async {
        workloads.found(&wanted(&workloads).await, "u1", &Annotations::default());
    });
    assert_eq!(asked, Err(LinkError::Outdated), "its link has changed");
    let asked = workloads.reread(app.number()).await;
    assert_eq!(asked.expect("a link").link, Ok(Link::default()));

    workloads.missing(&app);
    sleep(Duration::from_secs(71)).await;
    let (asked, ()) = tokio::join!(workloads.reread(app.number()), async {
        workloads.found(&wanted(&workloads).await, "u2", &LINKED);
    });
    assert_eq!(asked.expect("it was created again").uid, "u2".into());
}

#[tokio::test(start_paused = true)]
async fn what_is_known_goes_on_after_a_long_pause_if_it_cannot_be_read() {
    let workloads = Workloads::default();
    let (_, number) = account(&workloads, 1, "a", "app");
    workloads.found(&wanted(&workloads).await, "u1", &LINKED);
    sleep(Duration::from_secs(600)).await;
    let began = Instant::now();
    let (one, other) = tokio::join!(workloads.reread(number), workloads.reread(number));
    assert!(one.is_ok() && other.is_ok());
    assert_eq!(began.elapsed(), REREAD_TIMEOUT);
    assert!(workloads.requested(number).is_some(), "the next one does not wait");
    unread(&*wanted(&workloads).await, "the API server is away");

    // A read that has failed is repeated, but no request waits for it.
    sleep(Duration::from_secs(600)).await;
    let began = Instant::now();
    assert!(workloads.reread(number).await.is_ok());
    assert_eq!(began.elapsed(), Duration::ZERO);
    workloads.tend(BootTime::now());
    workloads.found(&wanted(&workloads).await, "u1", &LINKED);

    sleep(Duration::from_secs(600)).await;
    let began = Instant::now();
    let (asked, ()) = tokio::join!(workloads.reread(number), async {
        unread(&*wanted(&workloads).await, "the API server is away");
    });
    assert!(asked.is_ok());
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn what_is_known_is_read_little_more_often_in_an_outage_than_in_health() {
    let workloads = Workloads::default();
    let (_, number) = account(&workloads, 1, "a", "app");
    workloads.found(&wanted(&workloads).await, "u1", &LINKED);
    let mut reads = 0;
    let (began, mut last) = (Instant::now(), Instant::now());
    while began.elapsed() < Duration::from_secs(3600) {
        assert!(workloads.requested(number).is_some());
        workloads.tend(BootTime::now());
        if is_any_wanted(&workloads) {
            unread(&*wanted(&workloads).await, "the API server is away");
            (reads, last) = (reads + 1, Instant::now());
        }
        sleep(Duration::from_secs(1)).await;
    }
    // Sixty in health. The pause doubles, and has a jitter of 0.6 to 1.
    assert!((60..=100).contains(&reads), "{reads} in an hour");
    assert!(last.elapsed() <= Duration::from_secs(61), "it goes on");
}

#[tokio::test(start_paused = true)]
async fn what_is_known_goes_on_and_is_read_again_after_a_minute_if_it_is_asked_for() {
    let workloads = Workloads::default();
    let (app, number) = account(&workloads, 1, "a", "app");
    workloads.found(&wanted(&workloads).await, "u1", &LINKED);
    assert!(workloads.requested(number).is_some());
    sleep(Duration::from_secs(59)).await;
    workloads.tend(BootTime::now());
    assert!(!is_any_wanted(&workloads));
    sleep(Duration::from_secs(2)).await;
    workloads.tend(BootTime::now());
    let reading = wanted(&workloads).await;
    workloads.tend(BootTime::now());
    assert!(!is_any_wanted(&workloads), "it is under way");
    unread(&reading, "the API server is away");
    assert_eq!(workloads.link(number).await.expect("a link").uid, "u1".into());

    sleep(Duration::from_secs(1)).await;
    workloads.tend(BootTime::now());
    workloads.found(&wanted(&workloads).await, "u1", &LINKED);
    sleep(Duration::from_secs(600)).await;
    // Each request of a pod reads it, also one about something else.
    assert_eq!(app.principal(), Principal::Workload(number));
    assert!(workloads.get(number).is_some());
    workloads.tend(BootTime::now());
    assert!(!is_any_wanted(&workloads), "nobody asked");
    workloads.recheck(number);
    assert!(is_any_wanted(&workloads));
}
