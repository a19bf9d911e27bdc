//! Renders [`Status`] as an HTML page, for any browser width, light and dark.

use std::fmt::{self, Display, Write};

use super::chart::{self, Scale};
use super::status::{Count, Quantiles, Status};
use super::units::{span, time};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2127;--dim:#5b6570;--line:#d9dee3;--paper:#fff;--card:#f6f7f9;--good:#1a7f4b;\
--bad:#b3261e;--p50:#2a78b8;--p90:#b86e00;--p99:#b3261e}\
@media(prefers-color-scheme:dark){:root{--ink:#e4e7eb;--dim:#9aa4af;--line:#333b44;--paper:#14181d;--card:#1c2229;\
--good:#5fce96;--bad:#ff8a80;--p50:#6cb6f0;--p90:#f0b45a;--p99:#ff8a80}}\
*{box-sizing:border-box}body{margin:0 auto;max-width:1180px;padding:16px;background:var(--paper);color:var(--ink);\
font:15px/1.45 system-ui,sans-serif}h1{font-size:20px;margin:0 0 4px}h2{font-size:16px;margin:28px 0 8px}\
p{margin:4px 0}a{color:var(--p50)}.dim{color:var(--dim)}.good{color:var(--good)}.bad{color:var(--bad);font-weight:600}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{text-align:left;padding:3px 14px 3px 0;border-bottom:1px solid var(--line);vertical-align:top}\
th{color:var(--dim);font-weight:500;white-space:nowrap}.n{text-align:right;white-space:nowrap}\
.k{white-space:nowrap}.b{overflow-wrap:anywhere;min-width:9em}.w{min-width:24em}\
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr));gap:0 32px;align-items:start}\
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,270px),1fr));gap:10px}\
figure{margin:0;padding:8px 10px;background:var(--card);border-radius:6px}figcaption{font-size:13px}\
svg{display:block;width:100%;height:auto}svg text{font-size:11px;fill:var(--dim);text-anchor:end}\
svg path{fill:none;stroke-width:1.6;stroke-linecap:round;stroke-linejoin:round}.grid{stroke:var(--line);stroke-width:.7!important}\
.p50{stroke:var(--p50)}.p90{stroke:var(--p90);stroke-dasharray:4 3}.p99{stroke:var(--p99)}\
.k50{color:var(--p50)}.k90{color:var(--p90)}.k99{color:var(--p99)}meter{width:7em}";

/// The page.
pub fn html(status: &Status) -> String {
    let mut out = String::with_capacity(32 * 1024);
    write(&mut out, status).expect("writing to memory does not fail");
    out
}

fn write(out: &mut String, status: &Status) -> fmt::Result {
    write!(
        out,
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>gce-metadata-proxy</title>\
         <meta name=viewport content=\"width=device-width,initial-scale=1\"><link rel=icon href=\"data:,\">\
         <style>{STYLE}</style></head><body>"
    )?;
    head(out, status)?;
    out.push_str("<div class=grid2>");
    section(out, "Capacity", |out| room(out, status))?;
    section(out, "Metadata server", |out| upstream(out, status))?;
    out.push_str("</div>");
    section(out, "Filters", |out| filters(out, status))?;
    section(out, "Requests since start", |out| requests(out, status))?;
    section(out, "Token cache", |out| tokens(out, status))?;
    out.push_str("<div class=grid2>");
    section(out, "Top clients of the last minute", |out| talkers(out, status))?;
    section(out, "Shed since start", |out| counts(out, "reason", &status.sheds))?;
    section(out, "Refused or failed since start", |out| counts(out, "reason", &status.refusals))?;
    section(out, "Flags", |out| flags(out, status))?;
    out.push_str("</div></body></html>\n");
    Ok(())
}

fn head(out: &mut String, status: &Status) -> fmt::Result {
    let class = match (status.readiness.is_ready(), status.upstream.failure.is_some()) {
        (true, false) => "good",
        _ => "bad",
    };
    write!(
        out,
        "<h1>gce-metadata-proxy {}</h1><p><span class={class}>{}</span></p>\
         <p class=dim>up {}; policy {}; <a href=\"?format=json\">as JSON</a>, <a href=\"/metrics\">metrics</a>, \
         <a href=\"/flagz\">flags</a></p>",
        status.version,
        Text(&status.readiness.to_string()),
        span(status.uptime_seconds),
        Text(&status.policy.to_string()),
    )
}

fn section(out: &mut String, title: &str, body: impl FnOnce(&mut String) -> fmt::Result) -> fmt::Result {
    write!(out, "<section><h2>{title}</h2>")?;
    body(out)?;
    out.push_str("</section>");
    Ok(())
}

/// A table that scrolls if it is too wide. Columns whose name begins with `#` are numbers.
fn table(out: &mut String, columns: &[&str], rows: impl FnOnce(&mut String) -> fmt::Result) -> fmt::Result {
    out.push_str("<div class=wide><table><tr>");
    for column in columns {
        match column.strip_prefix('#') {
            Some(number) => write!(out, "<th class=n>{number}</th>")?,
            None => write!(out, "<th>{column}</th>")?,
        }
    }
    out.push_str("</tr>");
    rows(out)?;
    out.push_str("</table></div>");
    Ok(())
}

fn room(out: &mut String, status: &Status) -> fmt::Result {
    table(out, &["", "#in use", "#limit", ""], |out| {
        for room in &status.room {
            let (used, limit) = (room.used, room.limit);
            write!(
                out,
                "<tr><td>{}</td><td class=n>{used}</td><td class=n>{limit}</td>\
                 <td><meter max={} high={} value={used}></meter></td></tr>",
                room.of,
                limit.max(1),
                limit * 8 / 10,
            )?;
        }
        Ok(())
    })?;
    write!(out, "<p>Memory: {}</p>", Text(&status.memory.to_string()))
}

fn upstream(out: &mut String, status: &Status) -> fmt::Result {
    let upstream = &status.upstream;
    let address = Text(&upstream.address);
    match &upstream.failure {
        None => write!(out, "<p><span class=good>available</span> at {address}</p>")?,
        Some(failure) => write!(out, "<p><span class=bad>unavailable</span> at {address}: {}</p>", Text(failure))?,
    }
    if let Some(Quantiles { p50, p90, p99 }) = upstream.duration {
        write!(out, "<p>p50 {}, p90 {}, p99 {} since start</p>", time(p50), time(p90), time(p99))?;
    }
    counts(out, "outcome", &upstream.outcomes)
}

fn filters(out: &mut String, status: &Status) -> fmt::Result {
    write!(
        out,
        "<p class=dim>Time spent in each filter itself, without the filters below it and without waiting. \
         Over the last {}.</p>",
        span(status.window_seconds),
    )?;
    let columns = ["filter", "#requests", "#p50", "#p90", "#p99", "#waited", "#wait p50", "#wait p99"];
    table(out, &columns, |out| {
        for filter in &status.filters {
            write!(out, "<tr><td>{}</td><td class=n>{}</td>", filter.filter, filter.requests)?;
            quantiles(out, filter.work, |q| [q.p50, q.p90, q.p99])?;
            write!(out, "<td class=n>{}</td>", filter.waited)?;
            quantiles(out, filter.wait, |q| [q.p50, q.p99])?;
            out.push_str("</tr>");
        }
        Ok(())
    })?;
    write!(
        out,
        "<p class=dim>The last ten minutes, {} s per point. <span class=k50>p50</span>, \
         <span class=k90>p90 (dashed)</span>, <span class=k99>p99</span></p><div class=charts>",
        status.point_seconds,
    )?;
    let scale = Scale::over(status.filters.iter().flat_map(|filter| filter.course.iter().flatten()));
    for filter in &status.filters {
        write!(out, "<figure><figcaption>{}</figcaption>", filter.filter)?;
        chart::draw(out, filter.filter, &filter.course, scale)?;
        out.push_str("</figure>");
    }
    out.push_str("</div>");
    Ok(())
}

fn requests(out: &mut String, status: &Status) -> fmt::Result {
    table(out, &["endpoint", "outcome", "#requests", "#p50", "#p90", "#p99"], |out| {
        for exchange in &status.requests {
            let (endpoint, outcome, count) = (exchange.endpoint, exchange.outcome, exchange.count);
            write!(out, "<tr><td>{endpoint}</td><td>{outcome}</td><td class=n>{count}</td>")?;
            quantiles(out, exchange.duration, |q| [q.p50, q.p90, q.p99])?;
            out.push_str("</tr>");
        }
        Ok(())
    })
}

fn tokens(out: &mut String, status: &Status) -> fmt::Result {
    table(out, &["account", "#left", "#age", "#requests", "kind", "parameters"], |out| {
        for token in &status.tokens {
            let seconds = |seconds: Option<u64>| seconds.map_or_else(|| "none".to_owned(), span);
            write!(
                out,
                "<tr><td class=b>{}</td><td class=n>{}</td><td class=n>{}</td><td class=n>{}</td><td>{}</td>\
                 <td class=\"b w\">{}</td></tr>",
                Text(&token.account),
                seconds(token.expires_in_seconds.map(u64::from)),
                seconds(token.age_seconds),
                token.requests,
                token.kind,
                Text(&token.parameters),
            )?;
        }
        Ok(())
    })?;
    match status.tokens_not_shown {
        0 => Ok(()),
        others => write!(out, "<p class=dim>and {others} more, which were requested less often</p>"),
    }
}

fn talkers(out: &mut String, status: &Status) -> fmt::Result {
    table(out, &["client", "#requests", "#shed", "#refused"], |out| {
        for talker in &status.talkers {
            let (address, requests, sheds, refusals) = (talker.address, talker.requests, talker.sheds, talker.refusals);
            write!(
                out,
                "<tr><td>{address}</td><td class=n>{requests}</td><td class=n>{sheds}</td><td class=n>{refusals}</td></tr>"
            )?;
        }
        Ok(())
    })
}

fn counts(out: &mut String, what: &str, counts: &[Count]) -> fmt::Result {
    let seen: Vec<&Count> = counts.iter().filter(|counted| counted.count > 0).collect();
    if seen.is_empty() {
        out.push_str("<p class=dim>none</p>");
        return Ok(());
    }
    table(out, &[what, "#count"], |out| {
        for Count { reason, count } in seen {
            write!(out, "<tr><td>{}</td><td class=n>{count}</td></tr>", Text(reason))?;
        }
        Ok(())
    })
}

fn flags(out: &mut String, status: &Status) -> fmt::Result {
    table(out, &["flag", "value"], |out| {
        for flag in &status.flags {
            write!(out, "<tr><td class=k>{}</td><td class=b>{}</td></tr>", flag.name, Text(&flag.value))?;
        }
        Ok(())
    })
}

fn quantiles<const N: usize>(
    out: &mut String,
    quantiles: Option<Quantiles>,
    pick: impl Fn(Quantiles) -> [f64; N],
) -> fmt::Result {
    match quantiles {
        Some(quantiles) => pick(quantiles).into_iter().try_for_each(|q| write!(out, "<td class=n>{}</td>", time(q))),
        None => (0..N).try_for_each(|_| out.write_str("<td class=\"n dim\">-</td>")),
    }
}

/// Text that is nothing else in HTML, whoever wrote it.
struct Text<'a>(&'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| match letter {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            _ => f.write_char(letter),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        let text = Text("<script>\"&'</script>").to_string();
        assert_eq!(text, "&lt;script&gt;&quot;&amp;&#39;&lt;/script&gt;");
    }
}
