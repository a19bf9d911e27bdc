//! Requests to the API server, and the scan of the node's processes.

use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::timeout_at;

use super::Deadline;
use super::claims::Claims;
use super::judge::{cluster as judge, rights, token};
use super::patient::{Patient, Whose};
use super::report::{Finding, Step, Verdict};
use identity::Settings;
use identity::cluster::{
    AccountObject, Cluster, ClusterError, Failure, OwnCluster, PodObject, PodToken, Public, Published, RequestError,
    TokenRequest, User,
};
use identity::pods::{ProcError, Sandboxes, Scanned, read};

/// The findings and objects from Kubernetes.
#[derive(Default)]
pub(super) struct Kubernetes {
    pub(super) findings: Vec<Finding>,
    /// The pod and account whose token is tried.
    pub(super) patient: Option<Patient>,
    pub(super) account: Option<AccountObject>,
    pub(super) token: Option<PodToken>,
    pub(super) claims: Option<Claims>,
    /// The issuer of tokens: according to the token, or else as the API server publishes it.
    pub(super) issuer: Option<String>,
    /// Offset of this machine's clock from the API server's, in seconds. Positive if it is ahead.
    pub(super) ahead: Option<i64>,
    /// The review of the credential's rights beside the other steps. It is about twenty requests, one after another, so it may take
    /// all the time.
    pub(super) rights: JoinSet<Vec<Finding>>,
}

/// Queries the API server, and scans the node's processes.
pub(super) async fn ask(settings: &Settings, whose: &Whose, deadline: Deadline) -> Kubernetes {
    let (scanned, (mut asked, pods)) = tokio::join!(scan(settings, deadline), ask_server(settings, whose, deadline));
    asked.skip_missing(settings);
    let networked = pods.map(|pods| {
        let is_networked = |pod: &&PodObject| read(pod, &settings.cluster.node).is_some_and(|pod| pod.has_network());
        pods.iter().filter(is_networked).count()
    });
    let (dir, node) = (settings.host_proc.display().to_string(), settings.cluster.node.as_str());
    asked.findings.push(match scanned {
        Some(scanned) => judge::proc(&dir, node, scanned.as_ref().copied(), networked),
        None => judge::slow_proc(&dir, deadline.step),
    });
    asked
}

/// Queries the API server. Also returns the pods of this node, if they can be listed.
async fn ask_server(settings: &Settings, whose: &Whose, deadline: Deadline) -> (Kubernetes, Option<Vec<PodObject>>) {
    let mut asked = Kubernetes::default();
    let Some((cluster, own)) = connect(settings, &mut asked, deadline).await else {
        asked.skip(Step::Rights, "rights of the credential");
        asked.skip_server();
        return (asked, None);
    };
    asked.rights.spawn(review(settings, cluster.clone(), deadline));
    let mut asking = Asking { settings, cluster, own, user: None, deadline, asked };
    if !asking.who().await {
        asking.asked.skip_server();
        return (asking.asked, None);
    }
    let pods = asking.patient(whose).await;
    asking.credentials().await;
    (asking.asked, pods)
}

/// Reviews the credential's rights.
fn review(settings: &Settings, cluster: Cluster, deadline: Deadline) -> impl Future<Output = Vec<Finding>> + use<> {
    let audience = settings.federation.as_ref().map(|federation| federation.token_audience().to_owned());
    async move {
        let found = timeout_at(deadline.end, cluster.rights(audience.as_deref())).await.ok();
        rights::found(found.as_ref().map(Result::as_ref))
    }
}

/// Reads the credential's files, which can block.
async fn connect(settings: &Settings, asked: &mut Kubernetes, deadline: Deadline) -> Option<(Cluster, OwnCluster)> {
    let (of_cluster, runtime) = (settings.cluster.clone(), Handle::current());
    let connecting = async move {
        Ok::<_, ClusterError>((Cluster::connect(&of_cluster).await?, OwnCluster::connect(&of_cluster).await?))
    };
    match deadline.aside(move || runtime.block_on(connecting)).await {
        Some(Ok(connected)) => Some(connected),
        Some(Err(error)) => {
            let error = RequestError::Cluster(error);
            asked.findings.push(judge::api_server("", &settings.cluster, &Err(error)));
            None
        }
        None => {
            asked.findings.push(judge::slow_credential(deadline.step));
            None
        }
    }
}

/// An API server that can be queried, and its answers so far.
struct Asking<'a> {
    settings: &'a Settings,
    cluster: Cluster,
    own: OwnCluster,
    /// The credential's user, if the API server names it.
    user: Option<User>,
    deadline: Deadline,
    asked: Kubernetes,
}

impl Asking<'_> {
    /// Asks for the credential's user. Returns whether the API server can be reached.
    async fn who(&mut self) -> bool {
        let began = SystemTime::now();
        let left = self.deadline.left();
        let silent = || Published { answer: Err(RequestError::Silent(left)), date: None };
        let Published { answer, date } = self.deadline.within(self.own.user()).await.unwrap_or_else(silent);
        self.asked.ahead = date.map(|date| token::ahead(began, date));
        let finding = judge::api_server(&self.cluster.server(), &self.settings.cluster, &answer);
        let is_reached = match &answer {
            Ok(_) => true,
            Err(error) => finding.verdict < Verdict::Trouble && error.failure() != Failure::Cluster,
        };
        self.asked.findings.push(finding);
        self.user = answer.ok();
        is_reached
    }

    /// Lists this node's pods, chooses one, and reads its account.
    async fn patient(&mut self, whose: &Whose) -> Option<Vec<PodObject>> {
        let (settings, user) = (&self.settings.cluster, self.user.as_ref());
        let listed = self.deadline.answer(self.cluster.list()).await.map(|(pods, _)| pods);
        self.asked.findings.push(judge::pods(settings, user, listed.as_ref().map(Vec::len)));
        let pods = listed.ok().filter(|pods| !pods.is_empty())?;
        let patient = match Patient::choose(&pods, &settings.node, whose, &self.settings.passthrough) {
            Ok(patient) => patient,
            Err(unfit) => {
                self.asked.findings.push(judge::nobody(&unfit, settings.node.as_str()));
                return Some(pods);
            }
        };
        let reading = self.cluster.service_account(&patient.namespace, &patient.account);
        let account = self.deadline.answer(reading).await;
        let found = account.as_ref().map(Option::is_some);
        self.asked.findings.push(judge::account(settings, &patient, user, found));
        self.asked.account = account.ok().flatten();
        self.asked.patient = Some(patient);
        Some(pods)
    }

    /// Requests the token, and the issuer and keys that the API server publishes.
    async fn credentials(&mut self) {
        let Self { settings, cluster, own, user, deadline, asked } = self;
        let own = &*own;
        let published = |what| deadline.answer(async move { own.published(what).await.answer });
        let issued = async {
            let (patient, federation) = (asked.patient.as_ref()?, settings.federation.as_ref()?);
            let request = TokenRequest {
                namespace: &patient.namespace,
                account: &patient.account,
                audience: federation.token_audience(),
                pod: &patient.pod,
                pod_uid: &patient.pod_uid,
            };
            let began = SystemTime::now();
            let issued = deadline.answer(cluster.token(&request)).await;
            let (audience, outcome) = (request.audience, issued.as_ref().map(drop));
            let finding = judge::token(&settings.cluster, patient, audience, user.as_ref(), outcome);
            Some((finding, issued.ok(), began))
        };
        let (document, keys, issued) = tokio::join!(published(Public::Issuer), published(Public::Keys), issued);
        if let Some((finding, token, began)) = issued {
            asked.findings.push(finding);
            asked.claims = token.as_ref().and_then(|token| Claims::read(&token.secret));
            if let (Some(_), Some(federation)) = (&token, &settings.federation) {
                asked.findings.push(token::claims(asked.claims.as_ref(), federation.token_audience()));
            }
            // A token contains its time of issue, whatever date a proxy in front of the API server sends.
            let claims = asked.claims.as_ref();
            let date = claims.and_then(|claims| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(claims.issued)));
            asked.ahead = date.map(|date| token::ahead(began, date)).or(asked.ahead);
            asked.token = token;
        }
        asked.findings.push(token::keys(asked.claims.as_ref(), &document, &keys));
        let of_token = asked.claims.as_ref().map(|claims| claims.issuer.clone());
        asked.issuer = of_token.or_else(|| token::issuer_in(document.as_ref().ok()?));
    }
}

impl Kubernetes {
    /// Reports the steps that need the API server as not tried.
    fn skip_server(&mut self) {
        self.skip(Step::Pods, "pods of this node");
        self.skip(Step::Keys, "issuer and keys that the API server publishes");
    }

    fn skip(&mut self, step: Step, tried: &'static str) {
        self.findings.push(step.trying(tried).not_tried("the API server is not reached"));
    }

    /// Reports the steps whose input is missing as not tried.
    fn skip_missing(&mut self, settings: &Settings) {
        if self.patient.is_none() {
            let because = "it is not known whose";
            self.findings.push(Step::Account.trying("service account").not_tried(because));
            self.findings.push(Step::Token.trying("Kubernetes token").not_tried(because));
        } else if settings.federation.is_none() {
            let because = "it is not known for which audience";
            self.findings.push(Step::Token.trying("Kubernetes token").not_tried(because));
        }
        if self.token.is_none() {
            self.findings.push(Step::Claims.trying("what that token says").not_tried("there is no token"));
        }
    }
}

/// Scans for the processes of pods. `None` if that takes too long. Their networks are not read: the kernel would charge the memory for
/// that to the container of the proxy, in which this command runs.
async fn scan(settings: &Settings, deadline: Deadline) -> Option<Result<Scanned, ProcError>> {
    let dir = settings.host_proc.clone();
    deadline.aside(move || Sandboxes::count_at(&dir)).await
}
