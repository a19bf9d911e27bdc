//! [`LivePolicy`]: the policy in force, reloaded when its file changes.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use tokio::time::MissedTickBehavior;

use super::{Choice, LoadError, Policy, Source};
use crate::telemetry::Metrics;
use crate::telemetry::metrics::Reload;

/// Interval to check the file. The kubelet takes up to a minute to update a `ConfigMap` in a pod anyway.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The policy in force. Reading it takes no lock; each request is judged by one policy from beginning to end.
#[derive(Debug)]
pub struct LivePolicy {
    policy: ArcSwap<Policy>,
    choice: Choice,
}

impl LivePolicy {
    /// The chosen policy as it is now.
    pub fn load(choice: Choice) -> Result<Self, LoadError> {
        Ok(Self { policy: ArcSwap::from_pointee(choice.load()?), choice })
    }

    /// The policy in force, to be held for no longer than a decision takes.
    pub fn current(&self) -> Guard<Arc<Policy>> {
        self.policy.load()
    }

    /// The policy in force, to be held for as long as a request takes.
    pub fn hold(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Watches the policy file and applies valid changes. An invalid file only changes the log and the
    /// metrics.
    ///
    /// Compares the content, because a `ConfigMap` is updated by swapping symbolic links, and the file's
    /// timestamp is unreliable.
    pub async fn follow(&self, metrics: &Metrics) {
        metrics.policy_in_force(&self.current());
        if let Source::BuiltIn(_) = self.choice.source {
            return;
        }
        let mut looks = tokio::time::interval(CHECK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = Seen::Policy(self.current().hash().to_owned());
        loop {
            looks.tick().await;
            seen = self.look(&seen, metrics);
        }
    }

    fn look(&self, seen: &Seen, metrics: &Metrics) -> Seen {
        let found = self.choice.load();
        let now = match &found {
            Ok(policy) => Seen::Policy(policy.hash().to_owned()),
            Err(error) => Seen::Mistake(error.to_string()),
        };
        if now == *seen {
            return now;
        }
        match found {
            Ok(policy) => {
                let (name, version, hash) = (policy.name(), policy.version(), policy.hash());
                tracing::info!(name, version, hash, rules = policy.rule_count(), "policy reloaded");
                metrics.policy_in_force(&policy);
                metrics.policy_reloaded(Reload::Applied);
                self.policy.store(Arc::new(policy));
            }
            Err(error) => {
                let name = self.current().name().to_owned();
                tracing::error!(%error, in_force = name, "invalid policy file; keeping the previous policy");
                metrics.policy_reloaded(Reload::Rejected);
            }
        }
        now
    }
}

/// What the file held when it was last looked at.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// A policy, by its hash.
    Policy(String),
    /// Something else, and what was said of it.
    Mistake(String),
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const HEAD: &str = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nextends: strict\n";

    /// A mounted `ConfigMap`: the file is a link into a directory that is itself a link, and the latter is swapped.
    #[test]
    fn a_changed_configmap_is_taken_over_and_a_broken_one_is_not() {
        let mount = std::env::temp_dir().join(format!("metadata-proxy-policy-{}", std::process::id()));
        let publish = |generation: &str, text: &str| {
            let data = mount.join(generation);
            fs::create_dir_all(&data).expect("a directory");
            fs::write(data.join("policy.yaml"), text).expect("written");
            symlink(generation, mount.join("..data_tmp")).expect("a link");
            fs::rename(mount.join("..data_tmp"), mount.join("..data")).expect("swapped");
        };
        publish("1", &format!("{HEAD}version: '1'\n"));
        symlink("..data/policy.yaml", mount.join("policy.yaml")).expect("a link");

        let choice = Choice { source: Source::File(mount.join("policy.yaml")), recursive: None };
        let (live, metrics) = (LivePolicy::load(choice).expect("a policy"), Metrics::leak());
        let seen = Seen::Policy(live.current().hash().to_owned());
        publish("2", &format!("{HEAD}version: '2'\n"));
        let seen = live.look(&seen, metrics);
        assert_eq!(live.current().version(), "2");
        assert!(metrics.render().contains("metadata_proxy_policy_info{") && metrics.render().contains("version=\"2\""));

        publish("3", &format!("{HEAD}version: '3'\nrulez: []\n"));
        let seen = live.look(&seen, metrics);
        assert_eq!(live.current().version(), "2", "a broken file changes nothing");
        assert!(metrics.render().contains("metadata_proxy_policy_rejected 1"));
        let seen = live.look(&seen, metrics);
        assert!(metrics.render().contains("metadata_proxy_policy_reloads_total{outcome=\"rejected\"} 1"), "told once");

        publish("4", &format!("{HEAD}version: '2'\n"));
        live.look(&seen, metrics);
        assert!(metrics.render().contains("metadata_proxy_policy_rejected 0"));
        fs::remove_dir_all(&mount).expect("removed");
    }
}
