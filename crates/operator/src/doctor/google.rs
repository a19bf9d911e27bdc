//! Requests to Google, and to the issuer's public URL.

use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri};
use serde::Deserialize;

use super::claims::Claims;
use super::judge::google::{self as judge, Seen};
use super::judge::settings::settings;
use super::judge::{link, sts, token};
use super::kubernetes::Kubernetes;
use super::patient::Patient;
use super::report::{Finding, Step, Verdict};
use super::{Deadline, MAX_STEP, NO_TIME};
use http_client::reach::reach as reach_by_steps;
use http_client::secure::connector;
use http_client::{HttpClient, Limits};
use identity::cluster::{AccountObject, PodToken, Public};
use identity::tokens::attempt::{self, Federated};
use identity::tokens::{Google, NotGiven};
use identity::workloads::{Federation, Link, Names, Trust, Workload};

/// Limits of a request to the issuer's URL. A key set has some KiB.
const LIMITS: Limits = Limits { timeout: MAX_STEP, max_body_bytes: 64 << 10 };

/// Whether Google's servers can be reached.
#[derive(Debug, Default)]
pub(super) struct Reached {
    pub(super) findings: Vec<Finding>,
    sts: bool,
    iam: bool,
    /// Offset of this machine's clock from Google's, in seconds. Positive if it is ahead.
    pub(super) ahead: Option<i64>,
}

/// Connects to both of Google's servers.
pub(super) async fn reach(federation: &Federation, node: &str, deadline: Deadline) -> Reached {
    let (sts, iam) = tokio::join!(
        reach_one(Step::Sts, federation.sts.as_str(), federation, node, deadline),
        reach_one(Step::Iam, federation.iam.as_str(), federation, node, deadline)
    );
    let is_reached = |finding: &Finding| finding.verdict < Verdict::Trouble;
    let ahead = if is_reached(&sts) { deadline.within(ahead(federation)).await.flatten() } else { None };
    Reached { sts: is_reached(&sts), iam: is_reached(&iam), findings: vec![sts, iam], ahead }
}

async fn reach_one(step: Step, url: &str, federation: &Federation, node: &str, deadline: Deadline) -> Finding {
    let uri: Uri = url.parse().expect("it was parsed as one");
    let reaching = reach_by_steps(&uri, federation.google_ca.as_deref());
    match tokio::time::timeout_at(deadline.end, reaching).await {
        Ok(reached) => judge::reached(step, url, node, &reached),
        Err(_) => step.trying(url.to_owned()).trouble("the time for all steps was over before it was reached"),
    }
}

/// Offset of this machine's clock from that of the Security Token Service, which is in every response. Positive if it
/// is ahead.
async fn ahead(federation: &Federation) -> Option<i64> {
    let began = SystemTime::now();
    let response = get(&format!("{}/", federation.sts), federation.google_ca.as_deref()).await.ok()?;
    Some(token::ahead(began, proxy::tokens::date(response.headers())?))
}

async fn get(url: &str, ca: Option<&Path>) -> Result<Response<Bytes>, String> {
    let connector = connector(ca).map_err(|error| error.to_string())?;
    let request = Request::get(url).body(Bytes::new()).map_err(|error| error.to_string())?;
    HttpClient::with_connector(connector, LIMITS).send(request).await.map_err(|error| error.to_string())
}

/// Results of the token exchange, and of the request for the Google account's token.
#[derive(Debug, Default)]
pub(super) struct Exchanged {
    pub(super) findings: Vec<Finding>,
    /// The identity whose tokens pods get, if they get any.
    pub(super) identity: Option<String>,
}

/// Exchanges the Kubernetes token, and requests the token of the Google account.
pub(super) async fn exchange(
    federation: &Federation,
    kubernetes: Kubernetes,
    reached: &Reached,
    deadline: Deadline,
) -> Exchanged {
    let Kubernetes { patient, account, token, claims, issuer, .. } = kubernetes;
    let mut findings = Vec::new();
    let subject = patient.zip(account).map(|(patient, account)| Subject::new(&patient, account, federation));
    findings.push(match &subject {
        Some(subject) => subject.finding.clone(),
        None => Step::Link.trying("annotations").not_tried("the service account could not be read"),
    });
    let google = Google::new(federation).ok().filter(|_| reached.sts);
    let link = subject.as_ref().and_then(|subject| subject.link.clone()).unwrap_or_default();
    let exchanged = federate(google.as_ref(), federation, token, &link, deadline).await;
    let life = exchanged.as_ref().map(|exchanged| exchanged.as_ref().map(Federated::life));
    findings.push(match life {
        Ok(life) => sts::exchange(federation, claims.as_ref(), life),
        Err(why) => sts::TRIED.not_tried(*why),
    });
    let federated = exchanged.ok().and_then(Result::ok);
    findings.push(settings(federation, issuer.as_deref(), federated.is_some()));
    findings.push(match &claims {
        Some(claims) => {
            judge::issuer(federation, claims, &seen(federation, claims, deadline).await, federated.is_some())
        }
        None => Step::Issuer.trying("public URL of the issuer").not_tried("there is no token that names it"),
    });
    let Some(subject) = subject else { return Exchanged { findings, identity: None } };
    let (finding, identity) = subject.act(google.as_ref(), federation, federated, reached, deadline).await;
    findings.extend(finding);
    Exchanged { findings, identity }
}

/// Exchanges the Kubernetes token at the Security Token Service. An error says why that was not tried.
async fn federate(
    google: Option<&Google>,
    federation: &Federation,
    token: Option<PodToken>,
    link: &Link,
    deadline: Deadline,
) -> Result<Result<Federated, NotGiven>, &'static str> {
    let token = token.ok_or("there is no Kubernetes token")?;
    let google = google.ok_or(NOT_REACHED)?;
    if deadline.is_over() {
        return Err(NO_TIME);
    }
    let left = deadline.left();
    let exchanging = attempt::exchange(google, federation, token, link);
    Ok(deadline.within(exchanging).await.unwrap_or_else(|| Err(silent(left))))
}

const NOT_REACHED: &str = "the server is not reached";

/// The account whose token is tried.
struct Subject {
    /// The account's name in IAM.
    member: String,
    /// `None` if the annotations are malformed.
    link: Option<Link>,
    finding: Finding,
}

impl Subject {
    fn new(patient: &Patient, account: AccountObject, federation: &Federation) -> Self {
        let annotations = account.metadata.annotations.unwrap_or_default();
        let workload = Workload {
            namespace: patient.namespace.as_str().into(),
            name: patient.account.as_str().into(),
            uid: account.metadata.uid.into(),
            link: Link::parse(&annotations),
        };
        let member = Names::of(federation).member(&workload).unwrap_or_default();
        let finding = link::link(patient, &annotations, &workload.link, &member);
        Self { member, link: workload.link.ok(), finding }
    }

    /// Requests the token that pods request, if that is a Google account's. Also returns the identity that pods get tokens for.
    async fn act(
        self,
        google: Option<&Google>,
        federation: &Federation,
        federated: Option<Federated>,
        reached: &Reached,
        deadline: Deadline,
    ) -> (Option<Finding>, Option<String>) {
        let Some(link) = self.link else { return (None, None) };
        let Some(account) = &link.google_account else { return (None, federated.map(|_| self.member)) };
        let skip = |why| {
            let tried = Step::Impersonation.trying(format!("access token of {account}"));
            (Some(tried.not_tried(why)), None)
        };
        let (Some(google), Some(federated)) = (google, federated) else { return skip("there is no federated token") };
        if !reached.iam {
            return skip(NOT_REACHED);
        }
        if deadline.is_over() {
            return skip(NO_TIME);
        }
        let left = deadline.left();
        let issuing = attempt::impersonate(google, federation, &federated, account, &link);
        let issued = deadline.within(issuing).await.unwrap_or_else(|| Err(silent(left)));
        let finding = link::impersonation(&link, account, &self.member, issued.as_ref().copied());
        (Some(finding), issued.is_ok().then(|| account.to_string()))
    }
}

fn silent(waited: Duration) -> NotGiven {
    NotGiven::Failed(format!("it did not answer within {} s", waited.as_secs_f64().ceil()))
}

/// Checks the issuer's public URL, if Google reads it.
async fn seen(federation: &Federation, claims: &Claims, deadline: Deadline) -> Seen {
    let Trust::Provider(_) = &federation.trust else { return Seen::Same };
    let ca = federation.google_ca.as_deref();
    let looking = async { look(claims, ca).await.unwrap_or_else(Seen::Nothing) };
    let left = deadline.left();
    let silent = || Seen::Nothing(format!("no answer within {} s", left.as_secs_f64().ceil()));
    deadline.within(looking).await.unwrap_or_else(silent)
}

async fn look(claims: &Claims, ca: Option<&Path>) -> Result<Seen, String> {
    /// An `OpenID` discovery document.
    #[derive(Deserialize)]
    struct Document {
        issuer: String,
        jwks_uri: String,
    }
    let url = format!("{}{}", claims.issuer.trim_end_matches('/'), Public::Issuer.path());
    let uri: Uri = url.parse().map_err(|_| "it is not a URL".to_owned())?;
    reach_by_steps(&uri, ca).await.map_err(|error| error.to_string())?;
    let document = public(&url, ca).await?;
    let Document { issuer, jwks_uri } =
        serde_json::from_slice(&document).map_err(|_| "what it answers is not a document of OpenID".to_owned())?;
    if issuer != claims.issuer {
        return Ok(Seen::Other(issuer));
    }
    let keys = public(&jwks_uri, ca).await?;
    Ok(if token::has_key(&keys, claims) == Some(true) { Seen::Same } else { Seen::OtherKeys })
}

/// Fetches a public URL. Google reads `https` only.
async fn public(url: &str, ca: Option<&Path>) -> Result<Bytes, String> {
    if !url.starts_with("https://") {
        return Err(format!("{url} is not an https URL"));
    }
    let response = get(url, ca).await?;
    match response.status() {
        StatusCode::OK => Ok(response.into_body()),
        status => Err(format!("{url} answers {status}")),
    }
}
