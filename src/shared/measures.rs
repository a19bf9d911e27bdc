//! [`Measures`]: what is counted and measured of requests, beside the parts that count for themselves.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::layers::latency::Instruments;
use crate::telemetry::Registry;
use crate::telemetry::history::{self, History};
use crate::telemetry::latency::Latency;
use crate::telemetry::minute::{Minute, Tally};
use crate::telemetry::requests::Requests;
use crate::telemetry::shedding::Shedding;

/// What is counted and measured of requests.
#[derive(Debug)]
pub struct Measures {
    /// Where measurements of requests go.
    pub instruments: Instruments,
    /// Counts responses.
    pub requests: Arc<Requests>,
    /// Counts what is refused or closed under overload.
    pub shedding: Arc<Shedding>,
    /// Durations of the last minutes.
    pub history: History,
    minute: Minute,
}

impl Measures {
    pub(super) fn new(registry: &Registry) -> Self {
        let instruments = Instruments { latency: Latency::new(registry), talkers: Arc::default() };
        let shedding = Arc::new(Shedding::new(registry, Arc::clone(&instruments.talkers)));
        let requests = Arc::new(Requests::new(registry));
        Self { instruments, requests, shedding, history: History::default(), minute: Minute::default() }
    }

    /// Keeps what the status page shows of the last minutes, and logs the end of overloads. Never returns.
    pub async fn run(&self) {
        let mut tick = interval(history::INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = tick.tick().await;
            self.history.take_point(&self.instruments.latency);
            self.minute.sample(now, self.tally());
            self.shedding.end_overloads(now);
        }
    }

    /// What happened in the last minute, and how long that was.
    pub fn last_minute(&self) -> (Duration, Tally) {
        self.minute.since_oldest(Instant::now(), self.tally())
    }

    fn tally(&self) -> Tally {
        Tally::of(&self.requests, &self.shedding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::shedding::Shed;

    #[tokio::test(start_paused = true)]
    async fn points_and_samples_are_taken_every_ten_seconds() {
        let measures = Measures::new(&Registry::default());
        measures.shedding.shed(Shed::Memory, None);
        let mut run = std::pin::pin!(measures.run());
        let mut after = async |time| tokio::time::timeout(time, &mut run).await.expect_err("it never returns");
        after(Duration::from_secs(35)).await;
        let courses = measures.history.courses(&measures.instruments.latency);
        assert_eq!(courses[0].points.len(), 4, "three intervals, and the time since the last point");
        assert_eq!(measures.last_minute().1.sheds(), [(Shed::Memory, 1)]);
        after(Duration::from_secs(30)).await;
        let (lasted, minute) = measures.last_minute();
        assert_eq!((lasted.as_secs(), minute.sheds()), (55, Vec::new()));
    }
}
