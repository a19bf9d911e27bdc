//! Tokens that are bound to a certificate.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_bound_token_is_an_exchange_of_its_own_for_each_certificate() {
    let lab = Lab::new("");
    let bound = |certificate: u8, target: &str| bound_key(lab.number, certificate, target);
    assert_eq!(lab.token(TOKEN).await, "fed-1");
    assert_eq!(lab.ask_for(&bound(1, TOKEN)).await.expect("a token").0, "fed-2");
    assert_eq!(lab.ask_for(&bound(2, TOKEN)).await.expect("a token").0, "fed-3");
    assert_eq!(lab.ask_for(&bound(2, "default/token?scopes=a")).await.expect("a token").0, "fed-4");
    assert_eq!(lab.token(TOKEN).await, "fed-1", "a plain one is not bound");
    let sent = lab.servers.read(|script| script.exchanges.clone());
    let of = |exchange: &Value| (exchange["scope"].clone(), exchange["options"].clone());
    let options = |certificate: u8| {
        json!(json!({"bindCertFingerprint": Fingerprint::from([certificate; 32]).to_string()}).to_string())
    };
    assert_eq!(
        sent.iter().map(of).collect::<Vec<_>>(),
        [
            (json!(sts::CLOUD_PLATFORM), Value::Null),
            (json!(sts::CLOUD_PLATFORM), options(1)),
            (json!(sts::CLOUD_PLATFORM), options(2)),
            (json!("a"), options(2)),
        ]
    );
    assert_eq!(lab.servers.counts()[0], 1, "all for one Kubernetes token");

    lab.servers.change(|script| script.delay = Duration::from_millis(1));
    // Certificates that are made up leave what is not bound alone.
    let mut refused = 0;
    for number in 0..200 {
        let target = format!("default/token?scopes=s{number}");
        refused += usize::from(lab.ask_for(&bound(3, &target)).await.is_err());
    }
    assert!(refused > 70, "{refused}");
    assert!(lab.ask("default/token?scopes=x").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_bound_is_not_found_with_the_setting_that_helps() {
    let lab = Lab::new(GOOGLE_ACCOUNT);
    for (target, why) in [(TOKEN, "is linked to a Google account"), (IDENTITY, "identity tokens are not bound")] {
        let asked = lab.ask_for(&bound_key(lab.number, 1, target)).await;
        let Err(NoToken::Refused(refused)) = asked else { panic!("{target}: a token") };
        let text = String::from_utf8_lossy(&refused.body).into_owned();
        assert_eq!(refused.status, StatusCode::NOT_FOUND);
        assert!(text.contains(why) && text.contains("GOOGLE_API_ENABLE_RUNTIME_BOUND_TOKEN=false"), "{text}");
    }
    assert_eq!(lab.servers.counts()[1..], [0, 0]);
}
