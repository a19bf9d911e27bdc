//! Parsing of reports as written by the load tools.

mod ab {
    use crate::tools::ab::*;

    #[test]
    fn a_good_run_is_read() {
        let outcome = read(include_str!("../tools/captured/ab.txt"), 5).expect("a report");
        assert_eq!((outcome.requests, outcome.answered, outcome.failures.len()), (500, 500, 0));
        assert_eq!((outcome.p50, outcome.p99, outcome.max), (Some(11.0), Some(24.0), Some(24.0)));
        assert!((outcome.throughput - 3781.98).abs() < 0.01, "{outcome:?}");
    }

    #[test]
    fn refusals_are_failures() {
        let outcome = read(include_str!("../tools/captured/ab_refused.txt"), 5).expect("a report");
        assert_eq!((outcome.answered, outcome.failures["another status"]), (357, 143));
    }

    #[test]
    fn a_reset_counts_once() {
        let outcome = read(include_str!("../tools/captured/ab_reset.txt"), 5).expect("a report");
        assert_eq!((outcome.answered, outcome.failures["reset"]), (60, 30));
    }

    #[test]
    fn a_connection_closed_without_an_answer_is_a_failure() {
        let outcome = read(include_str!("../tools/captured/ab_closed.txt"), 5).expect("a report");
        assert_eq!((outcome.answered, outcome.failures["closed without an answer"]), (341, 159));
    }

    #[test]
    fn an_incomplete_report_is_an_error() {
        assert!(read("Complete requests:      500\n", 5).is_err());
    }
}

mod hey {
    use std::collections::BTreeMap;

    use crate::tools::hey::*;

    #[test]
    fn a_good_run_is_read() {
        let outcome = read(include_str!("../tools/captured/hey.txt")).expect("a report");
        assert_eq!((outcome.requests, outcome.answered, outcome.failures.len()), (1000, 1000, 0));
        assert_eq!((outcome.p50, outcome.p99, outcome.max), (Some(1.8), Some(36.9), Some(37.6)));
    }

    #[test]
    fn refusals_are_counted_by_status() {
        let outcome = read(include_str!("../tools/captured/hey_refused.txt")).expect("a report");
        assert_eq!((outcome.requests, outcome.answered, outcome.failures["status 503"]), (1000, 706, 294));
    }

    #[test]
    fn resets_are_one_kind_for_all_ports() {
        let outcome = read(include_str!("../tools/captured/hey_reset.txt")).expect("a report");
        assert_eq!((outcome.requests, outcome.answered), (90, 60));
        assert_eq!(outcome.failures, BTreeMap::from([("connection reset by peer".to_owned(), 30)]));
    }

    #[test]
    fn a_missing_report_is_an_error() {
        assert!(read("").is_err());
    }
}

mod wrk {
    use crate::tools::wrk::*;

    #[test]
    fn a_good_run_is_read() {
        let outcome = read(include_str!("../tools/captured/wrk.txt")).expect("a report");
        assert_eq!((outcome.requests, outcome.answered, outcome.failures.len()), (59_630, 59_630, 0));
        assert_eq!((outcome.p50, outcome.p99, outcome.max), (Some(0.094), Some(24.39), Some(32.28)));
    }

    #[test]
    fn refusals_are_failures() {
        let outcome = read(include_str!("../tools/captured/wrk_refused.txt")).expect("a report");
        assert_eq!((outcome.answered, outcome.failures["another status"]), (11_653 - 3533, 3533));
    }

    #[test]
    fn resets_are_failures() {
        let outcome = read(include_str!("../tools/captured/wrk_reset.txt")).expect("a report");
        assert_eq!((outcome.answered, outcome.failures["read error"]), (10_724, 5362));
    }

    #[test]
    fn units_are_distinguished() {
        let of = |text| milliseconds(text).expect("a time");
        assert_eq!((of("94.00us"), of("1.50ms"), of("2.00s"), of("1.00m")), (0.094, 1.5, 2000.0, 60_000.0));
    }

    #[test]
    fn a_missing_report_is_an_error() {
        assert!(read("unable to connect to 127.0.0.1:1 Connection refused\n").is_err());
    }
}

mod oha {
    use crate::tools::oha::*;

    #[test]
    fn a_good_run_is_read() {
        let outcome = read(include_str!("../tools/captured/oha.json")).expect("a report");
        assert_eq!((outcome.requests, outcome.answered, outcome.failures.len()), (400, 400, 0));
        assert!((outcome.throughput - 200.28).abs() < 0.01, "{outcome:?}");
        assert!(outcome.max.is_some_and(|max| (max - 0.740).abs() < 0.001), "milliseconds: {outcome:?}");
        assert!(outcome.p50 < outcome.p99 && outcome.p99 < outcome.max, "{outcome:?}");
    }

    #[test]
    fn refusals_and_broken_connections_are_counted_by_kind() {
        let outcome = read(include_str!("../tools/captured/oha_refused.json")).expect("a report");
        assert_eq!((outcome.requests, outcome.answered, outcome.failures["status 503"]), (400, 262, 138));
        let outcome = read(include_str!("../tools/captured/oha_closed.json")).expect("a report");
        assert_eq!((outcome.requests, outcome.answered), (400, 301));
        assert_eq!(outcome.failures["connection closed before message completed"], 99);
    }

    #[test]
    fn a_missing_report_is_an_error() {
        assert!(read("").is_err());
    }
}
