//! The laboratory's own tests: parsing and output. They start no server.

#![expect(unreachable_pub, reason = "modules of a program have no outside")]
#![expect(dead_code, reason = "what starts servers is not tested here")]

mod cgroup;
mod clients;
mod figures;
mod goals;
mod machine;
mod measure;
mod peers;
mod plot;
mod process;
mod scenarios;
mod table;
mod tools;

/// The same as in `main.rs`.
const HYPER: &str = "hyper-server";

#[path = "tests/machine.rs"]
mod read_of_the_machine;
#[path = "tests/reports.rs"]
mod reports;
#[path = "tests/results.rs"]
mod results;
