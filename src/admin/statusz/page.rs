//! Renders [`Status`] as an HTML page, for any browser width, light and dark.
//!
//! maud escapes every inserted value, so that text from pods stays text.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::{self, Scale};
use super::data::{PodsStatus, Quantiles, Status};
use super::head;
use super::parts::{counts, section, table};
use crate::units::{span, time};

const STYLE: &str = include_str!("style.css");

/// Renders the page.
pub fn html(status: &Status) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (status.overview.condition) ": " (status.overview.node) ", gce-metadata-proxy" }
                meta name="viewport" content="width=device-width,initial-scale=1";
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                (head::banners(&status.overview))
                (head::overview(&status.overview))
                div class="grid2" {
                    (section("Capacity", &capacity(status)))
                    (section("Metadata server", &upstream(status)))
                }
                @if let Some(identified) = &status.pods {
                    (section("Pods", &pods(identified)))
                }
                (section("Token cache", &tokens(status)))
                (section("Kept values", &values(status)))
                (section("Requests since start", &requests(status)))
                div class="grid2" {
                    (section("Shed since start", &counts("reason", &status.sheds)))
                    (section("Refused or failed since start", &counts("reason", &status.refusals)))
                    (section("Flags", &flags(status)))
                }
                (section("Filters", &filters(status)))
            }
        }
    };
    page.into_string() + "\n"
}

fn capacity(status: &Status) -> Markup {
    let rows = html! {
        @for room in &status.room {
            tr {
                td { (room.of) }
                td class="n" { (room.used) }
                td class="n" { (room.limit) }
                td { meter max=(room.limit.max(1)) high=(room.limit * 8 / 10) value=(room.used) {} }
            }
        }
    };
    html! {
        (table(&["", "#in use", "#limit", ""], &rows))
        p { "Memory: " (status.memory) }
    }
}

fn upstream(status: &Status) -> Markup {
    let upstream = &status.upstream;
    html! {
        @match &upstream.failure {
            _ if upstream.address == "none" => p { "There is none; configured values and those of the node are answered (--upstream none)." },
            None => p { "available at " (upstream.address) },
            Some(failure) => p { span class="bad" { "unavailable" } " at " (upstream.address) ": " (failure) },
        }
        @if let Some(Quantiles { p50, p90, p99 }) = upstream.duration {
            p { "p50 " (time(p50)) ", p90 " (time(p90)) ", p99 " (time(p99)) " since start" }
        }
        (counts("outcome", &upstream.outcomes))
    }
}

fn filters(status: &Status) -> Markup {
    let columns = ["filter", "#requests", "#p50", "#p90", "#p99", "#waited", "#wait p50", "#wait p99"];
    let rows = html! {
        @for filter in &status.filters {
            tr {
                td { (filter.filter) }
                td class="n" { (filter.requests) }
                (quantiles(filter.work, |q| [q.p50, q.p90, q.p99]))
                td class="n" { (filter.waited) }
                (quantiles(filter.wait, |q| [q.p50, q.p99]))
            }
        }
    };
    let scale = Scale::over(status.filters.iter().flat_map(|filter| filter.course.iter().flatten()));
    html! {
        p class="dim" {
            "Time spent in each filter itself, without the filters below it and without waiting. Over the last "
            (span(status.window_seconds)) "."
        }
        (table(&columns, &rows))
        p class="dim" {
            "The last ten minutes, " (status.point_seconds) " s per point. "
            span class="k50" { "p50" } ", " span class="k90" { "p90 (dashed)" } ", " span class="k99" { "p99" }
        }
        div class="charts" {
            @for filter in &status.filters {
                figure {
                    figcaption { (filter.filter) }
                    (chart::draw(filter.filter, &filter.course, scale))
                }
            }
        }
    }
}

fn requests(status: &Status) -> Markup {
    let rows = html! {
        @for exchange in &status.requests {
            tr {
                td { (exchange.endpoint) }
                td { (exchange.outcome) }
                td class="n" { (exchange.count) }
                (quantiles(exchange.duration, |q| [q.p50, q.p90, q.p99]))
            }
        }
    };
    table(&["endpoint", "outcome", "#requests", "#p50", "#p90", "#p99"], &rows)
}

fn tokens(status: &Status) -> Markup {
    let seconds = |seconds: Option<u64>| seconds.map_or_else(|| "none".to_owned(), span);
    let rows = html! {
        @for token in &status.tokens {
            tr {
                td class="b" { (token.account) }
                td class="n" { (seconds(token.expires_in_seconds.map(u64::from))) }
                td class="n" { (seconds(token.age_seconds)) }
                td class="n" { (token.requests) }
                td { (token.kind) }
                td class="b w" { (token.parameters) }
            }
        }
    };
    html! {
        (table(&["account", "#left", "#age", "#requests", "kind", "parameters"], &rows))
        @if status.tokens_not_shown > 0 {
            p class="dim" { "and " (status.tokens_not_shown) " more, which were requested less often" }
        }
    }
}

fn values(status: &Status) -> Markup {
    let rows = html! {
        @for value in &status.values {
            tr {
                td class="b" { (value.path) }
                td class="n" { (span(value.age_seconds)) }
                td class="n" { (value.status) }
            }
        }
    };
    table(&["path", "#age", "#status"], &rows)
}

fn pods(pods: &PodsStatus) -> Markup {
    let rows = html! {
        @for row in &pods.callers {
            tr {
                td { (row.address) }
                td class="b" { (row.pod.namespace) "/" (row.pod.name) }
                td { (row.pod.service_account) @if row.passthrough { " (acts as the node)" } }
                td { (row.pod.evidence) }
                td { (row.pod.uid) }
            }
        }
    };
    html! {
        p {
            (pods.summary.pods) " reported by the API server, which was "
            @match pods.summary.api_age {
                Some(seconds) => { "last heard from " (span(seconds)) " ago" }
                None => { span class="bad" { "not heard from yet" } }
            }
            "; " (pods.summary.sandboxes) " with live processes"
        }
        p {
            "the proxy's credential: "
            b { (pods.credential.state) }
        }
        @for finding in &pods.credential.findings {
            p class="dim" { (finding) }
        }
        (table(&["address", "pod", "service account", "evidence", "UID"], &rows))
    }
}

fn flags(status: &Status) -> Markup {
    let rows = html! {
        @for flag in &status.flags {
            tr { td class="k" { (flag.name) } td class="b" { (flag.value) } }
        }
    };
    table(&["flag", "value"], &rows)
}

fn quantiles<const N: usize>(quantiles: Option<Quantiles>, pick: impl Fn(Quantiles) -> [f64; N]) -> Markup {
    html! {
        @match quantiles {
            Some(quantiles) => @for quantile in pick(quantiles) { td class="n" { (time(quantile)) } },
            None => @for _ in 0..N { td class="n dim" { "-" } },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::{Flag, Memory, TokenStatus, Upstream, ValueStatus};
    use super::super::overview::Count;
    use super::super::overview::tests::overview;
    use super::*;

    /// Text of a pod that contains markup, a quote and an entity.
    const HOSTILE: &str = r#"</td><script>alert(1)</script><a href="'&amp;"#;

    /// A status in which every text is this one.
    fn hostile(text: &str) -> Status {
        let text = || text.to_owned();
        let counts = || vec![Count { reason: text(), count: 1 }];
        Status {
            overview: overview(&text()),
            flags: vec![Flag { name: "--flag".to_owned(), value: text() }],
            room: Vec::new(),
            memory: Memory { level: "normal", usage_bytes: None, limit_bytes: None },
            sheds: counts(),
            refusals: counts(),
            window_seconds: 1,
            point_seconds: 1,
            filters: Vec::new(),
            requests: Vec::new(),
            upstream: Upstream { address: text(), failure: Some(text()), outcomes: counts(), duration: None },
            tokens: vec![TokenStatus {
                account: text(),
                kind: "access",
                parameters: text(),
                age_seconds: None,
                expires_in_seconds: None,
                requests: 1,
            }],
            tokens_not_shown: 0,
            pods: None,
            values: vec![ValueStatus { path: text(), status: 200, age_seconds: 1 }],
        }
    }

    #[test]
    fn text_of_pods_stays_text() {
        let (page, harmless) = (html(&hostile(HOSTILE)), html(&hostile("")));
        for markup in ["<", ">", "\""] {
            assert_eq!(page.matches(markup).count(), harmless.matches(markup).count(), "{markup} in\n{page}");
        }
        let escaped = "&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;a href=&quot;'&amp;amp;";
        // The node twice, six texts of a fact, three of the title, readiness, six of the policy, four of the
        // surroundings, four of a refusal, the reason of a shed in the last minute; a flag, one reason each of sheds,
        // refusals and outcomes, two of the upstream, two of a token, one of a value.
        assert_eq!(page.matches(escaped).count(), 36, "{page}");
    }
}
