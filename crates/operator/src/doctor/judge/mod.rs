//! Turns observations into findings. Pure.

pub(super) mod cluster;
pub(super) mod google;
pub(super) mod link;
pub(super) mod proxy;
pub(super) mod rights;
pub(super) mod settings;
pub(super) mod sts;
pub(super) mod token;

use std::time::Duration;

use crate::doctor::report::{Finding, Tried};

/// A server of Google's failed.
fn no_answer(tried: &Tried, server: &str, why: &str) -> Finding {
    tried.trouble(format!("{server} gave no answer that makes sense: {why}")).advising("try again")
}

/// A duration in a readable form.
fn time(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..=120 => format!("{seconds} s"),
        seconds @ 121..=7200 => format!("{} min", (seconds + 30) / 60),
        seconds => format!("{} h", (seconds + 1800) / 3600),
    }
}
