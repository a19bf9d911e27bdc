//! Durations in a readable form.

/// A request's duration, in milliseconds or seconds.
pub(crate) fn time(seconds: f64) -> String {
    let (number, unit) = if seconds < 1.0 { (seconds * 1e3, "ms") } else { (seconds, "s") };
    // These are estimates, so two digits suffice.
    match number {
        0.0 => format!("0 {unit}"),
        number if number < 0.000_95 => format!("<0.001 {unit}"),
        number if number < 0.095 => format!("{number:.3} {unit}"),
        number if number < 0.95 => format!("{number:.2} {unit}"),
        number if number < 9.95 && number.fract() > 0.05 => format!("{number:.1} {unit}"),
        number => format!("{number:.0} {unit}"),
    }
}

/// The age of a process or of a state.
pub(crate) fn span(seconds: u64) -> String {
    match (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_unit_that_suits_them() {
        for (seconds, told) in [
            (0.0, "0 ms"),
            (5e-8, "<0.001 ms"),
            (1e-6, "0.001 ms"),
            (45.6e-6, "0.046 ms"),
            (1e-4, "0.10 ms"),
            (0.0025, "2.5 ms"),
            (0.0456, "46 ms"),
            (1.0, "1 s"),
        ] {
            assert_eq!(time(seconds), told);
        }
        for (seconds, told) in [(59, "59 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (90_000, "1 d 1 h")] {
            assert_eq!(span(seconds), told);
        }
    }
}
