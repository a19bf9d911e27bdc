//! SVG plots for light and dark backgrounds.

use std::fmt::Write;

/// Width of a plot and height of its lines, in pixels.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 190.0;
const BAR: f64 = 30.0;
const HEIGHT: f64 = 320.0;

/// Colours of lines and bars for light and dark backgrounds. The last is for peers' bars.
const COLOURS: [(&str, &str); 6] = [
    ("#0969da", "#58a6ff"),
    ("#9a6700", "#d29922"),
    ("#8250df", "#bc8cff"),
    ("#1a7f37", "#3fb950"),
    ("#cf222e", "#ff7b72"),
    ("#57606a", "#8b949e"),
];

const PEER: usize = COLOURS.len() - 1;

/// A value with its range.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    pub x: f64,
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

/// Bars from zero, one per name.
pub fn bars(title: &str, unit: &str, rows: &[(String, Point)]) -> String {
    let most = rows.iter().map(|(_, point)| point.most).fold(f64::MIN_POSITIVE, f64::max);
    let at = |value: f64| LEFT + value / most * (WIDTH - LEFT - 90.0);
    let mut body = String::new();
    let mut top = 44.0;
    for (number, (name, point)) in rows.iter().enumerate() {
        let (middle, colour) = (top + 10.0, if number == 0 { 0 } else { PEER });
        let (end, from, to) = (at(point.median), at(point.least), at(point.most));
        let width = end - LEFT;
        push(
            &mut body,
            format_args!(
                "<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"end\">{name}</text>\
                 <rect x=\"{LEFT}\" y=\"{top:.0}\" width=\"{width:.1}\" height=\"20\" rx=\"3\" class=\"f{colour}\"/>\
                 <line class=\"range\" x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{middle:.0}\" y2=\"{middle:.0}\"/>\
                 <text x=\"{label:.0}\" y=\"{y:.0}\">{value}</text>",
                x = LEFT - 8.0,
                y = top + 15.0,
                name = escaped(name),
                label = to + 8.0,
                value = short(point.median),
            ),
        );
        top += BAR;
    }
    document(&format!("{title}, {unit}"), top + 8.0, &body)
}

/// Lines, one per name, over a logarithmic axis.
pub fn lines(title: &str, unit: &str, x_axis: &str, series: &[(String, Vec<Point>)]) -> String {
    let points = || series.iter().flat_map(|(_, points)| points);
    let most = points().map(|point| point.most).fold(f64::MIN_POSITIVE, f64::max);
    let (first, last) = points().fold((f64::MAX, 1.0), |(first, last), point| (point.x.min(first), point.x.max(last)));
    let span = (last / first).ln().max(f64::MIN_POSITIVE);
    let (left, right, foot) = (60.0, WIDTH - 30.0, HEIGHT - 70.0);
    let across = |x: f64| left + (x / first).ln() / span * (right - left);
    let up = |value: f64| foot - value / most * (foot - 50.0);
    let mut body = String::new();
    for part in [0.0, 0.5, 1.0] {
        let (y, value) = (up(most * part), short(most * part));
        push(
            &mut body,
            format_args!(
                "<line class=\"rule\" x1=\"{left}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"faint\" x=\"{x:.0}\" y=\"{text:.1}\" text-anchor=\"end\">{value}</text>",
                x = left - 8.0,
                text = y + 4.0,
            ),
        );
    }
    for x in series.iter().map(|(_, points)| points).max_by_key(|points| points.len()).into_iter().flatten() {
        push(
            &mut body,
            format_args!(
                "<text class=\"faint\" x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
                across(x.x),
                foot + 18.0,
                short(x.x)
            ),
        );
    }
    push(
        &mut body,
        format_args!(
            "<text class=\"faint\" x=\"{right}\" y=\"{:.0}\" text-anchor=\"end\">{x_axis}</text>",
            foot + 36.0
        ),
    );
    let mut legend = left;
    for ((name, points), colour) in series.iter().zip((0..COLOURS.len()).cycle()) {
        let path: Vec<String> =
            points.iter().map(|point| format!("{:.1},{:.1}", across(point.x), up(point.median))).collect();
        push(&mut body, format_args!("<polyline class=\"line s{colour}\" points=\"{}\"/>", path.join(" ")));
        for point in points {
            let (x, y) = (across(point.x), up(point.median));
            let (low, high) = (up(point.least), up(point.most));
            push(
                &mut body,
                format_args!(
                    "<line class=\"s{colour}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\"/>\
                     <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" class=\"f{colour}\"/>"
                ),
            );
        }
        push(
            &mut body,
            format_args!(
                "<circle cx=\"{legend:.0}\" cy=\"{y:.0}\" r=\"4\" class=\"f{colour}\"/>\
                 <text x=\"{text:.0}\" y=\"{label:.0}\">{name}</text>",
                y = HEIGHT - 14.0,
                text = legend + 9.0,
                label = HEIGHT - 10.0,
                name = escaped(name),
            ),
        );
        legend += 190.0;
    }
    document(&format!("{title}, {unit}"), HEIGHT, &body)
}

fn document(title: &str, height: f64, body: &str) -> String {
    let title = escaped(title);
    let style = style();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" role=\"img\" \
         aria-label=\"{title}\"><style>{style}</style><text class=\"title\" x=\"12\" y=\"24\">{title}</text>{body}</svg>\n"
    )
}

/// Uses no CSS variables, which not every renderer supports.
fn style() -> String {
    let theme = |ink: &str, faint: &str, colours: [&str; COLOURS.len()]| {
        let colours = colours.iter().enumerate();
        let classes =
            colours.map(|(number, colour)| format!(".f{number}{{fill:{colour}}}.s{number}{{stroke:{colour}}}"));
        let classes: String = classes.collect();
        format!("text{{fill:{ink}}}.faint{{fill:{faint}}}.rule{{stroke:{faint}}}.range{{stroke:{ink}}}{classes}")
    };
    let light = theme("#1f2328", "#6e7781", COLOURS.map(|(light, _)| light));
    let dark = theme("#e6edf3", "#8b949e", COLOURS.map(|(_, dark)| dark));
    format!(
        "text{{font:13px system-ui,sans-serif}}.title{{font-weight:600}}.line{{fill:none;stroke-width:2}}\
         .rule{{stroke-dasharray:2 4}}.range{{stroke-width:1.5}}{light}\
         @media(prefers-color-scheme:dark){{{dark}}}"
    )
}

fn push(text: &mut String, more: std::fmt::Arguments<'_>) {
    text.write_fmt(more).expect("a string takes whatever is written");
    text.push('\n');
}

fn short(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}").trim_end_matches(".0").to_owned() }
}

fn escaped(text: &str) -> String {
    text.replace('`', "").replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
