//! The table and the plots.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::pods::Seen;
use crate::servers::Minute;
use crate::size::Size;

/// What happened in a scenario.
#[derive(Debug)]
pub struct Outcome {
    pub name: String,
    size: Size,
    minutes: Vec<Minute>,
    waiting: Vec<usize>,
    throttled: usize,
    refused: usize,
    lost: usize,
    first: Vec<f64>,
}

/// The columns.
pub const HEAD: &str = "\
| scenario | nodes x pods | quota | exchanges | not due | mean a minute | peak minute | of these 429 | pods: 429 | pods: 503 | pods waiting, most | tokens lost | first token p50, p99, last | API server a minute |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

impl Outcome {
    pub fn new(name: &str, size: Size, minutes: &[Minute], waiting: Vec<usize>, seen: &Seen) -> Self {
        let mut first = seen.first.lock().expect("no panic").clone();
        first.sort_by(f64::total_cmp);
        let read = |count: &std::sync::atomic::AtomicUsize| count.load(Relaxed);
        Self {
            name: name.to_owned(),
            size,
            // The last one is not complete.
            minutes: minutes[..minutes.len().min(waiting.len())].to_vec(),
            waiting,
            throttled: read(&seen.throttled),
            refused: read(&seen.refused),
            lost: read(&seen.lost),
            first,
        }
    }

    fn sum(&self, of: fn(&Minute) -> u32) -> u64 {
        self.minutes.iter().map(|minute| u64::from(of(minute))).sum()
    }

    /// The bounds of `benches/README.md` that were exceeded. None is known for a quota that does not suffice.
    pub fn exceeded(&self) -> Vec<String> {
        let (accounts, quota) = (u64::from(self.size.nodes) * u64::from(self.size.pods), u64::from(self.size.quota));
        let is = |names: &[&str]| names.contains(&&*self.name);
        let is_calm = is(&["steady", "rollout", "one-account"]);
        let has_enough = is_calm || is(&["sts-down"]);
        let last = self.first.last().map_or(0, |seconds| Duration::from_secs_f64(*seconds).as_secs());
        let bounds = [
            (true, "refusals of pods with 429", self.throttled as u64, 0),
            (has_enough || is(&["cold-start", "cron"]), "lost tokens", self.lost as u64, 0),
            (has_enough, "refusals of pods with 503", self.refused as u64, 0),
            (has_enough, "exchanges with 429", self.sum(|minute| minute.throttled), 0),
            (is_calm, "exchanges that were not due", self.sum(|minute| minute.early), 0),
            // 1.2 times as long as the quota needs.
            (is(&["cold-start"]), "seconds until the last first token", last, 72 * accounts / quota),
            (is(&["cold-start"]), "pods without a token", accounts.saturating_sub(self.first.len() as u64), 0),
        ];
        let suffices = accounts <= 25 * quota;
        let exceeded = bounds.into_iter().filter(|(holds, _, found, most)| suffices && *holds && found > most);
        exceeded.map(|(_, what, found, most)| format!("{}: {found} {what}, at most {most}", self.name)).collect()
    }

    /// A row of the table.
    pub fn row(&self) -> String {
        let peak = self.minutes.iter().max_by_key(|minute| minute.exchanges).copied().unwrap_or_default();
        let minutes = self.minutes.len().max(1) as u64;
        let first = |percent: usize| {
            let last = self.first.len().saturating_sub(1);
            self.first.get(last * percent / 100).map_or("-".to_owned(), |seconds| format!("{seconds:.1} s"))
        };
        format!(
            "| {} | {} x {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {}, {}, {} | {} |",
            self.name,
            self.size.nodes,
            self.size.pods,
            self.size.quota,
            self.sum(|minute| minute.exchanges),
            self.sum(|minute| minute.early),
            self.sum(|minute| minute.exchanges) / minutes,
            peak.exchanges,
            peak.throttled,
            self.throttled,
            self.refused,
            self.waiting.iter().max().unwrap_or(&0),
            self.lost,
            first(50),
            first(99),
            first(100),
            self.sum(|minute| minute.kubernetes) / minutes,
        )
    }

    /// Exchanges a minute as columns of characters, with those that got 429 and the pods that wait.
    pub fn plot(&self) -> String {
        const HEIGHT: u32 = 8;
        let top = self.minutes.iter().map(|minute| minute.exchanges).max().unwrap_or(0).max(self.size.quota);
        let mut plot = format!("{}: exchanges a minute (#, those with 429: x; the quota: -)\n", self.name);
        for line in (1..=HEIGHT).rev() {
            // In half lines, so that a column ends at the nearest one.
            let level = |value: u32| (u64::from(value) * u64::from(2 * HEIGHT)).div_ceil(top.into());
            let is_quota = level(self.size.quota).div_ceil(2) == u64::from(line);
            let _ = write!(plot, "{:>7} ", if is_quota { self.size.quota.to_string() } else { String::new() });
            for minute in &self.minutes {
                let at = u64::from(2 * line - 1);
                plot.push(match () {
                    () if level(minute.exchanges - minute.throttled) >= at => '#',
                    () if level(minute.exchanges) >= at => 'x',
                    () if is_quota => '-',
                    () => ' ',
                });
            }
            plot.push('\n');
        }
        let _ = writeln!(plot, "{:>7} {}", "min", "         |".repeat(self.minutes.len() / 10));
        let _ =
            writeln!(plot, "exchanges: {:?}", self.minutes.iter().map(|minute| minute.exchanges).collect::<Vec<_>>());
        let _ = writeln!(plot, "pods waiting: {:?}", self.waiting);
        plot
    }
}
