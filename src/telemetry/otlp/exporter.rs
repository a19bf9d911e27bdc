//! [`Exporter`]: the task that sends finished requests to the collector as spans.

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

/// Maximum finished requests that wait for the exporter: some seconds of sampled requests of a busy node.
const MAX_QUEUED_REQUESTS: usize = 256;

/// Spans in a batch; the last request may exceed it. Small, because a batch is encoded in one go on a thread that
/// serves pods.
const BATCH_SPANS: usize = 256;

/// Maximum time that a finished request waits for its batch to fill. OpenTelemetry's default.
const BATCH_DELAY: Duration = Duration::from_secs(5);

/// Delay before the next batch after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Minimum interval between log lines about failures.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum time to send the last spans when the process ends, so that they do not delay it.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// A running exporter. The default one exports nothing.
#[derive(Debug, Default)]
pub struct Exporter(Option<Running>);

#[derive(Debug)]
struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// The state of the task.
struct Task {
    queue: mpsc::Receiver<Box<Record>>,
    collector: Collector,
    resource: Resource,
    ids: RandomIdGenerator,
    spans: Counters<SpanOutcome>,
    failures: Sampled,
}

/// Starts exporting to this collector, and returns the queue of finished requests.
pub(super) fn start(target: Target, spans: Counters<SpanOutcome>) -> (mpsc::Sender<Box<Record>>, Exporter) {
    let (sender, queue) = mpsc::channel(MAX_QUEUED_REQUESTS);
    tracing::info!(collector = %target, "exporting traces");
    let (resource, ids) = (spans::resource(), RandomIdGenerator::default());
    let collector = Collector::new(target);
    let task = Task { queue, collector, resource, ids, spans, failures: Sampled::new(LOG_INTERVAL) };
    let stop = CancellationToken::new();
    let task = tokio::spawn(task.run(stop.clone()));
    (sender, Exporter(Some(Running { stop, task })))
}

impl Exporter {
    /// Sends the queued requests, within a second, and stops.
    pub async fn finish(self) {
        let Some(mut running) = self.0 else { return };
        running.stop.cancel();
        if timeout(FLUSH_TIMEOUT, &mut running.task).await.is_err() {
            running.task.abort();
            tracing::warn!("the last spans were lost: the collector did not accept them within {FLUSH_TIMEOUT:?}");
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
                    () = sleep(RETRY_DELAY) => {}
                }
            }
        }
    }

    /// The next batch, or an empty one when the exporter has been stopped.
    async fn gather(&mut self, stop: &CancellationToken) -> Vec<Span> {
        let mut batch = Vec::new();
        let mut due = Instant::now();
        while batch.len() < BATCH_SPANS {
            tokio::select! {
                biased;
                () = stop.cancelled(), if !self.queue.is_closed() => self.queue.close(),
                record = self.queue.recv() => {
                    let Some(record) = record else { break };
                    if batch.is_empty() {
                        due = Instant::now() + BATCH_DELAY;
                    }
                    batch.extend(spans::from_record(&record, &self.ids));
                }
                () = sleep_until(due), if !batch.is_empty() => break,
            }
        }
        batch
    }

    async fn export(&self, spans: Vec<Span>) -> Result<(), ExportError> {
        let count = spans.len() as u64;
        let request = spans::export_request(self.resource.clone(), spans);
        let outcome = self.collector.take(&request).await;
        let failed = match &outcome {
            Ok(()) => 0,
            Err(ExportError::Rejected { spans, .. }) => count.min(*spans),
            Err(_) => count,
        };
        self.spans.of(SpanOutcome::Exported).inc_by(count - failed);
        self.spans.of(SpanOutcome::Failed).inc_by(failed);
        if let Err(error) = &outcome {
            self.log(error);
        }
        outcome
    }

    fn log(&self, error: &ExportError) {
        let Some(batches) = self.failures.due(Instant::now()) else { return };
        tracing::warn!(
            collector = %self.collector.target(),
            batches,
            "cannot export spans, which are lost: {error}; requests are not affected; check that --otlp-endpoint is the OTLP \
             receiver for HTTP (usually port 4318; 4317 is for gRPC)"
        );
    }
}
