//! How long a token and what leads to it are used, and when they are replaced.

use super::*;

#[tokio::test(start_paused = true)]
async fn what_leads_to_a_token_is_renewed_from_40_to_60_percent_of_its_life_on() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.token(TOKEN).await;
    sleep(Duration::from_secs(1430)).await;
    lab.token(IDENTITY).await;
    assert_eq!(lab.servers.counts(), [1, 1, 2]);
    sleep(Duration::from_secs(731)).await;
    lab.token(IDENTITY).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(lab.servers.counts(), [2, 2, 3], "in the background");
    let bearer = |at: usize| lab.servers.read(|script| script.impersonations[at].1.clone());
    lab.token(IDENTITY).await;
    assert_eq!([bearer(2), bearer(3)], ["Bearer fed-1", "Bearer fed-2"]);

    // While the API server and STS are unreachable, existing tokens are used to their end, and never longer.
    lab.servers.change(|script| (script.kubernetes, script.sts) = (Does::Fail, Does::Fail));
    sleep(Duration::from_secs(3580)).await;
    lab.token(IDENTITY).await;
    sleep(Duration::from_secs(15)).await;
    let why = lab.failure(IDENTITY).await;
    assert!(why.contains("the API server cannot be reached"), "{why}");
    assert_eq!(lab.servers.counts()[2], 5);
    lab.servers.change(|script| (script.kubernetes, script.sts) = (Does::Issue(3600), Does::Issue(3600)));
    sleep(Duration::from_secs(1)).await;
    lab.token(IDENTITY).await;
}

#[tokio::test(start_paused = true)]
async fn an_unlinked_token_is_replaced_when_half_of_its_life_is_over_and_kept_if_that_fails() {
    let lab = Lab::new("");
    let (_, seconds) = lab.ask(TOKEN).await.expect("a token");
    assert!((3598..=3600).contains(&seconds), "{seconds}");
    sleep(Duration::from_secs(2700)).await;
    lab.servers.change(|script| script.sts = Does::Fail);
    let (old, left) = lab.ask(TOKEN).await.expect("the token before");
    assert_eq!(old, "fed-1");
    assert!((895..=900).contains(&left), "{left}");
    lab.servers.change(|script| script.sts = Does::Issue(3600));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(lab.token(TOKEN).await, "fed-3");
}

#[tokio::test(start_paused = true)]
async fn a_federated_token_ends_with_the_kubernetes_token() {
    let lab = Lab::new("");
    lab.servers.change(|script| script.kubernetes = Does::Issue(900));
    let (_, seconds) = lab.ask(TOKEN).await.expect("a token");
    assert!((895..=900).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_changed_annotation_is_a_new_workload_and_the_old_ones_tokens_are_forgotten() {
    let mut lab = Lab::new(GOOGLE_ACCOUNT);
    assert_eq!(lab.token(TOKEN).await, "google-1");
    let workloads = Arc::clone(&lab.source.means.workloads);
    let old = lab.number;
    lab.servers.change(|script| script.annotation = "");
    workloads.recheck(old);
    sleep(Duration::from_millis(10)).await;
    assert!(workloads.has(old), "it was read with its first token");
    sleep(Duration::from_secs(60)).await;
    workloads.recheck(old);
    sleep(Duration::from_millis(10)).await;
    for number in workloads.retain(|| lab.source.means.pods.all()) {
        assert_eq!(number, old);
        lab.source.kept.forget(number);
    }
    let why = lab.failure(TOKEN).await;
    assert_eq!(why, "the pod's service account has changed");
    assert!(lab.source.kept.is_empty(), "nobody would forget it again");
    let Principal::Workload(new) = workloads.of_pod(&pod(1, "a", "app")).principal() else { panic!("a workload") };
    lab.number = new;
    assert_eq!(lab.token(TOKEN).await, "fed-2", "not what was kept for the old one");
    assert_eq!(lab.servers.counts(), [2, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn annotations_are_looked_at_with_each_renewal() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.token(TOKEN).await;
    lab.servers.change(|script| script.annotation = "");
    sleep(Duration::from_secs(2161)).await;
    lab.token(IDENTITY).await;
    sleep(Duration::from_secs(1)).await;
    assert!(!lab.source.means.workloads.has(lab.number));
}

#[tokio::test(start_paused = true)]
async fn an_account_that_the_api_server_refuses_takes_no_turn_of_others_unless_it_refuses_all() {
    for (does, accounts, is_left) in [
        (Does::PutOff(429, "1"), 1, true),
        (Does::Refuse(403, "no"), 1, true),
        (Does::Refuse(404, "gone"), 1, true),
        (Does::Refuse(403, "no"), 2, false),
        (Does::Refuse(401, "who are you?"), 1, false),
        (Does::Fail, 1, false),
    ] {
        let mut lab = Lab::new("");
        for account in 0..accounts {
            lab.number = lab.add(10 + account, &format!("app-{account}"));
            lab.token(TOKEN).await;
        }
        lab.servers.change(|script| script.kubernetes = does.clone());
        // All are due.
        sleep(Duration::from_secs(2200)).await;
        let source = Arc::clone(&lab.source);
        let renewing = tokio::spawn(async move { match renew(source).await {} });
        while lab.servers.counts()[0] == usize::from(accounts) {
            sleep(Duration::from_millis(100)).await;
        }
        sleep(Duration::from_millis(300)).await;
        let now = BootTime::now();
        let turn = lab.source.means.renewals.take(now + Duration::from_secs(900), now);
        assert_eq!(turn.is_some(), is_left, "{does:?} for {accounts}");
        renewing.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn an_account_that_alone_is_refused_does_not_make_the_next_one_late() {
    let mut lab = Lab::new("");
    let next = lab.add(11, "next");
    lab.number = next;
    lab.token(TOKEN).await;
    sleep(Duration::from_secs(10)).await;
    lab.number = lab.add(10, "refused");
    lab.token(TOKEN).await;
    let now = BootTime::now();
    let token = |number| lab.source.kept.of(number, now).subject.known(now).0.expect("a token");
    let due = token(next).due;
    lab.source.kept.of(lab.number, now).subject.is_due_at(&token(lab.number), now);
    lab.servers.change(|script| script.kubernetes = Does::Refuse(403, "no"));
    let source = Arc::clone(&lab.source);
    let _renewing = tokio::spawn(async move { match renew(source).await {} });
    sleep(due.since(BootTime::now())).await;
    let asked = lab.servers.counts()[0] - 2;
    assert!((5..=10).contains(&asked), "{asked}: less often each time");
    // The next one ends first.
    lab.servers.change(|script| script.kubernetes = Does::Issue(3600));
    while lab.source.kept.of(next, BootTime::now()).subject.is_aging(BootTime::now()) {
        sleep(Duration::from_secs(1)).await;
    }
    let late = BootTime::now().since(due);
    assert!(late <= Duration::from_secs(20), "{late:?}");
}
