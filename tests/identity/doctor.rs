//! `identity doctor` names what is missing, with the real API server's message, and its command fixes it.

use std::path::Path;
use std::time::Duration;

use mock::google::Workload;
use serde_json::Value;
use tokio::time::Instant;

use crate::google::{Cloud, POOL, world_with_google};
use crate::kube::{Client, NODE, OWN_NODE, pause};
use crate::pod::Pod;
use crate::process::BINARY;
use crate::rights::eventually;
use crate::support::needs::{Test, tests};
use crate::tokens::{email, proxy, subject};
use crate::world::World;

pub const TESTS: &[Test] = tests![
    the_doctor_names_a_missing_audience_and_its_command_mends_it,
    the_doctor_names_a_missing_impersonation_rule_and_its_command_mends_it,
    the_doctor_says_what_the_running_proxy_takes_a_pod_for,
];

/// Maximum time until a change of rights is noticed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Setup: a node with a pod whose account is linked, and a Google that knows it.
struct Ward {
    google: Cloud,
    api: Client,
    world: World,
}

/// The output of the doctor.
struct Diagnosis {
    code: Option<i32>,
    text: String,
}

impl Ward {
    fn new() -> Self {
        let (world, mut api, google) = world_with_google();
        api.create_account("team-0", "app");
        api.annotate_account("team-0", "app", "iam.gke.io/gcp-service-account", &email("app"));
        google.bind(Workload::new("team-0", "app"), &email("app"));
        api.create_pod("team-0", "pod", "app", NODE);
        Self { google, api, world }
    }

    /// Runs the doctor with this credential, in the place of a proxy.
    fn examine(&self, kubeconfig: &Path) -> Diagnosis {
        self.examine_whose(kubeconfig, "--account=team-0/app")
    }

    fn examine_whose(&self, kubeconfig: &Path, whose: &str) -> Diagnosis {
        let mut command = self.world.node.namespace.command(BINARY);
        command.args(["--upstream=none", "--workload-identity", "--host-proc=/proc"]).args(self.google.flags());
        command.arg(format!("--kubeconfig={}", kubeconfig.display()));
        command.args([&format!("--node-name={NODE}"), "identity", "doctor", whose]);
        let output = command.output().expect("it runs");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(!text.contains("eyJ") && !text.contains("ya29."), "a token is shown: {text}");
        println!("{text}");
        Diagnosis { code: output.status.code(), text }
    }

    /// Runs the doctor until it ends with this code: the API server learns of changed rights some moments later.
    fn examine_until(&self, kubeconfig: &Path, code: Option<i32>) -> Diagnosis {
        let began = Instant::now();
        loop {
            let diagnosis = self.examine(kubeconfig);
            if diagnosis.code == code {
                return diagnosis;
            }
            assert!(began.elapsed() < PATIENCE, "not {code:?}, but {:?}: {}", diagnosis.code, diagnosis.text);
            pause(Duration::from_millis(200));
        }
    }

    /// Applies the diagnosis, as `kubectl apply` would.
    fn mend(&mut self, diagnosis: &Diagnosis) {
        let command =
            diagnosis.text.lines().find_map(|line| line.trim().strip_prefix("fix: echo '")).expect("a command");
        let (list, rest) = command.split_once('\'').expect("quoted");
        assert_eq!(rest, " | kubectl apply -f -");
        let list: Value = serde_json::from_str(list).expect("JSON");
        for object in list["items"].as_array().expect("a list") {
            let kind = object["kind"].as_str().expect("a kind").to_lowercase();
            let version = object["apiVersion"].as_str().expect("a version");
            self.api.create(&format!("/apis/{version}/{kind}s"), object);
        }
    }

    fn take(&mut self, kind: &str, name: &str) {
        let target = format!("/apis/rbac.authorization.k8s.io/v1/{kind}/{name}");
        assert_eq!(self.api.patiently("DELETE", &target, None).status, 200, "{name}");
    }
}

/// Checks that the diagnosis has these texts.
fn says(diagnosis: &Diagnosis, said: &[&str]) {
    for said in said {
        assert!(diagnosis.text.contains(said), "{said:?} is missing from\n{}", diagnosis.text);
    }
}

/// Checks that all is well except that the proxy does not run here.
fn is_healthy(diagnosis: &Diagnosis) {
    let last = diagnosis.text.lines().last().expect("a conclusion");
    let healthy =
        format!("Pods of team-0/app get tokens of {} if the proxy knows them, which was not seen", email("app"));
    assert!(diagnosis.code == Some(0) && last.starts_with(&healthy), "{}", diagnosis.text);
}

fn the_doctor_names_a_missing_audience_and_its_command_mends_it() {
    let mut ward = Ward::new();
    let kubeconfig = ward.world.server.node_kubeconfig(ward.world.server.addr());
    ward.take("clusterrolebindings", "gce-metadata-proxy-audience");
    let diagnosis = ward.examine_until(&kubeconfig, Some(2));
    says(
        &diagnosis,
        &[
            &format!("nodes may not ask for tokens with the audience {POOL}"),
            "not found in pod spec volume",
            "skipped exchange of the token",
        ],
    );
    ward.mend(&diagnosis);
    is_healthy(&ward.examine_until(&kubeconfig, Some(0)));
}

fn the_doctor_names_a_missing_impersonation_rule_and_its_command_mends_it() {
    let mut ward = Ward::new();
    let token = ward.api.own_token(NODE);
    ward.api.apply(OWN_NODE, POOL);
    let kubeconfig = ward.world.server.own_account_kubeconfig(ward.world.server.addr(), &token, true);
    is_healthy(&ward.examine_until(&kubeconfig, Some(0)));
    ward.take("clusterroles", "gce-metadata-proxy-own-node");
    // The API server takes a moment to forget a right. It may refuse the second request already, and not yet the first.
    let diagnosis = eventually(|| match ward.examine_until(&kubeconfig, Some(2)) {
        diagnosis if diagnosis.text.contains("may not list pods") => Ok(diagnosis),
        diagnosis => Err(diagnosis.text),
    });
    says(
        &diagnosis,
        &[
            "it accepts the credential, as system:serviceaccount:kube-system:gce-metadata-proxy",
            "may not list pods in the name of its node",
        ],
    );
    ward.mend(&diagnosis);
    is_healthy(&ward.examine_until(&kubeconfig, Some(0)));
}

/// The second pod is one whose processes have no addresses of their own, before its address is reported.
fn the_doctor_says_what_the_running_proxy_takes_a_pod_for() {
    let mut ward = Ward::new();
    let object = ward.api.create_pod("team-0", "known", "app", NODE);
    let hidden = ward.api.create_pod("team-0", "hidden", "app", NODE);
    let kubeconfig = ward.world.server.node_kubeconfig(ward.world.server.addr());
    let _proxy = proxy(&ward.world, &ward.google, &[]);
    let known = Pod::start(&ward.world.node, object, ward.world.address(0));
    assert_eq!(subject(&known, "/default/token").workload, Workload::new("team-0", "app"));
    let diagnosis = ward.examine_whose(&kubeconfig, "--pod=team-0/known");
    let healthy = format!("Pods of team-0/app get tokens of {}.", email("app"));
    assert_eq!((diagnosis.code, diagnosis.text.lines().last()), (Some(0), Some(&*healthy)), "{}", diagnosis.text);
    says(&diagnosis, &[&format!("it is known at {} by kernel", known.address.v4)]);
    for (address, said) in [
        (None, "it takes the pod for nobody: none yet: it has no address"),
        (Some(known.address.v4), "it takes requests from"),
    ] {
        if let Some(address) = address {
            ward.api.set_addresses(&hidden, &[address.into()]);
        }
        let diagnosis = eventually(|| match ward.examine_whose(&kubeconfig, "--pod=team-0/hidden") {
            diagnosis if diagnosis.text.contains(said) => Ok(diagnosis),
            diagnosis => Err(diagnosis.text),
        });
        assert_eq!(diagnosis.code, Some(2), "{}", diagnosis.text);
        assert!(!diagnosis.text.contains("Pods of team-0/app get tokens"), "{}", diagnosis.text);
    }
}
