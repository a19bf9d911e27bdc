//! Draws a filter's p50, p90 and p99 over time, on a logarithmic scale.

use std::fmt::Write;

use maud::{Markup, html};

use super::data::Quantiles;
use crate::units::time;
use telemetry::history::MAX_POINTS;

/// Size of the drawing, in its own units; it is scaled to the available width.
const WIDTH: f64 = 320.0;
const HEIGHT: f64 = 120.0;

/// Space for the labels of the scale, and below the lowest line.
const LEFT: f64 = 50.0;
const MARGIN: f64 = 6.0;

type Pick = fn(&Quantiles) -> f64;

/// The lines to draw, by class in the style sheet; the last is on top.
const LINES: [(&str, Pick); 3] = [("p99", |q| q.p99), ("p90", |q| q.p90), ("p50", |q| q.p50)];

/// The scale: the same for all filters, so that they can be compared by eye.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    /// Powers of ten of a second, for the lowest and the highest line.
    decades: (i32, i32),
}

impl Scale {
    /// A scale that covers all of these, and at least 0.001 ms to 0.1 ms. Filters should be at the lower end, or below.
    pub(super) fn over<'a>(all: impl Iterator<Item = &'a Quantiles>) -> Self {
        let most = all.map(|quantiles| quantiles.p99).fold(1e-4, f64::max);
        #[expect(clippy::cast_possible_truncation, reason = "a time has few decades")]
        Self { decades: (-6, most.log10().ceil() as i32) }
    }

    fn y(self, seconds: f64) -> f64 {
        let (low, high) = (f64::from(self.decades.0), f64::from(self.decades.1));
        let share = (seconds.max(1e-9).log10() - low) / (high - low);
        HEIGHT - MARGIN - share.clamp(0.0, 1.0) * (HEIGHT - 2.0 * MARGIN)
    }
}

/// Draws a filter's quantiles over time. The newest point is at the right edge.
pub(super) fn draw(name: &str, course: &[Option<Quantiles>], scale: Scale) -> Markup {
    html! {
        svg viewBox=(format_args!("0 0 {WIDTH} {HEIGHT}")) role="img"
            aria-label=(format_args!("{name}: p50, p90 and p99 over time"))
        {
            @for decade in scale.decades.0..=scale.decades.1 {
                @let seconds = 10_f64.powi(decade);
                @let y = scale.y(seconds);
                path class="grid" d=(format_args!("M{LEFT} {y:.1}H{WIDTH}")) {}
                text x=(format_args!("{:.1}", LEFT - 4.0)) y=(format_args!("{:.1}", y + 4.0)) { (time(seconds)) }
            }
            @for (class, pick) in LINES {
                @let path = path(course, |quantiles| scale.y(pick(quantiles)));
                @if !path.is_empty() {
                    path class=(class) d=(path) {}
                }
            }
        }
    }
}

/// A line through the existing points, with a gap for each missing one.
fn path(course: &[Option<Quantiles>], y: impl Fn(&Quantiles) -> f64) -> String {
    let mut path = String::new();
    let mut is_drawing = false;
    #[expect(clippy::cast_precision_loss, reason = "there are 61 points")]
    let x = |at: usize| {
        let from_the_right = (course.len() - 1 - at) as f64;
        WIDTH - 2.0 - from_the_right * (WIDTH - LEFT - 4.0) / MAX_POINTS as f64
    };
    for (at, point) in course.iter().enumerate() {
        let Some(quantiles) = point else {
            is_drawing = false;
            continue;
        };
        let (command, dot) = if is_drawing { ('L', "") } else { ('M', "h0") };
        // A point between two gaps is a line of zero length with round ends.
        let _ = write!(path, "{command}{:.1} {:.1}{dot}", x(at), y(quantiles));
        is_drawing = true;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(seconds: f64) -> Quantiles {
        Quantiles { p50: seconds, p90: seconds, p99: seconds }
    }

    #[test]
    fn a_gap_is_a_gap_and_a_lonely_point_is_seen() {
        let path = path(&[Some(flat(1.0)), Some(flat(1.0)), None, Some(flat(1.0))], |_| 5.0);
        assert_eq!(path.matches('M').count(), 2, "{path}");
        assert_eq!(path.matches('L').count(), 1, "{path}");
        assert!(path.ends_with("318.0 5.0h0"), "the newest is at the right edge: {path}");
    }

    #[test]
    fn the_scale_holds_what_is_slow_and_starts_where_filters_are() {
        assert_eq!(Scale::over([].into_iter()).decades, (-6, -4));
        let scale = Scale::over([flat(0.02)].iter());
        assert_eq!(scale.decades, (-6, -1));
        assert!(scale.y(1e-6) > scale.y(1e-5) && scale.y(1e-5) > scale.y(1e-2));
    }
}
