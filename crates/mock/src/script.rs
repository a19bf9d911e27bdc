//! [`Script`]: determines the fault for each request.

use std::cmp::Reverse;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::fault::Fault;

/// Determines the fault for each request.
#[derive(Debug, Default)]
pub(super) struct Script {
    rules: Mutex<Rules>,
    /// Number of calls of `heal`. Hanging requests wait for the next one.
    heals: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Rules {
    /// In the order of the calls, each with its remaining number of requests.
    next: Vec<(usize, Fault)>,
    /// By the prefix of a path, the longest first. The empty one is every request's.
    standing: Vec<(String, Fault)>,
}

impl Script {
    /// Sets the fault for all requests whose path starts with a prefix.
    pub(super) fn stand(&self, prefix: &str, fault: Fault) {
        let mut rules = self.rules.lock();
        rules.standing.retain(|(other, _)| other != prefix);
        rules.standing.push((prefix.to_owned(), fault));
        rules.standing.sort_by_key(|(prefix, _)| Reverse(prefix.len()));
    }

    /// Sets the fault for the next requests, after those of earlier calls.
    pub(super) fn next(&self, requests: usize, fault: Fault) {
        if requests > 0 {
            self.rules.lock().next.push((requests, fault));
        }
    }

    /// Removes all faults.
    pub(super) fn heal(&self) {
        let mut rules = self.rules.lock();
        *rules = Rules::default();
        self.heals.send_modify(|heals| *heals += 1);
    }

    /// The fault for a request, and the current state for [`Script::healed`].
    pub(super) fn take(&self, path: &str) -> Option<(Fault, u64)> {
        let mut rules = self.rules.lock();
        let fault = rules.take(path)?;
        Some((fault, *self.heals.borrow()))
    }

    /// Waits until `heal` was called after the fault was taken.
    pub(super) async fn healed(&self, since: u64) {
        let healed = self.heals.subscribe().wait_for(|heals| *heals != since).await.is_ok();
        debug_assert!(healed, "the script has the sender");
    }
}

impl Rules {
    fn take(&mut self, path: &str) -> Option<Fault> {
        if let Some((left, fault)) = self.next.first_mut() {
            *left -= 1;
            let (left, fault) = (*left, fault.clone());
            if left == 0 {
                self.next.remove(0);
            }
            return Some(fault);
        }
        self.standing.iter().find(|(prefix, _)| path.starts_with(prefix)).map(|(_, fault)| fault.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(script: &Script, path: &str) -> Option<Fault> {
        script.take(path).map(|(fault, _)| fault)
    }

    #[test]
    fn faults_for_next_requests_precede_prefixes_and_the_general_fault() {
        let script = Script::default();
        script.stand("", Fault::Hang);
        script.stand("/a", Fault::Reset);
        script.stand("/a/b", Fault::Close);
        script.next(2, Fault::Garbage);
        script.next(1, Fault::Html);
        let seen: Vec<_> = ["/a/b", "/", "/a/b", "/a/b/c", "/a/c", "/"].map(|path| fault(&script, path)).into();
        let order = [Fault::Garbage, Fault::Garbage, Fault::Html, Fault::Close, Fault::Reset, Fault::Hang];
        assert_eq!(seen, order.map(Some));
        script.heal();
        assert_eq!(fault(&script, "/a/b"), None);
    }

    #[test]
    fn a_prefix_has_one_fault() {
        let script = Script::default();
        script.stand("/a", Fault::Reset);
        script.stand("/a", Fault::Close);
        assert_eq!(fault(&script, "/a"), Some(Fault::Close));
    }

    #[tokio::test]
    async fn a_heal_before_the_wait_is_not_missed() {
        let script = Script::default();
        script.stand("", Fault::Hang);
        let (_, since) = script.take("/").expect("a fault");
        script.heal();
        script.healed(since).await;
    }
}
