//! Expectations: every client succeeds in every weather, except for documented exceptions.

use crate::client::Client;
use crate::weather::{Cell, Weather};

/// Clients that must fail in a weather, whatever the proxy does.
#[derive(Debug)]
pub(crate) struct Exception {
    clients: &'static [&'static str],
    weathers: &'static [&'static str],
    /// Part of the error; with any other error, the exception does not apply.
    error: &'static str,
    /// The cause, and the remedy.
    pub(crate) reason: &'static str,
}

/// All exceptions.
pub(crate) static EXCEPTIONS: &[Exception] = &[];

/// The exception for a client in a weather.
pub(crate) fn exception(client: &Client, weather: &Weather) -> Option<&'static Exception> {
    EXCEPTIONS.iter().find(|exception| exception.is_for(client, weather))
}

/// Compares the result of a client with the expectation; an error if they differ.
pub(crate) fn judge(client: &Client, weather: &Weather, cell: &Cell) -> Result<(), String> {
    match (&cell.result, exception(client, weather)) {
        (Ok(()), None) => Ok(()),
        (Ok(()), Some(exception)) => Err(format!("it does well, where it was expected not to: {}", exception.reason)),
        (Err(error), Some(exception)) if error.contains(exception.error) => Ok(()),
        (Err(error), Some(exception)) => Err(format!("expected a failure with {:?}, not: {error}", exception.error)),
        (Err(error), None) => Err(error.clone()),
    }
}

impl Exception {
    fn is_for(&self, client: &Client, weather: &Weather) -> bool {
        self.clients.contains(&client.name) && self.weathers.contains(&weather.name)
    }
}
