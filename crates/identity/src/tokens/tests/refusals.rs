//! What servers refuse or fail, and when they are asked again.

use super::*;

#[tokio::test(start_paused = true)]
async fn refusals_of_iam_are_passed_on_and_remembered_for_longer_each_time() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    let body = r#"{"error":{"code":403,"message":"Permission 'x' denied.","status":"PERMISSION_DENIED"}}"#;
    lab.servers.change(|script| script.iam = Does::Refuse(403, body));
    let (status, text) = lab.refusal(TOKEN).await;
    assert_eq!(status, 403);
    let said =
        "Unable to generate access token; IAM returned 403 Forbidden: Permission 'x' denied.\nThis error could be";
    assert!(text.starts_with(said), "{text}");
    for (rest, count) in [(4, 1), (2, 2), (8, 2), (3, 3), (18, 3), (3, 4)] {
        sleep(Duration::from_secs(rest)).await;
        assert_eq!(lab.refusal(TOKEN).await.0, 403);
        assert_eq!(lab.servers.counts(), [1, 1, count], "{rest}");
    }
    lab.servers.change(|script| script.iam = Does::Refuse(404, "no such account"));
    let (status, text) = lab.refusal(IDENTITY).await;
    assert_eq!(
        (status, text.as_str()),
        (404, "Unable to generate identity token; IAM returned 404 Not Found: no such account\n")
    );
    lab.servers.change(|script| script.iam = Does::Issue(3600));
    sleep(Duration::from_secs(60)).await;
    lab.token(TOKEN).await;
    assert_eq!(lab.source.means.metrics.counts(Step::Iam), [1, 0, 5, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_federated_token_that_is_not_accepted_is_replaced() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.token(TOKEN).await;
    sleep(Duration::from_secs(61)).await;
    lab.servers.change(|script| script.iam = Does::Refuse(401, "fed-1 is stale"));
    let why = lab.failure(TOKEN).await;
    assert!(why.ends_with("does not accept the federated token: [redacted] is stale"), "{why}");
    lab.servers.change(|script| script.iam = Does::Issue(3600));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(lab.token(TOKEN).await, "google-3");
    assert_eq!(lab.servers.counts(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn an_iam_that_accepts_no_federated_token_costs_few_exchanges() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.servers.change(|script| script.iam = Does::Refuse(401, "who are you?"));
    for _ in 0..600 {
        lab.failure(TOKEN).await;
        sleep(Duration::from_secs(1)).await;
    }
    let [_, exchanges, impersonations] = lab.servers.counts();
    assert!(exchanges <= 12 && (10..=30).contains(&impersonations), "{exchanges}, {impersonations}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_exchange_is_remembered_for_all_scopes() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    let body = r#"{"error":"invalid_target","error_description":"The pool ksa-1 is gone."}"#;
    lab.servers.change(|script| script.sts = Does::Refuse(400, body));
    let text =
        "Unable to generate access token; STS returned 400 Bad Request: invalid_target: The pool [redacted] is gone.\n";
    assert_eq!(lab.refusal(TOKEN).await, (403, text.to_owned()));
    sleep(Duration::from_secs(4)).await;
    assert_eq!(lab.refusal("default/token?scopes=a").await.0, 403);
    assert_eq!(lab.servers.counts(), [1, 1, 0]);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(lab.refusal(TOKEN).await.0, 403);
    assert_eq!(lab.servers.counts(), [1, 2, 0]);
    assert_eq!(lab.source.means.metrics.counts(Step::Sts), [0, 2, 0, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_kubernetes_token_that_is_not_accepted_is_replaced_after_five_minutes_and_not_more_often() {
    const REFUSAL: Does = Does::Refuse(400, r#"{"error":"invalid_grant","error_description":"Its key is not known."}"#);
    const OTHER: &str = "default/token?scopes=a";
    let lab = Lab::new("");
    assert_eq!(lab.token(TOKEN).await, "fed-1");
    sleep(Duration::from_secs(310)).await;
    lab.servers.change(|script| script.sts = REFUSAL);
    assert_eq!(lab.refusal(OTHER).await.0, 403);
    lab.servers.change(|script| script.sts = Does::Issue(3600));
    sleep(Duration::from_secs(11)).await;
    assert_eq!(lab.token(OTHER).await, "fed-3");
    let subjects =
        lab.servers.read(|script| script.exchanges.clone()).into_iter().map(|sent| sent["subjectToken"].clone());
    assert_eq!(subjects.collect::<Vec<_>>(), ["ksa-1", "ksa-1", "ksa-2"]);

    // If all are refused, pods that ask all the time cost the API server little, and the next exchange is as late as before.
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.servers.change(|script| script.sts = REFUSAL);
    for _ in 0..900 {
        assert_eq!(lab.refusal(TOKEN).await.0, 403);
        sleep(Duration::from_secs(1)).await;
    }
    let [subjects, exchanges, _] = lab.servers.counts();
    assert!(subjects == 3 && (15..=20).contains(&exchanges), "{subjects}, {exchanges}");

    // While the API server fails, the one that was refused is used on.
    lab.servers.change(|script| (script.kubernetes, script.sts) = (Does::Fail, Does::Issue(3600)));
    sleep(Duration::from_secs(60)).await;
    lab.token(TOKEN).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_again_before_the_time_that_a_throttled_server_names() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.servers.change(|script| script.sts = Does::PutOff(429, "7"));
    let Err(NoToken::Refused(refused)) = lab.ask(TOKEN).await else { panic!("a token") };
    assert_eq!(refused.status.as_u16(), 503);
    assert!((7..=11).contains(&retry_after(&refused)), "{:?}", refused.headers);
    lab.servers.change(|script| script.sts = Does::Issue(3600));
    sleep(Duration::from_millis(6800)).await;
    assert_eq!(lab.refusal(TOKEN).await.0, 503);
    sleep(Duration::from_secs(4)).await;
    lab.token(TOKEN).await;
    assert_eq!(lab.servers.counts(), [1, 2, 1]);
    assert_eq!(lab.source.means.metrics.counts(Step::Sts), [1, 0, 0, 1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_is_used_up_is_recognised_with_any_status() {
    const USED_UP: &str =
        r#"{"error":{"code":403,"message":"Quota exceeded.","status":"RESOURCE_EXHAUSTED","details":[]}}"#;
    for status in [400, 403, 503] {
        let lab = Lab::new("");
        lab.servers.change(|script| script.sts = Does::Refuse(status, USED_UP));
        let Err(NoToken::Refused(refused)) = lab.ask(TOKEN).await else { panic!("{status}: it has no token") };
        assert_eq!(refused.status.as_u16(), 503, "as after 429");
        assert!((1..=2).contains(&retry_after(&refused)), "{status}: {:?}", refused.headers);
        lab.servers.change(|script| script.sts = Does::Issue(3600));
        sleep(Duration::from_secs(2)).await;
        lab.token(TOKEN).await;
    }
    for said in
        [r#"{"error":{"status":"PERMISSION_DENIED"}}"#, r#"{"error":"RESOURCE_EXHAUSTED"}"#, "RESOURCE_EXHAUSTED"]
    {
        let lab = Lab::new("");
        lab.servers.change(|script| script.sts = Does::Refuse(403, said));
        assert_eq!(lab.refusal(TOKEN).await.0, 403, "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_whose_body_cannot_be_read_is_what_its_status_says() {
    for annotation in ["", GOOGLE_ACCOUNT] {
        let lab = |status| {
            let lab = Lab::new(annotation);
            let cut = Does::Cut(status);
            lab.servers.change(|script| *(if annotation.is_empty() { &mut script.sts } else { &mut script.iam }) = cut);
            lab
        };
        let throttled = lab(429);
        for _ in 0..3 {
            let Err(NoToken::Refused(refused)) = throttled.ask(TOKEN).await else { panic!("it has no token") };
            assert_eq!(refused.status.as_u16(), 503);
            assert!((1..=2).contains(&retry_after(&refused)), "{:?}", refused.headers);
        }
        let sent = throttled.servers.counts();
        assert_eq!(sent[1].max(sent[2]), 1, "once");
        let why = lab(408).failure(TOKEN).await;
        assert!(why.ends_with("it answered 408 Request Timeout"), "{why}");
        assert_eq!(lab(403).refusal(TOKEN).await.0, 403);
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_throttled_is_not_asked_before_the_time_that_it_names() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.servers.change(|script| script.kubernetes = Does::PutOff(429, "7"));
    let said =
        "no Kubernetes token for the pod's service account: the API server answered 429 Too Many Requests: slow down";
    assert_eq!(lab.failure(TOKEN).await, said);
    for _ in 0..6 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(lab.failure(TOKEN).await, said);
    }
    assert_eq!(lab.servers.counts(), [1, 0, 0]);
    assert_eq!(lab.source.means.metrics.counts(Step::Kubernetes), [0, 0, 0, 1, 0, 0]);
    lab.servers.change(|script| script.kubernetes = Does::Issue(3600));
    sleep(Duration::from_secs(5)).await;
    lab.token(TOKEN).await;
}

/// However often it has refused the workload before.
#[tokio::test(start_paused = true)]
async fn a_pod_gets_its_token_when_the_api_server_wants_to_be_asked_again() {
    for (status, demanded, earliest, latest) in [
        (429, "3", 3_000, 4_500),
        (503, "3", 3_000, 4_500),
        (503, "9999", 60_000, 90_000),
        (429, "0", 1_000, 1_500),
        (503, "0", 600, 900),
    ] {
        let lab = Lab::new(GOOGLE_ACCOUNT);
        lab.servers
            .change(|script| (script.kubernetes, script.delay) = (Does::PutOff(status, demanded), Duration::ZERO));
        for refusals in 1..=6 {
            assert!(lab.ask(TOKEN).await.is_err());
            let refused = Instant::now();
            while lab.servers.counts()[0] == refusals {
                assert!(lab.ask(TOKEN).await.is_err());
                sleep(Duration::from_millis(10)).await;
            }
            let waited = refused.elapsed().as_millis();
            let is_in_time = (earliest..=latest + 50).contains(&waited);
            assert!(
                is_in_time,
                "{status} with Retry-After {demanded}: asked again after {waited} ms, refused {refusals} times"
            );
        }
    }
}

/// Whichever of its tokens a pod asks for: the steps behind the API server's have not begun.
#[tokio::test(start_paused = true)]
async fn a_pod_is_told_how_long_the_step_still_rests_that_failed() {
    for (kubernetes, least, most) in [
        (Does::PutOff(503, "7"), 7_000, 10_500),
        (Does::PutOff(429, "7"), 7_000, 10_500),
        (Does::PutOff(503, "0"), 600, 900),
        (Does::Refuse(403, ""), 10_000, 10_000),
    ] {
        let lab = Lab::new(GOOGLE_ACCOUNT);
        lab.servers.change(|script| (script.kubernetes, script.delay) = (kubernetes, Duration::ZERO));
        let rests = async |what| match lab.ask(what).await {
            Err(NoToken::Failed(why)) => why.rests().as_millis(),
            other => panic!("{other:?}"),
        };
        let told = rests(TOKEN).await;
        assert!((least..=most).contains(&told), "{told}");
        sleep(Duration::from_millis(400)).await;
        let rest = [rests(TOKEN).await, rests("default/token?scopes=a").await];
        assert!(rest.iter().all(|rest| (told - 410..=told - 390).contains(rest)), "{told}, then {rest:?}");
        assert_eq!(lab.servers.counts(), [1, 0, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_workload_pays_for_iam_and_for_exchanges_that_name_its_project() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    let linked = lab.source.steps(lab.number).await.expect("a link");
    let annotations = Annotations { quota_project: Some("bank".to_owned()), ..Annotations::default() };
    let unlinked = Steps { link: Link::parse(&annotations).expect("a link"), ..linked.clone() };
    let demanded = Urgency::Demanded.into();
    for (steps, is_pools) in [(&linked, true), (&unlinked, false)] {
        assert_eq!(steps.turn(Step::Sts, &demanded).payer == Payer::default(), is_pools);
        assert_eq!(steps.turn(Step::Kubernetes, &demanded).payer, Payer::default());
    }
    let at_iam = linked.turn(Step::Iam, &demanded).payer;
    assert_eq!(at_iam, Payer::at_iam(&linked.link));
    assert_ne!(at_iam, Payer::default());
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_as_long_as_it_was_told_finds_no_rest() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.servers.change(|script| script.sts = Does::PutOff(429, "1"));
    for exchanges in 1..=5 {
        let Err(NoToken::Refused(refused)) = lab.ask(TOKEN).await else { panic!("a token") };
        assert_eq!(lab.servers.counts(), [1, exchanges, 0]);
        // In the middle of the rest the answer has the remaining time.
        let seconds = retry_after(&refused);
        sleep(Duration::from_millis(400)).await;
        let Err(NoToken::Refused(refused)) = lab.ask(TOKEN).await else { panic!("a token") };
        assert!((seconds - 1..=seconds).contains(&retry_after(&refused)), "{seconds}, then {:?}", refused.headers);
        sleep(Duration::from_secs(retry_after(&refused))).await;
    }
    lab.servers.change(|script| script.sts = Does::Issue(3600));
    lab.token(TOKEN).await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_says_whether_it_affects_all_pods() {
    let untrusted = r#"{"error":"invalid_grant","error_description":"unknown key"}"#;
    let scope = r#"{"error":"invalid_scope","error_description":"no such scope"}"#;
    let issue = || Does::Issue(3600);
    let quota = || Does::PutOff(429, "7");
    for (sts, iam, withheld) in [
        (Does::Refuse(400, untrusted), issue(), Withheld::Untrusted),
        (Does::Refuse(400, scope), issue(), Withheld::Account),
        (quota(), issue(), Withheld::Quota),
        (issue(), Does::Refuse(403, "no binding"), Withheld::Account),
        // Of the Google account's project.
        (issue(), quota(), Withheld::Project),
    ] {
        let lab = Lab::new(GOOGLE_ACCOUNT);
        lab.servers.change(|script| (script.sts, script.iam) = (sts, iam));
        // The second answer is remembered.
        for _ in 0..2 {
            let Err(NoToken::Refused(refused)) = lab.ask(TOKEN).await else { panic!("a token") };
            assert_eq!(refused.withheld, Some(withheld), "{}", refused.line());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_quota_of_one_project_is_counted_apart_from_that_of_all() {
    let (issue, quota) = (|| Does::Issue(3600), || Does::PutOff(429, "7"));
    for (sts, iam, step, counts) in [
        (quota(), issue(), Step::Sts, [0, 0, 0, 1, 0, 0]),
        // Of the Google account's project.
        (issue(), quota(), Step::Iam, [0, 0, 0, 0, 1, 0]),
    ] {
        let lab = Lab::new(GOOGLE_ACCOUNT);
        lab.servers.change(|script| (script.sts, script.iam) = (sts, iam));
        assert_eq!(lab.refusal(TOKEN).await.0, 503);
        assert_eq!(lab.source.means.metrics.counts(step), counts);
    }
}

#[tokio::test(start_paused = true)]
async fn failures_pass_within_a_second() {
    for (does, said) in [
        (Does::Fail, "Google's IAM Credentials API: it did not answer within 5 s"),
        (Does::Refuse(500, "oops"), "Google's IAM Credentials API: it answered 500 Internal Server Error"),
        (Does::Refuse(200, "{}"), "Google's IAM Credentials API: its answer is not a token"),
    ] {
        let lab = Lab::new(GOOGLE_ACCOUNT);
        lab.servers.change(|script| script.iam = does);
        assert_eq!(lab.failure(TOKEN).await, said);
        lab.servers.change(|script| script.iam = Does::Issue(3600));
        assert_eq!(lab.failure(TOKEN).await, said);
        sleep(Duration::from_millis(900)).await;
        lab.token(TOKEN).await;
        assert_eq!(lab.servers.counts(), [1, 1, 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_named_and_not_asked_for_all_the_time() {
    for (message, right) in [
        (
            "serviceaccounts \"app\" is forbidden: User cannot create",
            "impersonate-on:associated-node:create for serviceaccounts/token",
        ),
        ("audience \"shop.svc.id.goog\" not found in pod spec volume", "request-serviceaccounts-token-audience"),
    ] {
        let lab = Lab::new(GOOGLE_ACCOUNT);
        lab.servers.change(|script| script.kubernetes = Does::Refuse(403, message));
        let why = lab.failure(TOKEN).await;
        assert!(why.contains(message) && why.contains(right), "{why}");
        sleep(Duration::from_secs(9)).await;
        lab.failure(TOKEN).await;
        assert_eq!(lab.servers.counts(), [1, 0, 0]);
        assert_eq!(lab.source.means.metrics.counts(Step::Kubernetes), [0, 0, 1, 0, 0, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_credential_of_the_proxy_is_nothing_that_an_account_rests_for() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    lab.servers.change(|script| script.kubernetes = Does::Refuse(401, "Unauthorized"));
    let accounts: Vec<_> = (2..12).map(|pod| key(lab.add(pod, &format!("app{pod}")), TOKEN)).collect();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        for account in &accounts {
            assert!(lab.ask_for(account).await.is_err());
        }
        sleep(Duration::from_millis(50)).await;
    }
    let asked = lab.servers.counts()[0];
    assert!(asked <= 20, "{asked} in 5 s: no account can get a token");
    lab.servers.change(|script| script.kubernetes = Does::Issue(3600));
    sleep(Duration::from_secs(1)).await;
    for account in &accounts {
        lab.ask_for(account).await.expect("a token");
    }
}
