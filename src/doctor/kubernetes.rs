//! What is asked of the API server, and of the node's processes.

use std::time::{Duration, SystemTime};

use super::claims::Claims;
use super::judge::{cluster as judge, token};
use super::patient::{Patient, Whose};
use super::report::{Finding, Step};
use super::{Deadline, MAX_STEP};
use crate::cluster::{
    AccountObject, Cluster, OwnCluster, PodObject, PodToken, Public, Published, RequestError, TokenRequest,
    TokenRequestError, User,
};
use crate::identity::Settings;
use crate::pods::{Sandboxes, read};

/// What Kubernetes gave.
#[derive(Default)]
pub(super) struct Kubernetes {
    pub(super) findings: Vec<Finding>,
    /// Whose token is tried.
    pub(super) patient: Option<Patient>,
    pub(super) account: Option<AccountObject>,
    pub(super) token: Option<PodToken>,
    /// What the token says.
    pub(super) claims: Option<Claims>,
    /// Who issues tokens: what the token says, or else what the API server publishes.
    pub(super) issuer: Option<String>,
    /// How far this machine's clock is ahead of the API server's, in seconds.
    pub(super) ahead: Option<i64>,
}

/// Asks the API server, and looks at the node's processes.
pub(super) async fn ask(settings: &Settings, whose: &Whose, deadline: Deadline) -> Kubernetes {
    let mut asked = Kubernetes::default();
    let pods = if let Some((cluster, own, user)) = connect(settings, &mut asked, deadline).await {
        let pods = patient(settings, whose, &cluster, user.as_ref(), &mut asked, deadline).await;
        credentials(settings, &cluster, &own, user.as_ref(), &mut asked, deadline).await;
        pods
    } else {
        asked.skip(Step::Pods, "pods of this node");
        asked.skip(Step::Keys, "issuer and keys that the API server publishes");
        None
    };
    asked.skip_missing(settings);
    let networked = pods.map(|pods| {
        let is_networked = |pod: &&PodObject| read(pod, &settings.cluster.node).is_some_and(|pod| pod.has_network());
        pods.iter().filter(is_networked).count()
    });
    asked.findings.push(proc(settings, networked));
    asked
}

/// Who the credential is.
async fn connect(
    settings: &Settings,
    asked: &mut Kubernetes,
    deadline: Deadline,
) -> Option<(Cluster, OwnCluster, Option<User>)> {
    let connected =
        async { Ok((Cluster::connect(&settings.cluster).await?, OwnCluster::connect(&settings.cluster).await?)) };
    let (cluster, own) = match connected.await {
        Ok(connected) => connected,
        Err(error) => {
            let error = RequestError::Cluster(error);
            asked.findings.push(judge::api_server("", &settings.cluster, &Err(error)));
            return None;
        }
    };
    let began = SystemTime::now();
    let silent = || Published { answer: Err(RequestError::Silent(MAX_STEP)), date: None };
    let Published { answer, date } = deadline.within(own.user()).await.unwrap_or_else(silent);
    asked.ahead = date.map(|date| token::ahead(began, date));
    let finding = judge::api_server(&cluster.server(), &settings.cluster, &answer);
    let is_reached = match &answer {
        Ok(_) => true,
        Err(error) => finding.verdict < super::Verdict::Trouble && error.failure() != crate::cluster::Failure::Cluster,
    };
    asked.findings.push(finding);
    is_reached.then(|| (cluster, own, answer.ok()))
}

/// Lists this node's pods, chooses one, and reads its account.
async fn patient(
    settings: &Settings,
    whose: &Whose,
    cluster: &Cluster,
    user: Option<&User>,
    asked: &mut Kubernetes,
    deadline: Deadline,
) -> Option<Vec<PodObject>> {
    let listed = or_silent(deadline.within(cluster.list()).await).map(|(pods, _)| pods);
    asked.findings.push(judge::pods(&settings.cluster, user, listed.as_ref().map(Vec::len)));
    let pods = listed.ok().filter(|pods| !pods.is_empty())?;
    let patient = match Patient::choose(&pods, &settings.cluster.node, whose, &settings.passthrough) {
        Ok(patient) => patient,
        Err(unfit) => {
            asked.findings.push(judge::nobody(&unfit, settings.cluster.node.as_str()));
            return Some(pods);
        }
    };
    let account = cluster.service_account(&patient.namespace, &patient.account);
    let account = or_silent(deadline.within(account).await);
    let found = account.as_ref().map(Option::is_some);
    asked.findings.push(judge::account(&settings.cluster, &patient, user, found));
    asked.account = account.ok().flatten();
    asked.patient = Some(patient);
    Some(pods)
}

/// Asks for the token, and for what the API server publishes.
async fn credentials(
    settings: &Settings,
    cluster: &Cluster,
    own: &OwnCluster,
    user: Option<&User>,
    asked: &mut Kubernetes,
    deadline: Deadline,
) {
    let published = async {
        let (issuer, keys) = tokio::join!(own.published(Public::Issuer), own.published(Public::Keys));
        (issuer.answer, keys.answer)
    };
    let issued = async {
        let (patient, federation) = (asked.patient.as_ref()?, settings.federation.as_ref()?);
        let request = TokenRequest {
            namespace: &patient.namespace,
            account: &patient.account,
            audience: federation.token_audience(),
            pod: &patient.pod,
            pod_uid: &patient.pod_uid,
        };
        let silent = || Err(TokenRequestError::Request(RequestError::Silent(MAX_STEP)));
        let began = SystemTime::now();
        let issued = deadline.within(cluster.token(&request)).await.unwrap_or_else(silent);
        let finding = judge::token(&settings.cluster, patient, request.audience, user, issued.as_ref().map(drop));
        Some((finding, issued.ok(), began))
    };
    let (published, issued) = tokio::join!(deadline.within(published), issued);
    if let Some((finding, token, began)) = issued {
        asked.findings.push(finding);
        asked.claims = token.as_ref().and_then(|token| Claims::read(&token.secret));
        if let (Some(_), Some(federation)) = (&token, &settings.federation) {
            asked.findings.push(token::claims(asked.claims.as_ref(), federation.token_audience()));
        }
        // A token says when it was issued, whatever stands in front of the API server says of the time.
        let claims = asked.claims.as_ref();
        let date = claims.and_then(|claims| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(claims.issued)));
        asked.ahead = date.map(|date| token::ahead(began, date)).or(asked.ahead);
        asked.token = token;
    }
    let silent = || (Err(RequestError::Silent(MAX_STEP)), Err(RequestError::Silent(MAX_STEP)));
    let (document, keys) = published.unwrap_or_else(silent);
    asked.findings.push(token::keys(asked.claims.as_ref(), &document, &keys));
    let of_token = asked.claims.as_ref().map(|claims| claims.issuer.clone());
    asked.issuer = of_token.or_else(|| token::issuer_in(document.as_ref().ok()?));
}

impl Kubernetes {
    fn skip(&mut self, step: Step, tried: &str) {
        self.findings.push(Finding::not_tried(step, tried, "the API server is not reached"));
    }

    /// Reports the steps that something was missing for.
    fn skip_missing(&mut self, settings: &Settings) {
        if self.patient.is_none() {
            let because = "it is not known whose";
            self.findings.push(Finding::not_tried(Step::Account, "service account", because));
            self.findings.push(Finding::not_tried(Step::Token, "Kubernetes token", because));
        } else if settings.federation.is_none() {
            let because = "it is not known for which audience";
            self.findings.push(Finding::not_tried(Step::Token, "Kubernetes token", because));
        }
        if self.token.is_none() {
            self.findings.push(Finding::not_tried(Step::Claims, "what that token says", "there is no token"));
        }
    }
}

fn or_silent<T>(answer: Option<Result<T, RequestError>>) -> Result<T, RequestError> {
    answer.unwrap_or(Err(RequestError::Silent(MAX_STEP)))
}

/// Looks for the processes of pods, of which so many are known.
fn proc(settings: &Settings, pods: Option<usize>) -> Finding {
    let opened = Sandboxes::open(&settings.host_proc);
    let (dir, node) = (settings.host_proc.display().to_string(), settings.cluster.node.as_str());
    judge::proc(&dir, node, opened.as_ref().map(Sandboxes::scan), pods)
}
