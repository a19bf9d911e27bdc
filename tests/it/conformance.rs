//! The conformance table of the protocol notes, row by row. The mock is tested as a metadata server, and the proxy as a
//! proxy in front of one, with the same rows. So neither can drift unnoticed from the protocol or from the other.

mod ask;
mod bodies;
mod expect;
mod row;
mod rows;
mod stage;
mod stories;

use std::collections::{BTreeMap, BTreeSet};

use row::{Case, Play};
use stage::{Side, Stage};

/// All IDs of the table by subject. The gaps are in the table itself.
const ABOUT_THE_MOCK: &str = "
    T31 T36 T37 T38 T40 T42 T44 T45 T46 T49 T50 T51 T68 T86 T97 T98 T106 T108 T109 T110 T112 T115 T116";
const ABOUT_THE_PROXY: &str = "
    T21 T48 T52 T76 T78 T79 T80 T81 T99 T100 T105 T111 T117 T120 T121 T122 T123 T124 T126 T130 T132 T133 T134 T135
    T136";
const ABOUT_BOTH: &str = "
    T01 T02 T03 T04 T06 T07 T08 T09 T10 T12 T13 T14 T15 T16 T18 T19 T20 T22 T24 T25 T26 T27 T28 T30 T32 T33 T34 T39
    T43 T54 T55 T56 T57 T58 T60 T61 T62 T63 T64 T66 T67 T69 T70 T72 T73 T74 T75 T82 T84 T85 T87 T88 T90 T91 T92 T93
    T94 T96 T102 T103 T104 T114 T118 T127 T128 T129";

/// IDs that are not rows here, with the reason.
const LEFT_OUT: [(&str, &str); 10] = [
    ("T78", "how soon a new token is seen: takes minutes; the token cache's own tests have a clock of their own"),
    ("T79", "refresh ahead of time: needs a proxy that mints tokens"),
    ("T80", "the old token outlives a failed refresh: as T78"),
    ("T111", "a wait beyond the ordinary deadline is among the upstream scenarios"),
    ("T130", "501 idle connections: needs a limit of connections"),
    ("T132", "a pod's address with a new pod: needs Workload Identity"),
    ("T133", "IAM refuses to impersonate: needs Workload Identity"),
    ("T134", "the e-mail of an account without annotation: needs Workload Identity"),
    ("T135", "the identity of an account without annotation: needs Workload Identity"),
    ("T136", "real client libraries have scenarios of their own"),
];

#[tokio::test]
async fn the_mock_and_the_proxy_answer_as_the_table_says() {
    let mut failures = Vec::new();
    for row in rows::all() {
        for case in row.cases {
            let name = format!("{} {case}", row.id);
            // In a separate task, so that a panic counts as a failure and does not end the table.
            let problems = tokio::spawn(play(case)).await.unwrap_or_else(|error| vec![error.to_string()]);
            failures.extend(problems.into_iter().map(|problem| format!("{name}: {problem}")));
        }
    }
    assert!(failures.is_empty(), "{} deviations from the table:\n{}", failures.len(), failures.join("\n"));
}

async fn play(case: Case) -> Vec<String> {
    let stage = Stage::set(case.side).await;
    (case.given)(&stage.mock);
    let problems = match case.play {
        Play::Exchange(ask, expect) => stage.problems(&ask, &expect).await,
        Play::Story(_, story) => {
            story(&stage).await;
            Vec::new()
        }
    };
    stage.clear().await;
    problems
}

#[test]
fn every_id_is_a_row_or_is_left_out_and_no_id_is_both() {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    let left_out = LEFT_OUT.iter().map(|(id, _)| *id);
    for id in rows::all().iter().map(|row| row.id).chain(left_out) {
        *times.entry(id).or_default() += 1;
    }
    let repeated: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(repeated.is_empty(), "listed more than once: {repeated:?}");
    let sides = sides_by_id();
    let missing: Vec<_> = sides.keys().filter(|id| !times.contains_key(*id)).collect();
    assert!(missing.is_empty(), "neither a row nor left out: {missing:?}");
    let unknown: Vec<_> = times.keys().filter(|id| !sides.contains_key(*id)).collect();
    assert!(unknown.is_empty(), "not in the table: {unknown:?}");
}

#[test]
fn every_row_asks_whom_it_is_about() {
    let sides = sides_by_id();
    for row in rows::all() {
        let asked: BTreeSet<Side> = row.cases.iter().map(|case| case.side).collect();
        assert!(asked.iter().eq(sides[row.id]), "{}: {asked:?} is asked", row.id);
    }
}

fn sides_by_id() -> BTreeMap<&'static str, &'static [Side]> {
    let marks: [(&str, &[Side]); 3] =
        [(ABOUT_THE_MOCK, &[Side::Mock]), (ABOUT_THE_PROXY, &[Side::Proxy]), (ABOUT_BOTH, &[Side::Mock, Side::Proxy])];
    marks.into_iter().flat_map(|(ids, sides)| ids.split_whitespace().map(move |id| (id, sides))).collect()
}
