//! The head of the page: the [`Overview`], the problems first.

use maud::{Markup, html};

use super::overview::Overview;
use super::parts::{counts, section, table};
use crate::condition::{Condition, Fact};
use crate::units::span;

/// The class of a condition in the style sheet.
fn class(condition: Condition) -> &'static str {
    match condition {
        Condition::Ok => "good",
        Condition::Degraded => "warn",
        Condition::Failing => "bad",
    }
}

/// A banner for the condition, and one for each fact.
pub(super) fn banners(overview: &Overview) -> Markup {
    html! {
        h1 class={ "banner " (class(overview.condition)) } { (overview.condition) ": " (overview.node) }
        @for fact in &overview.facts {
            (banner(fact))
        }
        p class="dim" {
            (overview.title()) "; "
            a href="?format=json" { "as JSON" } ", " a href="/metrics" { "metrics" } ", " a href="/flagz" { "flags" }
        }
    }
}

fn banner(fact: &Fact) -> Markup {
    html! {
        div class={ "banner " (class(fact.verdict)) } {
            p { b { (fact.tried) } ": " (fact.seen) }
            @if let Some(said) = &fact.said { p { "Details: " (said) } }
            @for look in &fact.looks { p { "Look: " code { (look) } } }
            @for command in &fact.commands { p { "Do: " code { (command) } } }
            @if let Some(advice) = &fact.advice { p { "What to do: " (advice) } }
        }
    }
}

/// The proxy's surroundings, and the last minute.
pub(super) fn overview(overview: &Overview) -> Markup {
    let rows = html! {
        @for (label, text) in overview.states() {
            tr { td class="k" { (label) } td class="b" { (text) } }
        }
    };
    html! {
        (section("This proxy", &table(&["", ""], &rows)))
        (section("Last refusals", &refusals(overview)))
        div class="grid2" {
            (section("Top clients of the last minute", &talkers(overview)))
            (section("Shed in the last minute", &counts("reason", &overview.last_minute.sheds)))
        }
    }
}

fn refusals(overview: &Overview) -> Markup {
    if overview.last_refusals.is_empty() {
        return html! { p class="dim" { "none since the start" } };
    }
    let rows = html! {
        @for refusal in &overview.last_refusals {
            tr {
                td class="b" { (refusal.who()) }
                td { (refusal.reason) }
                td class="n" { (refusal.status) }
                td class="b w" { (refusal.path) " " span class="dim" { (refusal.said) } }
                td class="n" { (refusal.count) }
                td class="n" { (span(refusal.last_seconds_ago)) }
            }
        }
    };
    html! {
        (table(&["client", "reason", "#status", "path, or kind of path", "#count", "#last, ago"], &rows))
        @if overview.refusals_not_shown > 0 {
            p class="dim" { "and " (overview.refusals_not_shown) " of other clients since the start, counted below by reason" }
        }
    }
}

fn talkers(overview: &Overview) -> Markup {
    let rows = html! {
        @for asks in &overview.talkers {
            tr {
                td class="b" { (asks.who()) }
                td class="n" { (asks.talker.number()) }
                td class="n" { (asks.talker.sheds) }
                td class="n" { (asks.talker.refusals) }
            }
        }
    };
    table(&["client", "#requests", "#shed", "#refused"], &rows)
}

#[cfg(test)]
mod tests {
    use super::super::overview::tests;
    use super::*;
    use crate::condition::Topic;

    fn heading(condition: Condition, facts: Vec<Fact>) -> String {
        banners(&Overview { condition, facts, ..tests::overview("") }).into_string()
    }

    #[test]
    fn only_a_proxy_that_is_well_is_green_and_each_fact_has_a_banner() {
        let fact = |verdict| Fact::new(Topic::Overload, verdict, "what", "why").advising("this");
        assert!(heading(Condition::Ok, Vec::new()).starts_with("<h1 class=\"banner good\">ok: </h1>"));
        for (condition, class) in [(Condition::Degraded, "warn"), (Condition::Failing, "bad")] {
            let page = heading(condition, vec![fact(condition), fact(Condition::Degraded)]);
            assert!(page.starts_with(&format!("<h1 class=\"banner {class}\">{condition}: ")), "{page}");
            let banner = format!("<div class=\"banner {class}\"><p><b>what</b>: why</p><p>What to do: this</p></div>");
            assert!(page.contains(&banner) && page.matches("<div").count() == 2 && !page.contains("good"), "{page}");
        }
    }
}
