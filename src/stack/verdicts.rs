//! The fixture `tests/fixtures/verdicts.tsv`, for verdicts that depend only on a path and a query: the built-in policies
//! judge them without a network. `tests/it/concealment.rs` tests the binary, and the verdicts that depend on a header.

#[path = "../../tests/fixtures/verdicts.rs"]
#[allow(unreachable_pub, dead_code, reason = "the integration test needs more of it")]
mod fixture;

use fixture::{Fate, Verdict, rows};

use protocol::metadata::host::AllowedHosts;
use protocol::metadata::{Malformed, Request, RequestError};
use proxy::error::Error;
use proxy::layers::discovery::Discovery;
use proxy::layers::filter::Decide;
use proxy::policy::{Choice, Concealed, Decision, Policy, Source};

#[test]
fn requests_are_judged_as_the_fixture_says() {
    let built_in = |name: &str| Choice { source: Source::parse(name), recursive: None }.load().expect("built in");
    let [compat, strict, published] = ["compat", "strict", "k8s-metadata-proxy"].map(built_in);
    let mut judged = 0;
    let mut failures = Vec::new();
    for row in rows() {
        let Some(("GET" | "HEAD", target)) = row.plain() else { continue };
        judged += 1;
        for (policy, expected) in [(&compat, row.compat), (&strict, row.strict), (&published, row.published)] {
            let found = verdict(policy, &target);
            if !agree(expected, found) {
                failures.push(format!("line {}, {}: {target} is {found:?}, not {expected:?}", row.line, policy.name()));
            }
        }
    }
    assert!(failures.is_empty(), "{} wrong verdicts:\n{}", failures.len(), failures.join("\n"));
    assert!(judged >= 250, "only {judged} rows could be judged without a network");
}

#[test]
fn no_attack_is_left_out() {
    assert!(rows().len() >= 250);
    let text = include_str!("../../tests/fixtures/verdicts.tsv");
    for attack in ATTACKS.split_whitespace() {
        let has_row = text.lines().any(|line| line.split('\t').nth(3) == Some(attack));
        let is_elsewhere = text.lines().any(|line| line.starts_with('#') && line.contains(attack));
        assert!(has_row != is_elsewhere, "{attack} is either a row or named in the head");
    }
}

/// Every ID in the protocol notes' list of attacks, with the gaps of that list.
const ATTACKS: &str = "
    A01 A02 A03 A04 A05 A06 A07 A08 A09 A10 A12 A13 A14 A15 A16 A17 A18 A19 A21 A23 A24 A26 A27 A28 A29 A30 A31 A32 A34
    A35 A36 A37 A38 A39 A40 A44 A45 A46 A48 A50 A51 A52 A55 A56 A57 A59 A60 A61 A62 A63 A64 A66 A67 A69";

fn verdict(policy: &Policy, target: &str) -> Verdict {
    let refusal = |error: &Error| Verdict { fate: Fate::Refuse, status: Some(error.status().as_u16()) };
    let request = match read(target) {
        Ok(request) => request,
        Err(error) => return refusal(&error),
    };
    if Discovery.answers_from_memory(&request) {
        return Verdict { fate: Fate::Own, status: None };
    }
    match policy.judge(&request) {
        Decision::Allow | Decision::Flat => Verdict { fate: Fate::Serve, status: None },
        Decision::Redact => Verdict { fate: Fate::Cut, status: None },
        Decision::Redirect => Verdict { fate: Fate::Own, status: Some(301) },
        Decision::Conceal(cause) => refusal(&Concealed::new(policy, &request.path, &request.query, cause).into()),
    }
}

fn read(target: &str) -> Result<Box<Request>, Error> {
    let request = http::Request::get(target).header("host", "metadata").header("metadata-flavor", "Google").body(());
    let (head, ()) = request.map_err(|_| RequestError::from(Malformed::Target))?.into_parts();
    Ok(Request::parse(head, false, None, &AllowedHosts::default())?)
}

/// The metadata server's answer is not known here: there is a status only where the proxy chooses one.
fn agree(expected: Verdict, found: Verdict) -> bool {
    let by_the_server = |verdict: Verdict| matches!(verdict.fate, Fate::Serve | Fate::Open);
    match found.fate {
        Fate::Serve => by_the_server(expected),
        // The directory may not exist on the server; then there is nothing to cut.
        Fate::Cut => {
            matches!(expected.fate, Fate::Cut | Fate::Part)
                || (expected.fate == Fate::Serve && expected.status != Some(200))
        }
        fate => fate == expected.fate && found.status.is_none_or(|status| expected.status == Some(status)),
    }
}
