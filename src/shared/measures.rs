//! [`Measures`]: counters and measurements of requests that do not belong to a part with its own.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use proxy::layers::latency::Instruments;
use telemetry::Registry;
use telemetry::history::{self, History};
use telemetry::latency::Latency;
use telemetry::minute::{Minute, Tally};
use telemetry::requests::Requests;
use telemetry::shedding::Shedding;

/// Counters and measurements of requests.
#[derive(Debug)]
pub struct Measures {
    /// The instruments that the request path writes to.
    pub instruments: Instruments,
    /// Counts responses.
    pub requests: Arc<Requests>,
    /// Counts requests and connections that are refused, closed or delayed under overload.
    pub shedding: Arc<Shedding>,
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

    /// Records the last minutes for the status page, and logs the end of overloads. Never returns.
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

    /// The events of the last minute, and the length of that period.
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
    use telemetry::shedding::Shed;

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
