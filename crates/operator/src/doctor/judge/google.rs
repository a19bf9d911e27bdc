//! Whether Google's servers and the issuer's URL can be reached.

use crate::doctor::claims::Claims;
use crate::doctor::commands;
use crate::doctor::report::{Finding, Step};
use http_client::reach::Unreachable;
use identity::workloads::{Federation, Trust};

/// Whether one of Google's servers can be reached. `Ok` has the proxy on the way, if any.
pub(in crate::doctor) fn reached(
    step: Step,
    url: &str,
    node: &str,
    reached: &Result<Option<String>, Unreachable>,
) -> Finding {
    let name = if step == Step::Sts { "Security Token Service" } else { "IAM Credentials API" };
    let flag = if step == Step::Sts { "--sts-endpoint" } else { "--iam-endpoint" };
    let tried = step.trying(format!("{name} at {url}"));
    let error = match reached {
        Ok(None) => return tried.ok("it can be reached"),
        Ok(Some(proxy)) => return tried.ok(format!("it can be reached by the HTTP proxy {proxy}")),
        Err(error) => error,
    };
    let finding = tried.trouble(format!("the {name} cannot be reached: {error}"));
    match error {
        Unreachable::Authorities(_) => finding.advising("pass a PEM file of certificates with --google-ca, or omit it"),
        Unreachable::Name { host, .. } => finding
            .advising(format!(
                "the DNS server of this node must know {host}, or {flag} must name an endpoint that it knows; for a pod with \
                 hostNetwork: true, dnsPolicy: Default asks the node's"
            ))
            .looking(commands::on_node(node, &format!("nslookup {host}"))),
        Unreachable::Closed { .. } => finding.advising(
            "allow egress to it: Private Google Access or Cloud NAT of the subnet, a firewall's egress rule, a network policy; \
             or set HTTPS_PROXY to a proxy that may",
        ),
        Unreachable::Proxy { proxy, .. } => finding.advising(format!(
            "HTTPS_PROXY names {proxy}: correct it, let the proxy connect there, or name the host in NO_PROXY"
        )),
        Unreachable::Untrusted { host } => finding.advising(format!(
            "if the network inspects TLS, or {host} is a private endpoint, give the certificate of its authority in PEM with \
             --google-ca; otherwise somebody is between this node and Google"
        )),
        Unreachable::Tls { .. } => finding.advising(format!(
            "see what answers at {url} (a captive portal, or a proxy that inspects TLS), and whether this machine's clock is right"
        )),
    }
}

/// The content of the issuer's public URL, as seen by Google, which fetches keys there.
#[derive(Debug)]
pub(in crate::doctor) enum Seen {
    /// No answer, and the reason.
    Nothing(String),
    /// An issuer other than the token's.
    Other(String),
    /// A key set without the key that signed the token.
    OtherKeys,
    /// The token's issuer and key.
    Same,
}

/// Judges the issuer's public URL. If `is_exchanged`, Google has accepted the token, and so has its key.
pub(in crate::doctor) fn issuer(federation: &Federation, claims: &Claims, seen: &Seen, is_exchanged: bool) -> Finding {
    let tried = Step::Issuer.trying(format!("public URL of the issuer {}", claims.issuer));
    let Trust::Provider(provider) = &federation.trust else {
        return tried.ok("not needed: Google has the keys of GKE clusters");
    };
    let what = match seen {
        Seen::Same => return tried.ok("it has the key that signed the token"),
        Seen::Nothing(why) => format!("it does not answer from here ({why})"),
        Seen::Other(other) => format!("it names another issuer, {other}"),
        Seen::OtherKeys => format!("it does not have the key {} that signed the token", claims.key),
    };
    if is_exchanged {
        return tried.ok(format!("{what}; Google has the keys, because it accepts the token"));
    }
    let [fetch, upload] = commands::upload_keys(provider);
    let seen = format!(
        "{what}; Google needs it, unless the keys were uploaded to the provider, which cannot be seen from here"
    );
    tried
        .warning(seen)
        .advising("or make it public; uploaded keys must be uploaded again after each rotation")
        .running(fetch)
        .running(upload)
}
