//! The table: the outcome of each client in each weather.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use crate::client::{Client, clients};
use crate::expected::{EXCEPTIONS, exception};
use crate::refusal::{Attempts, Refusal};
use crate::weather::{Cell, WEATHERS, Weather};

/// Environment variable for the file that the table is written to, as Markdown.
const FILE: &str = "METADATA_PROXY_CLIENTS_TABLE";

/// Results so far, by client and weather.
#[derive(Debug, Default)]
pub(crate) struct Table {
    cells: Mutex<Cells>,
    /// Attempts of refused clients.
    refused: Mutex<Refused>,
}

impl Table {
    /// Records the result of a client in a weather.
    pub(crate) fn note(&self, client: &Client, weather: &Weather, cell: Cell) {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner).insert((client.name, weather.name), cell);
    }

    /// Records the attempts of a refused client.
    pub(crate) fn note_refused(&self, client: &Client, refusal: Refusal, attempts: Attempts) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).insert((client.name, refusal), attempts);
    }

    /// Prints the table, if anything was run, and writes it to the file that the environment names.
    pub(crate) fn print(&self) {
        let cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if cells.is_empty() && refused.is_empty() {
            return;
        }
        let text = markdown(&cells) + &markdown_of_refused(&refused, &cells);
        println!("{text}");
        let left_out = clients().filter(|client| !client.missing().is_empty()).count();
        if left_out > 0 {
            println!("Clients that were not run: {left_out}; see above.");
        }
        let Some(file) = std::env::var_os(FILE) else { return };
        let of_client = |client: &Client| WEATHERS.iter().filter(|weather| client.meets(weather)).count();
        let wanted: usize = clients().filter(|client| client.missing().is_empty()).map(of_client).sum();
        if cells.len() < wanted {
            println!("{} is not written: {} of {wanted} cells were run", file.display(), cells.len());
        } else if let Err(error) = std::fs::write(&file, text) {
            println!("{} is not written: {error}", file.display());
        }
    }
}

type Cells = BTreeMap<(&'static str, &'static str), Cell>;
type Refused = BTreeMap<(&'static str, Refusal), Attempts>;

fn markdown(cells: &Cells) -> String {
    let mut text = String::from(
        "In each cell: how it went, requests of the client → requests to the metadata server, and the time from the start of \
         the client to its end.\n\n| client | version |",
    );
    for weather in WEATHERS {
        let _ = write!(text, " {} |", weather.name);
    }
    text.push_str("\n|---|---|");
    text.push_str(&"---|".repeat(WEATHERS.len()));
    let was_run = |client: &&Client| cells.keys().any(|(name, _)| *name == client.name);
    for client in clients().filter(was_run) {
        let of_client = |weather: &Weather| cells.get(&(client.name, weather.name));
        let _ = write!(text, "\n| {} ({}) | {} |", client.library, client.language(), version(client, cells));
        for weather in WEATHERS {
            let shown = of_client(weather).map_or_else(absent, |cell| show(client, weather, cell));
            let _ = write!(text, " {shown} |");
        }
    }
    text.push_str("\n\n");
    for (number, exception) in EXCEPTIONS.iter().enumerate() {
        let _ = writeln!(text, "{}. {}", number + 1, exception.reason);
    }
    text
}

/// The client's version, if it reported it in any weather.
fn version<'a>(client: &Client, cells: &'a Cells) -> &'a str {
    let known = WEATHERS.iter().find_map(|weather| cells.get(&(client.name, weather.name))?.version.as_deref());
    known.unwrap_or_default()
}

/// Attempts for one token, by kind of refusal.
fn markdown_of_refused(refused: &Refused, cells: &Cells) -> String {
    let heads = Refusal::ALL.map(Refusal::name).join(" | ");
    let mut text = format!("\n| client | version | {heads} |\n|---|---|{}", "---|".repeat(Refusal::ALL.len()));
    let was_refused = |client: &&Client| refused.keys().any(|(name, _)| *name == client.name);
    for client in clients().filter(was_refused) {
        let shown = Refusal::ALL.map(|refusal| {
            let attempts = refused.get(&(client.name, refusal));
            attempts.map_or_else(absent, |attempts| attempts.show())
        });
        let version = version(client, cells);
        let _ = write!(text, "\n| {} ({}) | {version} | {} |", client.library, client.language(), shown.join(" | "));
    }
    text.push('\n');
    text
}

/// Requests of the client, requests to the upstream, and the time from the client's start to its end.
fn show(client: &Client, weather: &Weather, cell: &Cell) -> String {
    let word = match (&cell.result, exception(client, weather)) {
        (Ok(()), _) => "ok".to_owned(),
        (Err(_), Some(known)) => format!("no ({})", number(known)),
        (Err(_), None) => "**no**".to_owned(),
    };
    format!("{word} {} → {}, {:.1} s", cell.counts.requests, cell.counts.upstream, cell.took.as_secs_f32())
}

fn number(exception: &crate::expected::Exception) -> usize {
    EXCEPTIONS.iter().position(|other| std::ptr::eq(other, exception)).expect("one of them") + 1
}

/// Not run in this weather.
fn absent() -> String {
    "–".to_owned()
}
