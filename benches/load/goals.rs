//! Whether a goal is met, or by how much it is missed.

use super::figures::{Figure, Run, Summary};
use super::measure::Failed;
use super::peers::Contender;
use super::scenarios::{Bound, Goal, Step};

/// All runs of a step.
#[derive(Debug)]
pub struct Results {
    pub step: Step,
    pub contenders: Vec<(Contender, Result<Vec<Run>, Failed>)>,
}

impl Results {
    /// The first contender, which the goals apply to and which the others are compared with.
    pub fn ours(&self) -> Contender {
        self.contenders[0].0
    }

    pub fn of(&self, contender: Contender, figure: Figure) -> Option<Summary> {
        let (_, runs) = self.contenders.iter().find(|(other, _)| *other == contender)?;
        Summary::of_figure(runs.as_ref().ok()?, figure)
    }
}

/// The outcome of a goal, for the table.
pub fn verdict(goal: &Goal, results: &Results, all: &[Results]) -> String {
    let peer = |contender| results.of(contender, goal.figure).map(|summary| summary.median);
    let (sign, limit) = match goal.bound {
        Bound::Most(most) => ("≤", Some(most)),
        Bound::Least(least) => ("≥", Some(least)),
        Bound::MostOf(times, contender) => ("≤", peer(contender).map(|value| value * times)),
        Bound::LeastOf(times, contender) => ("≥", peer(contender).map(|value| value * times)),
        Bound::MostOfStep(times, step) => {
            ("≤", all[step].of(all[step].ours(), goal.figure).map(|summary| summary.median * times))
        }
    };
    let (Some(limit), Some(summary)) = (limit, results.of(results.ours(), goal.figure)) else {
        return "goal: not measured".to_owned();
    };
    let value = typical(goal.figure, summary);
    let by = if sign == "≤" { value / limit - 1.0 } else { 1.0 - value / limit };
    let outcome = if by <= 0.0 { "met".to_owned() } else { format!("**missed by {}**", per_cent(by * 100.0)) };
    format!("{sign} {}{}: {outcome}", goal.figure.show(limit), whose(goal.bound))
}

/// The value that a goal applies to: the median, or the worst run for events that must never happen.
fn typical(figure: Figure, summary: Summary) -> f64 {
    match figure {
        Figure::Success => summary.least,
        Figure::Peak | Figure::UpstreamTokens => summary.most,
        _ => summary.median,
    }
}

fn whose(bound: Bound) -> String {
    match bound {
        Bound::Most(_) | Bound::Least(_) => String::new(),
        Bound::MostOf(times, peer) | Bound::LeastOf(times, peer) => format!(" ({times} × {peer})"),
        Bound::MostOfStep(times, _) => format!(" ({times} × ours)"),
    }
}

fn per_cent(value: f64) -> String {
    if value < 1.0 { format!("{value:.3} %") } else { format!("{value:.0} %") }
}
