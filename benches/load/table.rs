//! The table: one row per contender with medians, ranges and ratios, and the goals below the first row.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::figures::{Figure, Run, Summary};
use super::goals::{Results, verdict};
use super::peers::Contender;

/// Formats the table of a step as Markdown.
pub fn of_step(results: &Results, all: &[Results]) -> String {
    let figures = figures(results);
    let mut rows = vec![heading(&figures)];
    for (contender, runs) in &results.contenders {
        match runs {
            Ok(runs) => rows.push(row(*contender, runs, results, &figures)),
            Err(why) => rows.push(vec![contender.to_string(), format!("not measured: {why}")]),
        }
        if *contender == results.ours() {
            rows.push(goals(results, all, &figures));
        }
    }
    aligned(&rows)
}

/// The figures that any contender has.
fn figures(results: &Results) -> Vec<Figure> {
    let runs = results.contenders.iter().filter_map(|(_, runs)| runs.as_ref().ok()).flatten();
    runs.flat_map(|run| run.figures.keys().copied()).collect::<BTreeSet<_>>().into_iter().collect()
}

fn heading(figures: &[Figure]) -> Vec<String> {
    let headings = figures.iter().map(|figure| figure.heading().to_owned());
    std::iter::once(String::new()).chain(headings).chain(["failures".to_owned()]).collect()
}

fn row(contender: Contender, runs: &[Run], results: &Results, figures: &[Figure]) -> Vec<String> {
    let name = if contender == results.ours() { format!("**{contender}**") } else { contender.to_string() };
    let cell = |figure: &Figure| {
        let Some(summary) = Summary::of_figure(runs, *figure) else { return "–".to_owned() };
        let mut cell = spread(*figure, summary);
        if contender != results.ours()
            && figure.has_ratio()
            && let Some(ours) = results.of(results.ours(), *figure)
        {
            write!(cell, ", {:.2}×", summary.median / ours.median).expect("a string takes whatever is written");
        }
        cell
    };
    std::iter::once(name).chain(figures.iter().map(cell)).chain([failures(runs)]).collect()
}

/// Median and range, or a single value if all runs agree.
fn spread(figure: Figure, summary: Summary) -> String {
    let [median, least, most] = [summary.median, summary.least, summary.most].map(|value| figure.show(value));
    if least == most { median } else { format!("{median} ({least}–{most})") }
}

/// Failures in all runs.
fn failures(runs: &[Run]) -> String {
    let mut kinds = BTreeMap::<&str, u64>::new();
    for (kind, count) in runs.iter().flat_map(|run| &run.failures) {
        *kinds.entry(kind).or_default() += count;
    }
    if kinds.is_empty() {
        return "none".to_owned();
    }
    kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect::<Vec<_>>().join(", ")
}

fn goals(results: &Results, all: &[Results], figures: &[Figure]) -> Vec<String> {
    let of = |figure: &Figure| {
        let goals = results.step.goals.iter().filter(|goal| goal.figure == *figure);
        goals.map(|goal| verdict(goal, results, all)).collect::<Vec<_>>().join("; ")
    };
    std::iter::once("*its goal*".to_owned()).chain(figures.iter().map(of)).chain([String::new()]).collect()
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    // A row that only contains an error does not widen the column.
    let full = || rows.iter().filter(|row| row.len() == columns);
    let width = |column: usize| full().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut table = String::new();
    for (number, row) in rows.iter().enumerate() {
        let cell = |column: usize| row.get(column).map_or("", String::as_str);
        let cells = widths.iter().enumerate().map(|(column, width)| format!("{:width$}", cell(column)));
        writeln!(table, "| {} |", cells.collect::<Vec<_>>().join(" | ")).expect("a string takes whatever is written");
        if number == 0 {
            let rule = widths.iter().map(|width| "-".repeat(width + 2)).collect::<Vec<_>>().join("|");
            writeln!(table, "|{rule}|").expect("a string takes whatever is written");
        }
    }
    table
}
