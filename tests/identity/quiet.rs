//! The log lines that pods with tokens of their own can cause.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::time::Instant;

use crate::google::world_with_google;
use crate::kube::{NODE, PodObject};
use crate::pod::Pod;
use crate::support::needs::{Test, tests};
use crate::tokens::{email, linked_accounts, proxy, subject};

pub const TESTS: &[Test] = tests![pods_that_flood_cause_ten_kibibytes_of_log_a_minute_each_at_most];

/// Maximum log that a hostile pod may cause in a minute, in bytes. Each kind of line comes once a minute, so a flood of
/// seconds shows it.
const MAX_BYTES: usize = 10 * 1024;

const FLOOD: Duration = Duration::from_secs(5);

/// Sends requests to these paths over and over, on new connections and on kept ones. `NUMBER` differs from one to the next.
fn flood(pod: &Arc<Pod>, paths: &'static [&'static str]) -> Vec<JoinHandle<u64>> {
    let attack = |thread: u64| {
        let pod = Arc::clone(pod);
        thread::spawn(move || pod.inside(move |pod| attack(pod, paths, thread)))
    };
    (0..6).map(attack).collect()
}

fn attack(pod: &Pod, paths: &[&str], thread: u64) -> u64 {
    let (end, long) = (Instant::now() + FLOOD, "x".repeat(2000));
    let mut sent = 0;
    while Instant::now() < end {
        let Some(mut connection) = pod.connect() else { continue };
        for path in paths.iter().cycle().take(20) {
            let number = format!("{thread}-{sent}");
            sent += 1;
            let asked = connection.ask(&path.replace("NUMBER", &number).replace("LONG", &long));
            if asked.is_err() || Instant::now() >= end {
                break;
            }
        }
    }
    sent
}

fn pods_that_flood_cause_ten_kibibytes_of_log_a_minute_each_at_most() {
    let (world, mut api, google) = world_with_google();
    linked_accounts(&mut api, &google, 1);
    // IAM refuses this account, and the proxy that one.
    for (account, google_account) in [("app-1", email("nobody")), ("app-2", "no e-mail".to_owned())] {
        api.create_account("team-0", account);
        api.annotate_account("team-0", account, "iam.gke.io/gcp-service-account", &google_account);
    }
    let proxy = proxy(&world, &google, &[]);
    let objects =
        [0, 1, 2].map(|number| api.create_pod("team-0", &format!("p{number}"), &format!("app-{number}"), NODE));
    // The last pod is known only to the kernel.
    let [first, ..] = &objects;
    let stranger = PodObject { uid: "00000000-0000-4000-8000-000000000000".to_owned(), ..first.clone() };
    let pods: Vec<Arc<Pod>> = objects
        .into_iter()
        .chain([stranger])
        .zip(0..)
        .map(|(object, number)| Pod::start(&world.node, object, world.address(number)))
        .collect();
    assert_eq!(subject(&pods[0], "/default/token").email, Some(email("app-0")));
    // Discards the log so far.
    proxy.written();

    let paths: &[&str] = &[
        "/computeMetadata/v1/instance/service-accounts/default/token?scopes=NUMBER",
        "/computeMetadata/v1/instance/service-accounts/default/token?scopes=LONGNUMBER",
        "/computeMetadata/v1/instance/service-accounts/default/identity?audience=NUMBER",
        "/computeMetadata/v1/instance/service-accounts/aNUMBER@shop.iam.gserviceaccount.com/token",
        "/computeMetadata/v1/instance/service-accounts/default/LONGNUMBER",
        "/computeMetadata/v1/instance/attributes/kube-env",
        "/computeMetadata/v1/instance/attributes/kube-env/LONGNUMBER",
        "/computeMetadata/v1/instance/%2fLONGNUMBER",
        "/computeMetadata/v1/instance/?recursive=true&wait_for_change=true&timeout_sec=NUMBER",
        "/whoami",
    ];
    let floods: Vec<JoinHandle<u64>> = pods.iter().flat_map(|pod| flood(pod, paths)).collect();
    let sent: u64 = floods.into_iter().map(|flood| flood.join().expect("it only counts")).sum();
    let written = proxy.written();
    let bytes: usize = written.iter().map(|line| line.len() + 1).sum();
    println!("{sent} requests, {bytes} bytes in {} lines:\n{}", written.len(), written.join("\n"));
    for said in
        ["reason=\"concealed\"", "reason=\"unidentified\"", "reason=\"malformed_account\"", "no token for pods of"]
    {
        assert!(written.iter().any(|line| line.contains(said)), "nothing is said of {said}");
    }
    assert!(bytes <= pods.len() * MAX_BYTES, "{bytes} bytes of {} pods", pods.len());
    let longest = written.iter().map(String::len).max().unwrap_or_default();
    assert!(longest < 600, "a line of {longest} bytes");
}
