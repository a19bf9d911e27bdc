use std::fs::{self, File};
use std::os::fd::AsRawFd;

use serde_json::json;

use super::*;
use crate::cluster::fake::Fake;
use crate::pods::FakeProc;
use crate::tests::pod;

const DAEMONSET: &str = "d-1";

/// Answers each request for the owner of a pod: that pod's controller, by its name.
async fn owners(mut fake: Fake, controllers: Vec<(String, String, Option<&'static str>)>) {
    loop {
        let asked = fake.asked().await;
        let selector = asked.parameter("fieldSelector").unwrap_or_default();
        let items: Vec<_> = controllers
            .iter()
            .filter(|(name, ..)| selector.ends_with(&format!("metadata.name={name}")))
            .map(|(name, uid, controller)| {
                let owners = controller.map(|uid| json!([{"uid": "other"}, {"uid": uid, "controller": true}]));
                json!({
                    "metadata": {"name": name, "uid": uid, "ownerReferences": owners},
                    "spec": {"serviceAccountName": if name == "account" { "other" } else { "proxy" }},
                })
            })
            .collect();
        asked.answer(200, &json!({"metadata": {}, "items": items}));
    }
}

fn named(number: u8, namespace: &str, account: &str, name: &str) -> Pod {
    Pod { name: name.into(), ..pod(number, namespace, account) }
}

/// This pod is number 1, of namespace `kube-system` and account `proxy`.
fn kin(proc: &FakeProc, pods: Vec<Pod>, controllers: &[(&str, u8, Option<&'static str>)]) -> Kin {
    let (fake, cluster) = Fake::new("n");
    let uid = |number| pod(number, "", "").uid.to_string();
    let controllers = controllers.iter().map(|(name, number, of)| ((*name).to_owned(), uid(*number), *of)).collect();
    tokio::spawn(owners(fake, controllers));
    let known = Arc::<Pods>::default();
    known.replace(pods);
    Kin::open(proc.dir(), pod(1, "", "").uid, known, cluster).expect("a /proc")
}

#[tokio::test(start_paused = true)]
async fn only_a_pod_of_the_same_account_and_controller_is_kin() {
    let proc = FakeProc::new();
    let pods = vec![
        named(1, "kube-system", "proxy", "own"),
        named(2, "kube-system", "proxy", "next"),
        named(3, "team", "proxy", "namespace"),
        named(4, "kube-system", "other", "account"),
        named(5, "kube-system", "proxy", "controller"),
        named(6, "kube-system", "proxy", "nobodys"),
        Pod { ended: true, ..named(7, "kube-system", "proxy", "ended") },
        named(8, "kube-system", "proxy", "replaced"),
    ];
    let controllers = [
        ("own", 1, Some(DAEMONSET)),
        ("next", 2, Some(DAEMONSET)),
        ("namespace", 3, Some(DAEMONSET)),
        ("account", 4, Some(DAEMONSET)),
        ("controller", 5, Some("d-2")),
        ("nobodys", 6, None),
        ("ended", 7, Some(DAEMONSET)),
        // By now another pod has its name.
        ("replaced", 9, Some(DAEMONSET)),
    ];
    let kin = kin(&proc, pods, &controllers);
    kin.is_kin(pod(2, "", "").uid).await.expect("kin");
    for number in 3..=8 {
        let found = kin.is_kin(pod(number, "", "").uid).await;
        assert!(matches!(found, Err(Stranger::Other(_))), "{number}: {found:?}");
    }
    let found = kin.is_kin(pod(10, "", "").uid).await;
    assert!(matches!(found, Err(Stranger::Unlisted(_))), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn without_a_controller_nobody_is_kin() {
    let proc = FakeProc::new();
    let pods = vec![named(1, "kube-system", "proxy", "own"), named(2, "kube-system", "proxy", "next")];
    let kin = kin(&proc, pods, &[("own", 1, None), ("next", 2, None)]);
    let found = kin.is_kin(pod(2, "", "").uid).await;
    assert!(matches!(found, Err(Stranger::Other(_))), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_process_is_of_the_pod_of_its_descriptor_and_has_not_ended() {
    let proc = FakeProc::new();
    let uid = pod(2, "", "").uid;
    proc.network("two", &["10.8.0.2"]);
    proc.of_pod(50, 10, &uid.to_string(), "two");
    let kin = kin(&proc, Vec::new(), &[]);
    let descriptor = File::open("/dev/null").expect("it is there");
    let info = proc.dir().join("77/fdinfo");
    fs::create_dir_all(&info).expect("a temporary directory");
    let says = |pid: &str| {
        let text = format!("pos:\t0\nflags:\t02000002\nPid:\t{pid}\nNSpid:\t{pid}\n");
        fs::write(info.join(descriptor.as_raw_fd().to_string()), text).expect("a temporary file");
    };
    says("50");
    assert_eq!(kin.pod_of(descriptor.as_fd()).expect("a pod"), uid);
    for gone in ["-1", "0"] {
        says(gone);
        let found = kin.pod_of(descriptor.as_fd());
        assert!(matches!(found, Err(Stranger::Ended)), "{gone}: {found:?}");
    }
    says("1");
    let found = kin.pod_of(descriptor.as_fd());
    assert!(matches!(found, Err(Stranger::NoPod)), "{found:?}");
}

#[test]
fn this_kernel_says_who_is_at_the_other_end_or_that_it_does_not() {
    let found = is_supported();
    assert!(matches!(found, Ok(()) | Err(Stranger::Unsupported(Errno::ENOPROTOOPT))), "{found:?}");
}
