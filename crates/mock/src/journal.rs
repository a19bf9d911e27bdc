//! The journal: counters and recorded requests.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::head::MAX_HEADERS;

/// Maximum number of recorded requests.
const MAX_RECORDED: usize = 10_000;

/// Maximum number of paths with a counter. Requests to other paths count only in the total.
const MAX_PATHS: usize = 10_000;

/// A request as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRequest {
    /// The method.
    pub method: String,
    /// The target, including the query.
    pub target: String,
    /// Headers in order. Names keep their case.
    pub headers: Vec<(String, String)>,
}

impl RecordedRequest {
    /// The target without its query.
    pub fn path(&self) -> &str {
        self.target.split_once('?').map_or(&self.target, |(path, _)| path)
    }

    /// The first value of a header. The name is case-insensitive.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    fn read(head: &[u8]) -> Option<Self> {
        let mut lines = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut lines);
        request.parse(head).ok()?;
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let headers = request.headers.iter().map(|header| (header.name.to_owned(), text(header.value)));
        Some(Self { method: request.method?.to_owned(), target: request.path?.to_owned(), headers: headers.collect() })
    }
}

/// Counters and records of one mock.
#[derive(Debug, Default)]
pub(super) struct Journal {
    pub(super) requests: AtomicU64,
    pub(super) connections: AtomicU64,
    /// Open connections.
    pub(super) open: Gauge,
    pub(super) in_flight: Gauge,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    paths: HashMap<String, u64>,
    /// Heads as received. They are parsed only on demand, which is faster than storing them parsed.
    heads: VecDeque<Box<[u8]>>,
}

impl Journal {
    /// Records a request with its head and its path.
    pub(super) fn request(&self, head: &[u8], path: &str) {
        self.requests.fetch_add(1, Relaxed);
        self.book.lock().note(head, path);
    }

    pub(super) fn requests_to(&self, path: &str) -> u64 {
        self.book.lock().paths.get(path).copied().unwrap_or(0)
    }

    pub(super) fn log(&self) -> Vec<RecordedRequest> {
        let heads = self.book.lock().heads.clone();
        heads.iter().filter_map(|head| RecordedRequest::read(head)).collect()
    }

    pub(super) fn reset(&self) {
        self.requests.store(0, Relaxed);
        self.connections.store(0, Relaxed);
        self.in_flight.reset_peak();
        *self.book.lock() = Book::default();
    }
}

impl Book {
    fn note(&mut self, head: &[u8], path: &str) {
        if let Some(count) = self.paths.get_mut(path) {
            *count += 1;
        } else if self.paths.len() < MAX_PATHS {
            self.paths.insert(path.to_owned(), 1);
        }
        self.heads.push_back(head.into());
        if self.heads.len() > MAX_RECORDED {
            self.heads.pop_front();
        }
    }
}

/// A current count and its maximum.
#[derive(Debug, Default)]
pub(super) struct Gauge(Arc<Levels>);

#[derive(Debug, Default)]
struct Levels {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    /// Adds one until the guard is dropped.
    pub(super) fn guard(&self) -> GaugeGuard {
        let now = self.0.now.fetch_add(1, Relaxed) + 1;
        self.0.peak.fetch_max(now, Relaxed);
        GaugeGuard(Arc::clone(&self.0))
    }

    pub(super) fn now(&self) -> u64 {
        self.0.now.load(Relaxed)
    }

    pub(super) fn peak(&self) -> u64 {
        self.0.peak.load(Relaxed)
    }

    fn reset_peak(&self) {
        self.0.peak.store(self.now(), Relaxed);
    }
}

/// Counts in a [`Gauge`] until dropped.
#[derive(Debug)]
pub(super) struct GaugeGuard(Arc<Levels>);

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_contains_the_last_requests_unchanged() {
        let journal = Journal::default();
        for number in 0..=MAX_RECORDED {
            let path = format!("/{number}");
            journal.request(format!("GET {path}?q HTTP/1.1\r\nhOST: h\r\n\r\n").as_bytes(), &path);
        }
        let log = journal.log();
        assert_eq!((log.len(), journal.requests.load(Relaxed)), (MAX_RECORDED, 10_001));
        assert_eq!((log[0].path(), log[0].target.as_str()), ("/1", "/1?q"));
        assert_eq!(log[0].headers, [("hOST".to_owned(), "h".to_owned())]);
        assert_eq!((log[0].header("Host"), log[0].header("Via")), (Some("h"), None));
        assert_eq!(
            (journal.requests_to("/1"), journal.requests_to("/10000")),
            (1, 0),
            "the number of paths is limited"
        );
    }

    #[test]
    fn a_reset_keeps_current_counts() {
        let journal = Journal::default();
        let _first = journal.in_flight.guard();
        drop(journal.in_flight.guard());
        assert_eq!((journal.in_flight.now(), journal.in_flight.peak()), (1, 2));
        journal.reset();
        assert_eq!((journal.in_flight.now(), journal.in_flight.peak()), (1, 1));
    }
}
