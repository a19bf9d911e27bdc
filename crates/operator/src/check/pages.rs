//! [`Pages`]: the last result, for the kubelet and Prometheus.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use http::StatusCode;
use http::header;
use prometheus::IntGaugeVec;

use super::judge::Verdict;
use super::report::Report;
use super::standing::Standing;
use crate::pages::{self, CANARY, Page, text};
use telemetry::labels::Label;
use telemetry::{Registry, table};

/// Path of [`Standing`]: 200 if this node is ready, otherwise 503.
pub(super) const READYZ: &str = "/readyz";

/// The pages and the result that they show.
#[derive(Debug)]
pub(super) struct Pages {
    node: String,
    last: Arc<ArcSwapOption<Last>>,
    findings: IntGaugeVec,
    registry: Registry,
}

#[derive(Debug)]
struct Last {
    standing: Standing,
    at: SystemTime,
}

impl Pages {
    /// Pages about the node with this name, before the first check.
    pub(super) fn new(node: String, registry: Registry) -> Self {
        let last = Arc::<ArcSwapOption<Last>>::default();
        let observe = |row, read: fn(&Last) -> u64| {
            let last = Arc::clone(&last);
            registry.observe(row, move || last.load().as_deref().map(read));
        };
        observe(&table::CHECK_PROTECTED, |last| u64::from(last.standing.verdict.is_good()));
        observe(&table::CHECK_TIME, |last| last.at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()));
        Self { node, last, findings: registry.gauge_vec(&table::CHECK_FINDINGS), registry }
    }

    /// Publishes a result, and logs it if it is new.
    pub(super) fn show(&self, report: &Report) {
        let findings = report.findings();
        for check in findings.iter().map(|finding| finding.topic).collect::<BTreeSet<_>>() {
            for verdict in Verdict::ALL {
                let count =
                    findings.iter().filter(|finding| (finding.topic, finding.verdict) == (check, verdict)).count();
                self.findings
                    .with_label_values(&[check, verdict.label()])
                    .set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        let last = self.last.load();
        let before = last.as_ref().map(|last| &last.standing);
        let standing = Standing::after(before, report, &self.node);
        standing.log(before);
        self.last.store(Some(Arc::new(Last { standing, at: SystemTime::now() })));
    }

    pub(super) fn answer(&self, path: &str) -> Page {
        let sentence = |status, sentence: &str| text(status, format!("{sentence}\n"));
        let mut answer = match (path, self.last.load().as_ref().map(|last| &last.standing)) {
            (READYZ, Some(standing)) if standing.is_ready => sentence(StatusCode::OK, &standing.sentence),
            (READYZ, Some(standing)) => sentence(StatusCode::SERVICE_UNAVAILABLE, &standing.sentence),
            (READYZ, None) => sentence(StatusCode::SERVICE_UNAVAILABLE, "the first check is not finished"),
            ("/metrics", _) => pages::metrics(&self.registry),
            _ => sentence(StatusCode::NOT_FOUND, "not found; there are /metrics and /readyz"),
        };
        answer.headers_mut().insert(header::SERVER, CANARY);
        answer
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::check::Finding;

    fn finding(check: &'static str, verdict: Verdict) -> Finding {
        let found = Finding::new(check, verdict, "GET /", "why");
        if verdict.is_good() { found } else { found.advising("mend it") }
    }

    async fn get(pages: &Pages, path: &str) -> (u16, String) {
        let (head, body) = pages.answer(path).into_parts();
        let body = body.collect().await.expect("it is whole").to_bytes();
        (head.status.as_u16(), String::from_utf8(body.into()).expect("text"))
    }

    #[tokio::test]
    async fn they_show_what_was_found_last() {
        let pages = Pages::new("node-1".to_owned(), Registry::default());
        let none = get(&pages, "/readyz").await;
        assert_eq!((none.0, get(&pages, "/metrics").await.1.as_str()), (503, ""), "{none:?}");

        pages
            .show(&Report::new(vec![finding("proxied", Verdict::Protected), finding("way_round", Verdict::Protected)]));
        assert_eq!(get(&pages, "/readyz").await.0, 200);
        assert!(get(&pages, "/metrics").await.1.contains("\nmetadata_proxy_check_protected 1\n"));

        pages.show(&Report::new(vec![finding("proxied", Verdict::Protected), finding("way_round", Verdict::Allowed)]));
        assert_eq!(get(&pages, "/readyz").await.0, 200);
        let metrics = get(&pages, "/metrics").await.1;
        for series in ["protected 1", "findings{check=\"way_round\",verdict=\"allowed\"} 1"] {
            assert!(
                metrics.contains(&format!("\nmetadata_proxy_check_{series}\n")),
                "{series} is missing from\n{metrics}"
            );
        }

        let open = finding("way_round", Verdict::Unprotected);
        pages.show(&Report::new(vec![finding("proxied", Verdict::Protected), open.clone(), open]));
        let (status, sentence) = get(&pages, "/readyz").await;
        assert!(status == 503 && sentence.starts_with("UNPROTECTED: pods of node-1 "), "{status} {sentence}");
        let metrics = get(&pages, "/metrics").await.1;
        for series in [
            "metadata_proxy_check_protected 0",
            "metadata_proxy_check_findings{check=\"proxied\",verdict=\"protected\"} 1",
            "metadata_proxy_check_findings{check=\"way_round\",verdict=\"protected\"} 0",
            "metadata_proxy_check_findings{check=\"way_round\",verdict=\"unprotected\"} 2",
            "metadata_proxy_check_last_run_timestamp_seconds ",
        ] {
            assert!(metrics.contains(&format!("\n{series}")), "{series} is missing from\n{metrics}");
        }
        assert_eq!(get(&pages, "/statusz").await.0, 404);
    }
}
