//! Charts as SVG, with the colours of the page, so that they follow light and dark. Exact values are titles, which
//! a browser shows under the pointer.

use std::fmt::Write;

use crate::numbers::{float, whole};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 34.0;
/// Labels of the time axis, about.
const TIME_LABELS: u64 = 10;

/// The vertical axis.
#[derive(Debug, Clone, Copy)]
pub(super) enum Axis {
    /// From 0 to this.
    Linear(f64),
    /// Powers of ten that enclose from and to, both above 0.
    Log(f64, f64),
}

/// A line through one value a step.
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    /// The class that gives it its colour.
    pub(super) class: &'a str,
    pub(super) values: Vec<f64>,
}

/// A chart over time; `breaks` are where one round ends and the next begins.
pub(super) struct OverTime<'a> {
    pub(super) title: &'a str,
    pub(super) axis: Axis,
    pub(super) lines: Vec<Line<'a>>,
    pub(super) breaks: Vec<usize>,
    /// What is shown under the pointer at each step.
    pub(super) tips: Vec<String>,
    pub(super) label: fn(f64) -> String,
}

/// A chart of counts by steps of latency.
pub(super) struct Bars<'a> {
    pub(super) title: &'a str,
    /// (up to, count), growing.
    pub(super) steps: &'a [(u64, u64)],
    /// Values marked with a line and their names.
    pub(super) marks: Vec<(u64, &'a str)>,
    pub(super) label: fn(u64) -> String,
}

impl Axis {
    /// Where a value is, 0 at the bottom and 1 at the top.
    fn share(self, value: f64) -> f64 {
        match self {
            Self::Linear(top) => (value / top.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0),
            Self::Log(from, to) => {
                let (low, high) = decades(from, to);
                ((value.max(1e-9).log10() - low) / (high - low)).clamp(0.0, 1.0)
            }
        }
    }

    fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear(top) => {
                let step = round_step(top / 4.0);
                (0..=5_u8)
                    .map(|count| f64::from(count) * step)
                    .take_while(|tick| *tick <= top * 1.001)
                    .collect()
            }
            Self::Log(from, to) => {
                let (low, high) = decades(from, to);
                (0..=20_u8)
                    .map(|count| low + f64::from(count))
                    .take_while(|it| *it <= high)
                    .map(exp10)
                    .collect()
            }
        }
    }
}

fn exp10(power: f64) -> f64 {
    10_f64.powf(power)
}

fn decades(from: f64, to: f64) -> (f64, f64) {
    let low = from.max(1e-9).log10().floor();
    let high = to.max(1e-9).log10().ceil();
    (low, if high > low { high } else { low + 1.0 })
}

/// 1, 2 or 5 times a power of ten, not below `step`.
fn round_step(step: f64) -> f64 {
    let power = exp10(step.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|it| *it >= step).unwrap_or(step)
}

fn y(share: f64) -> f64 {
    TOP + (1.0 - share) * (HEIGHT - TOP - BOTTOM)
}

fn open(title: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\"><title>{title}</title>\n"
    )
}

fn horizontal(svg: &mut String, at: f64, label: &str) {
    let (right, text) = (WIDTH - RIGHT, LEFT - 8.0);
    let baseline = at + 4.0;
    // Writing to a string cannot fail; so here and below.
    let _ = writeln!(
        svg,
        "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/>\
         <text class=\"tick end\" x=\"{text}\" y=\"{baseline:.1}\">{label}</text>"
    );
}

fn below(svg: &mut String, x: f64, label: &str) {
    let at = HEIGHT - BOTTOM + 18.0;
    let _ = writeln!(svg, "<text class=\"tick middle\" x=\"{x:.1}\" y=\"{at}\">{label}</text>");
}

impl OverTime<'_> {
    pub(super) fn render(&self) -> String {
        let steps = self.tips.len();
        let width = (WIDTH - LEFT - RIGHT) / float(steps.max(1) as u64);
        let x = |index: usize| LEFT + (float(index as u64) + 0.5) * width;
        let mut svg = open(self.title);
        for tick in self.axis.ticks() {
            horizontal(&mut svg, y(self.axis.share(tick)), &(self.label)(tick));
        }
        let every = whole(round_step(float(steps as u64) / float(TIME_LABELS)).max(1.0));
        for index in (0..steps).filter(|index| (*index as u64 + 1).is_multiple_of(every)) {
            below(&mut svg, x(index), &format!("{} s", index + 1));
        }
        for at in &self.breaks {
            let at = LEFT + float(*at as u64) * width;
            let bottom = HEIGHT - BOTTOM;
            let _ = writeln!(
                svg,
                "<line class=\"break\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\"/>"
            );
        }
        for line in &self.lines {
            let points: Vec<String> = line
                .values
                .iter()
                .enumerate()
                .map(|(index, value)| format!("{:.1},{:.1}", x(index), y(self.axis.share(*value))))
                .collect();
            let (class, points) = (line.class, points.join(" "));
            let _ = writeln!(svg, "<polyline class=\"line {class}\" points=\"{points}\"/>");
        }
        for (index, tip) in self.tips.iter().enumerate() {
            let left = LEFT + float(index as u64) * width;
            let height = HEIGHT - TOP - BOTTOM;
            let _ = writeln!(
                svg,
                "<rect class=\"tip\" x=\"{left:.1}\" y=\"{TOP}\" width=\"{width:.2}\" height=\"{height}\"><title>{tip}</title></rect>"
            );
        }
        svg.push_str("</svg>\n");
        svg.push_str(&self.legend());
        svg
    }

    fn legend(&self) -> String {
        if self.lines.len() < 2 {
            return String::new();
        }
        let keys = self
            .lines
            .iter()
            .map(|line| format!("<span class=\"key\"><i class=\"{}\"></i>{}</span>", line.class, line.name));
        format!("<p class=\"legend\">{}</p>\n", keys.collect::<String>())
    }
}

impl Bars<'_> {
    pub(super) fn render(&self) -> String {
        let mut svg = open(self.title);
        let (Some((first, _)), Some((last, _))) = (self.steps.first(), self.steps.last()) else {
            return svg + "</svg>\n";
        };
        let most = self.steps.iter().map(|(_, count)| *count).max().unwrap_or(1);
        let all: u64 = self.steps.iter().map(|(_, count)| count).sum();
        let axis = Axis::Linear(float(most) * 100.0 / float(all.max(1)));
        for tick in axis.ticks() {
            horizontal(&mut svg, y(axis.share(tick)), &format!("{tick} %"));
        }
        // The first step begins a step below its end.
        let (low, high) = ((float(*first) / 1.15).log10(), float(*last).log10());
        let x = |us: f64| {
            let share = (us.max(1e-9).log10() - low) / (high - low).max(1e-9);
            LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
        };
        let mut start = float(*first) / 1.15;
        let mut below_sum = 0;
        for (upto, count) in self.steps {
            below_sum += count;
            let share = axis.share(float(*count) * 100.0 / float(all.max(1)));
            let (left, width) = (x(start), (x(float(*upto)) - x(start) - 1.0).max(0.5));
            let (top, height) = (y(share), y(0.0) - y(share));
            let percent = float(below_sum) * 100.0 / float(all.max(1));
            let tip = format!("up to {}: {count} requests, {percent:.2} % so far", (self.label)(*upto));
            let _ = writeln!(
                svg,
                "<rect class=\"bar\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"><title>{tip}</title></rect>"
            );
            start = float(*upto);
        }
        for power in 0..9_u32 {
            for times in [1, 3] {
                let us = times * 10_u64.pow(power);
                if float(us).log10() >= low && us <= *last {
                    below(&mut svg, x(float(us)), &(self.label)(us));
                }
            }
        }
        for (index, (us, name)) in self.marks.iter().enumerate() {
            let (at, bottom) = (x(float(*us)), HEIGHT - BOTTOM);
            let text = TOP + 10.0 + 14.0 * float(index as u64);
            let label = (self.label)(*us);
            let (class, beside) = if at > WIDTH * 0.8 { ("end", at - 4.0) } else { ("start", at + 4.0) };
            let _ = writeln!(
                svg,
                "<line class=\"mark\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\"/>\
                 <text class=\"tick {class}\" x=\"{beside:.1}\" y=\"{text:.1}\">{name} {label}</text>"
            );
        }
        svg + "</svg>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_axis_encloses_its_values_in_powers_of_ten() {
        let axis = Axis::Log(300.0, 42_000.0);
        let ticks: Vec<u64> = axis.ticks().into_iter().map(whole).collect();
        assert_eq!(ticks, [100, 1_000, 10_000, 100_000]);
        assert!(axis.share(100.0).abs() < 1e-9 && (axis.share(100_000.0) - 1.0).abs() < 1e-9);
        assert!((axis.share(1_000.0) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(Axis::Log(0.0, 0.0).ticks().len(), 2);
    }

    #[test]
    fn a_linear_axis_has_round_ticks() {
        let ticks: Vec<u64> = Axis::Linear(48_211.0).ticks().into_iter().map(whole).collect();
        assert_eq!(ticks, [0, 20_000, 40_000]);
    }

    #[test]
    fn no_steps_are_no_bars() {
        let bars = Bars { title: "t", steps: &[], marks: Vec::new(), label: |us| us.to_string() };
        assert!(!bars.render().contains("<rect"));
    }
}
