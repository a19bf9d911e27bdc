//! The running proxy's identification of the pod.

use std::net::IpAddr;

use crate::ask::AskError;
use crate::doctor::patient::Patient;
use crate::doctor::report::{Finding, Step};
use identity::{Taken, Whois};

/// Whether the proxy knows the pod at each of its addresses. From others its requests get 503, or another pod's tokens.
pub(in crate::doctor) fn proxy(patient: &Patient, answer: &Result<Whois, AskError>) -> Finding {
    let pod = patient.pod_name();
    let tried = Step::Proxy.trying(format!("the running proxy's knowledge of the pod {pod}"));
    let whois = match answer {
        Ok(whois) => whois,
        Err(AskError::NoIdentity(said)) => {
            return tried
                .trouble("the proxy knows no pods")
                .saying(said)
                .advising("start the proxy with --workload-identity and the flags that were given here");
        }
        Err(error) => {
            return tried.warning(format!("not seen: {error}")).advising(
                "run this where the proxy runs, with its --metrics-addr, which must be on loopback or all addresses; without a proxy \
                           pods get no tokens",
            );
        }
    };
    let evidence = |finding: Finding| {
        let Patient { namespace, pod, .. } = patient;
        finding
            .saying(in_one_line(whois))
            .advising("if the pod started a moment ago, try again; otherwise the evidence above says what is missing")
            .looking(format!("kubectl get pod {pod} --namespace={namespace} --output=wide"))
    };
    if let Some(why) = &whois.without {
        return evidence(tried.trouble(format!("it takes the pod for nobody: {why}")));
    }
    let wrong = whois.addresses.iter().find_map(|(addr, taken)| trouble(&pod, *addr, taken));
    match wrong {
        Some(seen) => evidence(tried.trouble(seen)),
        None => tried.ok(known(&whois.addresses)),
    }
}

/// The evidence on one line, without columns.
fn in_one_line(whois: &Whois) -> String {
    let text = whois.to_string();
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("; ")
}

/// The problem with the identification of an address, if any.
fn trouble(pod: &str, addr: IpAddr, taken: &Taken) -> Option<String> {
    match taken {
        Taken::Pod { pod: other, passthrough: false, .. } if other == pod => None,
        Taken::Pod { passthrough: true, .. } | Taken::Node => {
            Some(format!("it takes requests from {addr} for the node's, with the node's tokens"))
        }
        Taken::Pod { pod: other, .. } => Some(format!("it takes requests from {addr} for those of the pod {other}")),
        Taken::Unknown(why) => Some(format!("its requests from {addr} get 503: {why}")),
        Taken::TooYoung => Some(format!("its processes with {addr} began a moment ago")),
    }
}

fn known(addresses: &[(IpAddr, Taken)]) -> String {
    let known = addresses.iter().filter_map(|(addr, taken)| match taken {
        Taken::Pod { evidence, .. } => Some(format!("{addr} by {evidence}")),
        Taken::Node | Taken::Unknown(_) | Taken::TooYoung => None,
    });
    format!("it is known at {}", known.collect::<Vec<_>>().join(" and "))
}
