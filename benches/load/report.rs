//! Output of a scenario: tables on standard output, raw results and plots under `target/load`.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::figures::{Figure, Summary};
use super::goals::{Results, verdict};
use super::machine::{Machine, Others};
use super::peers::Contender;
use super::plot::{self, Point};
use super::scenarios::{Plot, Scenario};
use super::table;

/// How the scenario was run.
#[derive(Debug, Clone, Copy)]
pub struct Way<'a> {
    pub command: &'a str,
    pub machine: &'a Machine,
    pub others: Others,
}

/// Prints the tables.
pub fn print(scenario: &Scenario, results: &[Results], way: Way<'_>) {
    let Machine { date, cpu, cores, kernel, versions } = way.machine;
    println!("\n## {}: {}\n", scenario.name, scenario.about);
    println!("`{}`, {date}, {cores} cores of {cpu}, Linux {kernel}.", way.command);
    println!("{}.", versions.join("; "));
    println!(
        "Median and range of the runs; n× is how many times ours a peer has. Latencies other than oha's are of closed loops."
    );
    for step in results {
        println!("\n### {}\n\n{}", step.step.title, table::of_step(step, results));
    }
    let advice = if way.others.are_quiet() { "" } else { ": **do not believe these figures**" };
    println!("Other work took {:.1} % of the machine meanwhile{advice}.", way.others.0);
}

/// Writes `SCENARIO.json` and its plots.
pub fn write(scenario: &Scenario, results: &[Results], way: Way<'_>, dir: &Path) -> io::Result<()> {
    let raw = json!({
        "scenario": scenario.name,
        "about": scenario.about,
        "command": way.command,
        "machine": way.machine,
        "others_per_cent": way.others,
        "steps": results.iter().map(|step| raw(step, results)).collect::<Vec<_>>(),
    });
    fs::write(dir.join(format!("{}.json", scenario.name)), serde_json::to_string_pretty(&raw)?)?;
    for (number, plot) in scenario.plots.iter().enumerate() {
        let file = dir.join(format!("{}-{}.svg", scenario.name, number + 1));
        fs::write(&file, draw(plot, results))?;
        eprintln!("wrote {}", file.display());
    }
    Ok(())
}

fn raw(results: &Results, all: &[Results]) -> Value {
    let contender = |(contender, runs): &(Contender, _)| match runs {
        Ok(runs) => json!({"name": contender.to_string(), "runs": runs as &Vec<super::figures::Run>}),
        Err(why) => {
            json!({"name": contender.to_string(), "not_measured": format!("{why}", why = why as &super::measure::Failed)})
        }
    };
    let goal = |goal| verdict(goal, results, all);
    json!({
        "title": results.step.title,
        "bounds": results.step.bounds,
        "proxy_args": results.step.proxy_args,
        "contenders": results.contenders.iter().map(contender).collect::<Vec<_>>(),
        "goals": results.step.goals.iter().map(goal).collect::<Vec<_>>(),
    })
}

fn draw(plot: &Plot, results: &[Results]) -> String {
    match *plot {
        Plot::Bars { step, figure } => {
            let step = &results[step];
            let rows: Vec<_> = step.contenders.iter().filter_map(|(of, _)| named(step, *of, figure)).collect();
            plot::bars(&step.step.title, figure.heading(), &rows)
        }
        Plot::Lines { first, count, figure, x } => {
            let steps = &results[first..first + count];
            let contenders = steps[0].contenders.iter().map(|(contender, _)| *contender);
            let series = contenders.map(|contender| {
                let points = steps.iter().filter_map(|step| Some(named(step, contender, figure)?.1));
                (contender.to_string(), points.collect::<Vec<_>>())
            });
            let series: Vec<_> = series.filter(|(_, points)| !points.is_empty()).collect();
            plot::lines(figure.heading(), "median and range", x, &series)
        }
    }
}

fn named(results: &Results, contender: Contender, figure: Figure) -> Option<(String, Point)> {
    let Summary { median, least, most } = results.of(contender, figure)?;
    Some((contender.to_string(), Point { x: results.step.x, median, least, most }))
}
