//! Policies of operators, most of which extend another.

use super::*;

fn extending(rest: &str) -> Policy {
    let head = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\n";
    Choice::default().compile(&format!("{head}{rest}")).expect("a policy")
}

#[test]
fn an_earlier_rule_allows_only_the_exact_spelling() {
    let text = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\nextends: compat\n\
                rules:\n  - paths: [instance/attributes/user-data]\n    verdict: allow\n";
    let policy = Choice::default().compile(text).expect("a policy");
    assert_eq!(by(&policy, "/computeMetadata/v1/instance/attributes/user-data"), Verdict::Allow);
    for spelling in ["USER-DATA", "userData", "user-data/", "user-data/x"] {
        let target = format!("/computeMetadata/v1/instance/attributes/{spelling}");
        let visible = spelling == "user-data/";
        assert_eq!(by(&policy, &target) == Verdict::Conceal(403), !visible, "{spelling}");
    }
}

#[test]
fn what_a_policy_sets_precedes_what_it_extends() {
    const OWN: &str = "trees: [v1]\nanswer: 404\nunmatched: conceal\nrecursive: refuse\n";
    const REFUSING: &str = "recursive: refuse\n";
    const EXCEPT: &str = "recursive: refuse\nrecursiveExcept: [instance/disks]\n";
    let (account, disks) =
        ("v1/instance/service-accounts/default/?recursive=true", "v1/instance/disks/?recursive=true");
    for (base, own, target, verdict) in [
        ("compat", OWN, "v1/instance/attributes/mine", Verdict::Conceal(404)),
        ("compat", "", "v1beta1/instance/zone", Verdict::Allow),
        ("compat", OWN, "v1beta1/instance/zone", Verdict::Conceal(404)),
        ("compat", OWN, "v1/instance/?recursive=true", Verdict::Conceal(404)),
        ("compat", REFUSING, account, Verdict::Redact),
        ("compat", REFUSING, disks, Verdict::Conceal(403)),
        ("compat", EXCEPT, account, Verdict::Conceal(403)),
        ("compat", EXCEPT, disks, Verdict::Redact),
        ("compat", "", "v1/instance/", Verdict::Allow),
        ("compat", "listings: redact\n", "v1/instance/", Verdict::Redact),
        ("compat", "", "v1/instance/zone?scopes=a", Verdict::Allow),
        ("compat", "queryKeys: [alt]\n", "v1/instance/zone?scopes=a", Verdict::Conceal(403)),
        ("strict", "", "v1/instance/zone?unknown=1", Verdict::Allow),
        ("strict", "otherQueryKeys: refuse\n", "v1/instance/zone?unknown=1", Verdict::Conceal(404)),
        ("strict", "", "v1/instance/image", Verdict::Conceal(404)),
    ] {
        let policy = extending(&format!("extends: {base}\n{own}"));
        assert_eq!(by(&policy, &format!("/computeMetadata/{target}")), verdict, "{target} by {base} with {own:?}");
    }
}

#[test]
fn a_method_that_the_policy_does_not_name_is_concealed() {
    let own = extending("extends: compat\nmethods: [GET]\n");
    let zone = request("/computeMetadata/v1/instance/zone");
    assert!(matches!(own.judge(&zone), Decision::Allow));
    let head = Request { method: crate::metadata::Method::Head, ..zone };
    assert!(matches!(own.judge(&head), Decision::Conceal(Cause::Method(_))));
}

#[test]
fn a_rules_answer_precedes_the_policys() {
    let own = extending(
        "extends: compat\nrules:\n  - paths: [instance/id]\n    verdict: conceal\n    reason: x\n    answer: 404\n",
    );
    assert_eq!(by(&own, "/computeMetadata/v1/instance/id"), Verdict::Conceal(404));
}

#[test]
fn a_path_that_an_earlier_rule_decides_is_named() {
    let head = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nversion: '1'\n";
    let overruled = |rules: &[(&str, &str)], more: &str| {
        let rule = |(path, verdict): &(&str, &str)| format!("- {{paths: [{path}], verdict: {verdict}, reason: x}}\n");
        let rules: String = rules.iter().map(rule).collect();
        let choice = Choice { source: Source::parse("compat"), recursive: None };
        let policy = choice.compile(&format!("{head}{more}rules:\n{rules}")).expect("a policy");
        policy.overruled().map(|found| format!("{} {} {}", found.rule, found.path, found.by)).collect::<Vec<_>>()
    };
    let kube_env = "instance/attributes/kube-env";
    for (rules, found) in [
        (&[("'**'", "allow"), (kube_env, "conceal")] as &[_], Some("2 instance/attributes/kube-env 1")),
        (&[("'**'", "allow"), ("'**/kube-env'", "conceal")], Some("2 **/kube-env 1")),
        (
            &[("instance/**", "allow"), ("'instance/attributes/kube-*'", "conceal")],
            Some("2 instance/attributes/kube-* 1"),
        ),
        (&[("instance/attributes", "conceal"), (kube_env, "allow")], Some("2 instance/attributes/kube-env 1")),
        (&[("'instance/attributes/kube*'", "allow"), (kube_env, "conceal")], Some("2 instance/attributes/kube-env 1")),
        (&[(kube_env, "conceal"), ("'**'", "allow")], None),
        (&[("'instance/*'", "allow"), ("instance/**", "conceal")], None),
        (&[("'instance/attributes/kube-*'", "allow"), ("'instance/attributes/*'", "conceal")], None),
        (&[("instance/attributes", "allow"), (kube_env, "conceal")], None),
    ] {
        assert_eq!(overruled(rules, ""), Vec::from_iter(found), "{rules:?}");
    }
    let over_compat = overruled(&[(kube_env, "allow")], "extends: compat\n");
    assert!(over_compat.is_empty(), "a policy is extended to overrule it: {over_compat:?}");
    for policy in ["compat", "strict", "k8s-metadata-proxy"].map(built_in) {
        assert_eq!(policy.overruled().next(), None, "{}", policy.name());
    }
}
