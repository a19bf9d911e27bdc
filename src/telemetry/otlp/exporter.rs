//! [`Exporter`]: the task that makes spans of finished requests and sends them.

use std::time::Duration;

use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_sdk::trace::RandomIdGenerator;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::collector::{Collector, ExportError};
use super::metrics::SpanOutcome;
use super::record::Record;
use super::spans;
use crate::metadata::Target;
use crate::telemetry::registry::Counters;
use crate::telemetry::sampled::Sampled;

/// Most finished requests that wait for the collector: some seconds of what a node asks at its busiest, sampled.
const QUEUE: usize = 256;

/// So many spans are sent at once, give or take those of one request. They are written in one go, on the thread that serves
/// pods, so they are few.
const BATCH: usize = 256;

/// How long a finished request waits for others to be sent with; OpenTelemetry's own default.
const DELAY: Duration = Duration::from_secs(5);

/// How long it is left in peace after it failed.
const PAUSE: Duration = Duration::from_secs(5);

/// Between two lines about its failures.
const LINES: Duration = Duration::from_secs(60);

/// How long the last spans may take when the process ends: it must not be late for them.
const FLUSH: Duration = Duration::from_secs(1);

/// Exports until it is told to finish; the one by default has nothing to export.
#[derive(Debug, Default)]
pub struct Exporter(Option<Running>);

#[derive(Debug)]
struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// The task's own.
struct Task {
    queue: mpsc::Receiver<Box<Record>>,
    collector: Collector,
    resource: Resource,
    ids: RandomIdGenerator,
    spans: Counters<SpanOutcome>,
    failures: Sampled,
}

/// Begins to export to this collector what is put into the queue.
pub(super) fn start(target: Target, spans: Counters<SpanOutcome>) -> (mpsc::Sender<Box<Record>>, Exporter) {
    let (sender, queue) = mpsc::channel(QUEUE);
    tracing::info!(collector = %target, "exporting traces");
    let (resource, ids) = (spans::resource(), RandomIdGenerator::default());
    let collector = Collector::new(target);
    let task = Task { queue, collector, resource, ids, spans, failures: Sampled::new(LINES) };
    let stop = CancellationToken::new();
    let task = tokio::spawn(task.run(stop.clone()));
    (sender, Exporter(Some(Running { stop, task })))
}

impl Exporter {
    /// Sends what is waiting, if that can be done within a second, and ends.
    pub async fn finish(self) {
        let Some(mut running) = self.0 else { return };
        running.stop.cancel();
        if timeout(FLUSH, &mut running.task).await.is_err() {
            running.task.abort();
            tracing::warn!("the last spans were lost: the collector did not accept them within {FLUSH:?}");
        }
    }
}

impl Task {
    async fn run(mut self, stop: CancellationToken) {
        loop {
            let batch = self.gather(&stop).await;
            if batch.is_empty() {
                return;
            }
            if self.export(batch).await.is_err() {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = sleep(PAUSE) => {}
                }
            }
        }
    }

    /// The next spans to be sent together; none when there will be no more.
    async fn gather(&mut self, stop: &CancellationToken) -> Vec<Span> {
        let mut batch = Vec::new();
        let mut due = Instant::now();
        while batch.len() < BATCH {
            tokio::select! {
                biased;
                () = stop.cancelled(), if !self.queue.is_closed() => self.queue.close(),
                record = self.queue.recv() => {
                    let Some(record) = record else { break };
                    if batch.is_empty() {
                        due = Instant::now() + DELAY;
                    }
                    batch.extend(spans::of(&record, &self.ids));
                }
                () = sleep_until(due), if !batch.is_empty() => break,
            }
        }
        batch
    }

    async fn export(&self, spans: Vec<Span>) -> Result<(), ExportError> {
        let count = spans.len() as u64;
        let request = spans::wrapped(self.resource.clone(), spans);
        let outcome = self.collector.take(&request).await;
        let failed = match &outcome {
            Ok(()) => 0,
            Err(ExportError::Rejected { spans, .. }) => count.min(*spans),
            Err(_) => count,
        };
        self.spans.of(SpanOutcome::Exported).inc_by(count - failed);
        self.spans.of(SpanOutcome::Failed).inc_by(failed);
        if let Err(error) = &outcome {
            self.tell(error);
        }
        outcome
    }

    fn tell(&self, error: &ExportError) {
        let Some(batches) = self.failures.due(Instant::now()) else { return };
        tracing::warn!(
            collector = %self.collector.target(),
            batches,
            "cannot export spans, which are lost: {error}; requests are not affected; check that --otlp-endpoint is the OTLP \
             receiver for HTTP (usually port 4318; 4317 is for gRPC)"
        );
    }
}
