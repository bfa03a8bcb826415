//! [`Chart`]: curves as a picture in SVG. The script of the page shows values under the pointer.

use std::fmt::Write;

use super::text::{escaped, list, put, short};

/// The size of a picture and its margins: left, right, top, bottom.
const SIZE: (f64, f64) = (600.0, 280.0);
const MARGINS: (f64, f64, f64, f64) = (54.0, 16.0, 14.0, 34.0);

/// The largest number of grid steps along the axis that [`grid_step`] aims for.
const STEPS: f64 = 5.0;

/// The unit of a chart's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unit {
    /// Plain numbers.
    #[default]
    Number,
    /// Shares from 0 to 1, which are shown as percentages.
    Share,
}

/// Curves over the same axis.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chart {
    /// The heading.
    pub title: String,
    /// The name of the horizontal axis, such as `epoch`.
    pub over: String,
    /// The unit of the numbers.
    pub unit: Unit,
    /// The curves.
    pub curves: Vec<Curve>,
    /// The text that replaces the chart if no curve has a point.
    pub if_empty: String,
}

/// A curve of a [`Chart`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curve {
    /// The name, for the legend.
    pub name: String,
    /// The points from left to right. A number that is not finite is a gap.
    pub points: Vec<(u64, f64)>,
    /// Whether the curve is drawn faintly, for example behind a curve of its running mean.
    pub is_faint: bool,
}

/// Whether a number can be drawn. The bound ensures that the difference of two such numbers is finite.
fn has_place(value: f64) -> bool {
    value.abs() <= 1e300
}

/// The smallest and the largest number that can be drawn.
fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|v| has_place(*v)).fold(None, |range, v| match range {
        None => Some((v, v)),
        Some((low, high)) => Some((v.min(low), v.max(high))),
    })
}

/// The distance between lines of the grid: 1, 2 or 5 times a power of 10.
fn grid_step(span: f64) -> f64 {
    let rough = span / STEPS;
    let power = 10f64.powf(rough.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= rough * 0.999).unwrap_or(10.0);
    digit * power
}

/// The vertical axis: its start, its end and its grid lines.
fn axis(low: f64, high: f64) -> (f64, f64, Vec<f64>) {
    let (low, high) = match high - low {
        span if span > 1e-12 * high.abs().max(low.abs()) => (low, high),
        _ if low == 0.0 => (0.0, 1.0),
        _ => (low - low.abs() * 0.1, high + high.abs() * 0.1),
    };
    // If a curve comes near 0, the axis starts at 0.
    let low = if low > 0.0 && low < 0.35 * high { 0.0 } else { low };
    let step = grid_step(high - low);
    // A limit that lies on a grid line must stay there in spite of rounding.
    let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
    let count = (last - first).clamp(1.0, 4.0 * STEPS) as usize;
    let lines = (0..=count).map(|i| (first + i as f64) * step).collect();
    (first * step, (first + count as f64) * step, lines)
}

impl Chart {
    fn is_empty(&self) -> bool {
        self.curves.iter().all(|curve| curve.points.iter().all(|(_, value)| !has_place(*value)))
    }

    fn shown(&self, value: f64) -> String {
        match self.unit {
            Unit::Number => short(value),
            Unit::Share => format!("{}\u{202f}%", short(value * 100.0)),
        }
    }

    /// The chart as part of a page.
    pub(super) fn html(&self) -> String {
        let title = escaped(&self.title);
        let mut out = format!("<figure class=\"card chart\"><figcaption><h3>{title}</h3>");
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let (Some(xs), Some(ys)) = (range(points().map(|p| p.0 as f64)), range(points().map(|p| p.1))) else {
            put!(out, "</figcaption><p class=\"empty\">{}</p></figure>", escaped(&self.if_empty));
            return out;
        };
        if self.is_empty() {
            put!(out, "</figcaption><p class=\"empty\">{}</p></figure>", escaped(&self.if_empty));
            return out;
        }
        put!(out, "<ul class=\"legend\">");
        for (i, Curve { name, points, is_faint }) in self.curves.iter().enumerate() {
            let last = points.iter().rev().find(|(_, value)| has_place(*value));
            let last = last.map(|(_, value)| self.shown(*value)).unwrap_or_default();
            let faint = if *is_faint { " faint" } else { "" };
            put!(out, "<li class=\"c{i}{faint}\">{} <b>{last}</b></li>", escaped(name));
        }
        put!(out, "</ul></figcaption>");

        let (left, right, top, bottom) = MARGINS;
        let (width, height) = SIZE;
        let (y_low, y_high, lines) = axis(ys.0, ys.1);
        let around = (xs.0 * 1e-9).max(0.5);
        let (x_low, x_high) = if xs.0 < xs.1 { xs } else { (xs.0 - around, xs.1 + around) };
        let x_of = |x: f64| left + (x - x_low) / (x_high - x_low) * (width - left - right);
        let y_of = |y: f64| height - bottom - (y - y_low) / (y_high - y_low) * (height - top - bottom);
        put!(
            out,
            "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title} over {}\" data-over=\"{}\" \
             data-unit=\"{}\" data-x=\"{x_low} {x_high} {left} {}\" data-y=\"{y_low} {y_high} {} {top}\">",
            escaped(&self.over),
            escaped(&self.over),
            if self.unit == Unit::Share { "%" } else { "" },
            width - right,
            height - bottom
        );
        for line in lines {
            let y = y_of(line);
            // The value itself may be a rounding error away from 0.
            let value = if line.abs() < 1e-9 * (y_high - y_low) { 0.0 } else { line };
            put!(out, "<path class=\"grid\" d=\"M{left} {y:.1}H{:.1}\"/>", width - right);
            put!(
                out,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 8.0,
                y + 4.0,
                self.shown(value)
            );
        }
        let step = grid_step(x_high - x_low).max(1.0);
        let (first, last) = ((x_low / step).ceil(), (x_high / step).floor());
        // The lines are counted, because beyond 2^53 adding the step may leave a number unchanged.
        for i in 0..=(last - first).clamp(-1.0, 2.0 * STEPS) as i64 {
            let x = (first + i as f64) * step;
            put!(
                out,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x}</text>",
                x_of(x),
                height - bottom + 18.0
            );
        }
        put!(
            out,
            "<text class=\"over\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            width - right,
            height - 3.0,
            escaped(&self.over)
        );
        for (i, Curve { name, points, is_faint }) in self.curves.iter().enumerate() {
            let faint = if *is_faint { " faint" } else { "" };
            let (mut path, mut pen) = (String::new(), 'M');
            for &(at, value) in points {
                if has_place(value) {
                    put!(path, "{pen}{:.1} {:.1}", x_of(at as f64), y_of(value));
                    pen = 'L';
                } else {
                    pen = 'M';
                }
            }
            let (at, values) = (points.iter().map(|p| p.0 as f64), points.iter().map(|p| p.1));
            put!(
                out,
                "<path class=\"curve c{i}{faint}\" d=\"{path}\" data-name=\"{}\" data-at=\"{}\" data-values=\"{}\"/>",
                escaped(name),
                list(at),
                list(values)
            );
            if let [(at, value)] = points.as_slice()
                && has_place(*value)
            {
                put!(
                    out,
                    "<circle class=\"dot c{i}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"/>",
                    x_of(*at as f64),
                    y_of(*value)
                );
            }
        }
        out + "</svg></figure>"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: &[(u64, f64)]) -> String {
        let curves = vec![Curve { name: "a <b>".into(), points: points.to_vec(), is_faint: false }];
        let if_empty = "nothing & none".into();
        Chart { title: "T".into(), over: "step".into(), unit: Unit::Share, curves, if_empty }.html()
    }

    #[test]
    fn axes_begin_and_end_at_round_numbers() {
        for (low, high, want) in [
            (0.1, 0.92, (0.0, 1.0, 6)),
            (0.9, 0.99, (0.9, 1.0, 6)),
            (5.0, 5.0, (4.4, 5.6, 7)),
            (0.0, 0.0, (0.0, 1.0, 6)),
            (-3.0, 12.0, (-5.0, 15.0, 5)),
            (1e-9, 1e-9, (9e-10, 1.1e-9, 5)),
            (-1e300, 1e300, (-1e300, 1e300, 5)),
        ] {
            let (first, last, lines) = axis(low, high);
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs().max(1e-9);
            assert!(first <= low && last >= high && lines.len() < 25, "{low} {high}: {first} {last} {lines:?}");
            assert!(near(first, want.0) && near(last, want.1), "{low} {high}: {first} {last}");
            assert_eq!(lines.len(), want.2, "{low} {high}: {lines:?}");
        }
    }

    #[test]
    fn charts_of_few_points_are_drawn_and_empty_ones_say_so() {
        for empty in [&[][..], &[(1, f64::NAN)], &[(1, f64::MAX)]] {
            assert!(chart(empty).contains("nothing &amp; none"));
        }
        let one = chart(&[(3, 0.5)]);
        assert!(one.contains("<circle") && one.contains("a &lt;b&gt;") && !one.contains("NaN"), "{one}");
        for base in [1 << 53, 1 << 60, u64::MAX - 4096] {
            let far = chart(&[(base, 0.5), (base + 1, 0.5), (base + 4096, 0.5)]);
            assert!(far.contains("<svg") && !far.contains("NaN"), "{far}");
            assert!(!chart(&[(base, 0.5), (base + 1, 0.5)]).contains("NaN"));
        }
        let gap = chart(&[(1, 0.5), (2, f64::INFINITY), (3, 0.25), (4, 0.25)]);
        assert_eq!(gap.matches('M').count() - gap.matches("class=\"grid\" d=\"M").count(), 2, "{gap}");
        assert!(gap.contains("data-values=\"[0.5,null,0.25,0.25]\"") && gap.contains("<b>25\u{202f}%</b>"), "{gap}");
    }
}
