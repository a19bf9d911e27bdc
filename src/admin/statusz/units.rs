//! Times, as the page writes them.

/// A time of a request, in the unit that suits it.
pub(super) fn time(seconds: f64) -> String {
    let (number, unit) = match seconds {
        s if s < 1e-6 => (s * 1e9, "ns"),
        s if s < 1e-3 => (s * 1e6, "us"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    // Estimates deserve two digits.
    if number < 9.95 && unit != "ns" && number.fract() > 0.05 {
        format!("{number:.1} {unit}")
    } else {
        format!("{number:.0} {unit}")
    }
}

/// A time of a process.
pub(super) fn span(seconds: u64) -> String {
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
        for (seconds, told) in
            [(5e-8, "50 ns"), (1e-6, "1 us"), (1.23e-6, "1.2 us"), (45.6e-6, "46 us"), (0.0025, "2.5 ms"), (1.0, "1 s")]
        {
            assert_eq!(time(seconds), told);
        }
        for (seconds, told) in [(59, "59 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (90_000, "1 d 1 h")] {
            assert_eq!(span(seconds), told);
        }
    }
}
