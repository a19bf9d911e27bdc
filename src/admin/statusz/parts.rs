//! Building blocks of the page.

use maud::{Markup, html};

use super::overview::Count;

pub(super) fn section(title: &str, body: &Markup) -> Markup {
    html! { section { h2 { (title) } (body) } }
}

/// A table that scrolls if it is too wide. Columns whose name begins with `#` are numeric.
pub(super) fn table(columns: &[&str], rows: &Markup) -> Markup {
    html! {
        div class="wide" {
            table {
                tr {
                    @for column in columns {
                        @match column.strip_prefix('#') {
                            Some(number) => th class="n" { (number) },
                            None => th { (column) },
                        }
                    }
                }
                (rows)
            }
        }
    }
}

pub(super) fn counts(what: &str, counts: &[Count]) -> Markup {
    let nonzero: Vec<&Count> = counts.iter().filter(|counted| counted.count > 0).collect();
    if nonzero.is_empty() {
        return html! { p class="dim" { "none" } };
    }
    let rows = html! {
        @for Count { reason, count } in nonzero {
            tr { td { (reason) } td class="n" { (count) } }
        }
    };
    table(&[what, "#count"], &rows)
}
