//! Panics in the log: a line for each place in the source, once a minute.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, PanicHookInfo};
use std::time::Duration;

use tokio::time::Instant;

use super::sampled::{Brief, SampledBy};

/// Target of the log lines about panics, which are written regardless of the levels.
pub(super) const TARGET: &str = "gce_metadata_proxy::panics";

/// Interval between lines about panics at one place: a pod that can cause one repeats it.
const INTERVAL: Duration = Duration::from_secs(60);

/// Maximum places whose panics have lines of their own.
const MAX_PLACES: usize = 16;

thread_local! {
    static LAST_PLACE: Cell<Option<String>> = const { Cell::new(None) };
}

/// Writes a line for panics from now on, in the log's format, in place of the standard library's text, which has several lines.
pub(super) fn log() {
    let places = SampledBy::new(INTERVAL, MAX_PLACES);
    panic::set_hook(Box::new(move |panic| {
        let place = place(panic);
        if let Some(count) = places.due(place.clone(), Instant::now()) {
            // As a text, which is escaped.
            let message = Brief(message(panic.payload())).to_string();
            tracing::error!(target: TARGET, panic = message, location = place.as_deref(), count, "panicked");
        }
        // Fails where the thread ends.
        let _ = LAST_PLACE.try_with(|last| last.set(place));
    }));
}

fn place(panic: &PanicHookInfo<'_>) -> Option<String> {
    panic.location().map(|place| format!("{}:{}", place.file(), place.line()))
}

/// The message of a panic that this thread has just caught, and its place in the source. No place if panics are not logged.
pub fn caught(panic: &(dyn Any + Send)) -> (String, Option<String>) {
    (Brief(message(panic)).to_string(), LAST_PLACE.take())
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let message = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("the panic has no message")
}
