//! The table of completed tests.

use std::sync::{Mutex, PoisonError};

/// The environment variable for the number of runs of each test. A table of all is printed at the end.
pub(crate) const ROUNDS: &str = "SIEGE_ROUNDS";

const HEAD: &str = "\
| siege | honest requests | failed | p50, ms | p99, ms | slowest, ms | peak, MiB | at rest after, s |
|---|---|---|---|---|---|---|---|";

/// Beginning of the lines that a virtual machine passes to the table of the process outside.
const HANDED: &str = "siege: row ";

static ROWS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Number of runs of each test, if a table is requested.
pub(crate) fn rounds() -> Option<usize> {
    let given = std::env::var(ROUNDS).ok()?;
    Some(given.parse().unwrap_or_else(|_| panic!("{ROUNDS}={given} is no number")))
}

/// Adds the row of a test: its columns, without the bars at both ends.
pub(crate) fn add(row: String) {
    ROWS.lock().unwrap_or_else(PoisonError::into_inner).push(row);
}

/// Adds the row in a line of the virtual machine. Returns `false` if the line has none.
pub(crate) fn add_handed(line: &str) -> bool {
    let row = line.strip_prefix(HANDED);
    if let Some(row) = row {
        add(format!("v2: {row}"));
    }
    row.is_some()
}

/// Prints the table, for a reader or for the process outside.
pub(crate) fn print(is_inside: bool) {
    let rows = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
    if is_inside {
        rows.iter().for_each(|row| println!("{HANDED}{row}"));
    } else {
        println!("{HEAD}");
        rows.iter().for_each(|row| println!("| {row} |"));
    }
}
