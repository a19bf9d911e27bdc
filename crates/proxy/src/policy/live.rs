//! [`LivePolicy`]: the policy in force, reloaded when its file changes.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use tokio::time::{Instant, MissedTickBehavior, sleep};

use protocol::policy::{Choice, Content, LoadError, Policy, Source, digest};

/// Interval between checks of the file. A change applies at the second check that finds it. The kubelet takes up to a
/// minute to update a `ConfigMap` in a pod anyway.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Interval between reads of a file that was written within this time before the proxy started. Most starts do not
/// wait: a mounted `ConfigMap` is older, since the kubelet writes it before it starts the container.
const PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of such reads.
const MAX_READS: u32 = 10;

/// The policy in force. Reading it takes no lock. A request uses the same policy from beginning to end.
#[derive(Debug)]
pub struct LivePolicy {
    policy: ArcSwap<Policy>,
    choice: Choice,
    /// Content of the file when it was loaded.
    loaded: Seen,
    rejected: ArcSwapOption<Rejection>,
}

/// Reason why the file's current content is not in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The mistake, with its position.
    pub error: String,
    /// Time when it was found.
    pub since: Instant,
}

/// Effect of a restart while the policy file is invalid, as the end of a sentence. Another policy might show what the
/// file conceals, and a policy saved earlier may be outdated, so no process starts with either.
pub const A_RESTART_FAILS: &str = "a restart fails (exit code 1) until the file is valid";

impl LivePolicy {
    /// Loads the chosen policy. A file that was written in the last second is read until two reads, a second apart, are
    /// equal, so that a policy that is still being written is not applied.
    pub async fn load(choice: Choice) -> Result<Self, LoadError> {
        let text = text_at_rest(&choice.source).await?;
        Self::of(choice, &text)
    }

    fn of(choice: Choice, text: &str) -> Result<Self, LoadError> {
        let policy = ArcSwap::from_pointee(choice.compile(text)?);
        Ok(Self { policy, choice, loaded: digest(text), rejected: ArcSwapOption::empty() })
    }

    /// The policy in force, for a single decision.
    pub fn current(&self) -> Guard<Arc<Policy>> {
        self.policy.load()
    }

    /// The policy in force, for the duration of a request.
    pub fn hold(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Puts another policy in force.
    #[cfg(test)]
    pub(crate) fn replace(&self, policy: Policy) {
        self.policy.store(Arc::new(policy));
    }

    /// Reason why the file's current content is not in force. `None` if it is.
    pub fn rejected(&self) -> Option<Arc<Rejection>> {
        self.rejected.load_full()
    }

    /// Watches the policy file and applies valid changes. An invalid file changes nothing. Each change is
    /// reported once.
    ///
    /// A change counts once two checks in a row find the same content. Many prefixes of a policy are valid
    /// policies with fewer rules, so a file that is being written could expose what its last rules conceal.
    ///
    /// Compares the content, because a `ConfigMap` is updated by swapping symbolic links, and the file's
    /// timestamp is unreliable.
    pub async fn follow(&self, mut report: impl FnMut(Reloaded<'_>)) {
        if let Source::BuiltIn(_) = self.choice.source {
            return;
        }
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut changes = Changes::since(self.loaded);
        loop {
            checks.tick().await;
            self.check(self.choice.source.text(), &mut changes, &mut report);
        }
    }

    /// Applies the file's content, if it is a change that the previous check also found.
    fn check(&self, found: Result<String, LoadError>, changes: &mut Changes, mut report: impl FnMut(Reloaded<'_>)) {
        if !changes.settle(seen(&found)) {
            return;
        }
        match found.and_then(|text| self.choice.compile(&text)) {
            Ok(policy) => {
                let policy = Arc::new(policy);
                self.policy.store(Arc::clone(&policy));
                self.rejected.store(None);
                report(Reloaded::Applied(&policy));
            }
            Err(error) => {
                self.rejected.store(Some(Arc::new(Rejection { error: error.to_string(), since: Instant::now() })));
                report(Reloaded::Rejected { error: &error, in_force: &self.current() });
            }
        }
    }
}

/// The text of a policy, once it is no longer being written. A file that was written less than [`PAUSE`] ago is read
/// until two reads, [`PAUSE`] apart, are equal. Fails if no two of [`MAX_READS`] reads are.
async fn text_at_rest(source: &Source) -> Result<String, LoadError> {
    let Source::File(path) = source else { return source.text() };
    let Content { mut text, modified } = source.read()?;
    // The age of a file with a modification time in the future is unknown.
    let age = modified.and_then(|modified| modified.elapsed().ok());
    if age.is_some_and(|age| age >= PAUSE) {
        return Ok(text);
    }
    for _ in 1..MAX_READS {
        sleep(PAUSE).await;
        let before = std::mem::replace(&mut text, source.text()?);
        if text == before {
            return Ok(text);
        }
    }
    Err(LoadError::Restless(path.clone()))
}

/// Result of a change of the policy file.
#[derive(Debug)]
pub enum Reloaded<'a> {
    /// This policy is in force now.
    Applied(&'a Policy),
    /// The file is not a valid policy.
    Rejected {
        /// The mistake.
        error: &'a LoadError,
        /// The policy that remains in force.
        in_force: &'a Policy,
    },
}

/// What a check found, as SHA-256: the file's text, or the message if it cannot be read.
type Seen = [u8; 32];

fn seen(found: &Result<String, LoadError>) -> Seen {
    match found {
        Ok(text) => digest(text),
        Err(error) => digest(&error.to_string()),
    }
}

/// Distinguishes changes from states in between.
#[derive(Debug)]
struct Changes {
    /// The content that was last reported or loaded.
    settled: Seen,
    /// The content found by the last check.
    last: Seen,
}

impl Changes {
    fn since(loaded: Seen) -> Self {
        Self { settled: loaded, last: loaded }
    }

    /// Records the result of a check. Returns whether it is a change that counts, because the previous check found the
    /// same.
    fn settle(&mut self, now: Seen) -> bool {
        let lasted = self.last == now;
        let counts = lasted && self.settled != now;
        if counts {
            self.settled = now;
        }
        self.last = now;
        counts
    }
}

#[cfg(test)]
mod tests;
