//! [`LivePolicy`]: the policy in force, reloaded when its file changes.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use tokio::time::MissedTickBehavior;

use super::{Choice, LoadError, Policy, Source};

/// Interval between checks of the file. The kubelet takes up to a minute to update a `ConfigMap` in a pod
/// anyway.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The policy in force. Reading it takes no lock. A request uses the same policy from beginning to end.
#[derive(Debug)]
pub struct LivePolicy {
    policy: ArcSwap<Policy>,
    choice: Choice,
}

impl LivePolicy {
    /// Loads the chosen policy.
    pub fn load(choice: Choice) -> Result<Self, LoadError> {
        Ok(Self { policy: ArcSwap::from_pointee(choice.load()?), choice })
    }

    /// The policy in force, for a single decision.
    pub fn current(&self) -> Guard<Arc<Policy>> {
        self.policy.load()
    }

    /// The policy in force, for the duration of a request.
    pub fn hold(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Watches the policy file and applies valid changes. An invalid file changes nothing. Each change is
    /// reported once.
    ///
    /// Compares the content, because a `ConfigMap` is updated by swapping symbolic links, and the file's
    /// timestamp is unreliable.
    pub async fn follow(&self, mut report: impl FnMut(Reloaded<'_>)) {
        if let Source::BuiltIn(_) = self.choice.source {
            return;
        }
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = Content::Policy(self.current().hash().to_owned());
        loop {
            checks.tick().await;
            seen = self.check(&seen, &mut report);
        }
    }

    fn check(&self, seen: &Content, mut report: impl FnMut(Reloaded<'_>)) -> Content {
        let found = self.choice.load();
        let now = match &found {
            Ok(policy) => Content::Policy(policy.hash().to_owned()),
            Err(error) => Content::Invalid(error.to_string()),
        };
        if now == *seen {
            return now;
        }
        match found {
            Ok(policy) => {
                let policy = Arc::new(policy);
                self.policy.store(Arc::clone(&policy));
                report(Reloaded::Applied(&policy));
            }
            Err(error) => report(Reloaded::Rejected { error: &error, in_force: &self.current() }),
        }
        now
    }
}

/// Result of a change of the policy file.
#[derive(Debug)]
pub enum Reloaded<'a> {
    /// This policy is in force now.
    Applied(&'a Policy),
    /// The file is not a valid policy.
    Rejected {
        /// Why.
        error: &'a LoadError,
        /// The policy that remains in force.
        in_force: &'a Policy,
    },
}

/// The content of the file when it was last checked.
#[derive(Debug, PartialEq, Eq)]
enum Content {
    /// A policy, by its hash.
    Policy(String),
    /// An error, by its message.
    Invalid(String),
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const HEAD: &str = "apiVersion: gce-metadata-proxy/v1\nkind: ConcealmentPolicy\nname: mine\nextends: strict\n";

    /// Like a mounted `ConfigMap`: the file is a link into a directory that is itself a link, and the latter is
    /// swapped.
    #[test]
    fn a_valid_change_is_applied_and_an_invalid_one_rejected() {
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
        let live = LivePolicy::load(choice).expect("a policy");
        let mut reports = Vec::new();
        let mut check = |seen: &Content| {
            let now = live.check(seen, |reloaded| {
                reports.push(match reloaded {
                    Reloaded::Applied(policy) => format!("{} applied", policy.version()),
                    Reloaded::Rejected { in_force, .. } => format!("rejected, {} in force", in_force.version()),
                });
            });
            (now, std::mem::take(&mut reports), live.current().version().to_owned())
        };
        let seen = Content::Policy(live.current().hash().to_owned());
        publish("2", &format!("{HEAD}version: '2'\n"));
        let (seen, reports, version) = check(&seen);
        assert_eq!((reports, version.as_str()), (vec!["2 applied".to_owned()], "2"));

        publish("3", &format!("{HEAD}version: '3'\nrulez: []\n"));
        let (seen, reports, version) = check(&seen);
        assert_eq!(
            (reports, version.as_str()),
            (vec!["rejected, 2 in force".to_owned()], "2"),
            "an invalid file changes nothing"
        );
        let (seen, reports, _) = check(&seen);
        assert!(reports.is_empty(), "reported once");

        publish("4", &format!("{HEAD}version: '2'\n"));
        let (_, reports, _) = check(&seen);
        assert_eq!(reports, ["2 applied"]);
        fs::remove_dir_all(&mount).expect("removed");
    }
}
