//! Charts as SVG, with their data as a table.
//!
//! The SVG has only shapes and is stretched to the width of its place; labels are HTML beside it, so they keep their size.

use std::fmt::Write as _;

use base::Timestamp;
use screens::{Chart, ChartKind, Series, Unit};

use crate::markup::{Element, Markup, hidden_text, tag};
use crate::render::numbers;

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 100.0;
/// The rows of a data table. More samples than that are thinned out.
const MOST_ROWS: usize = 24;
/// The labels below a histogram.
const MOST_LABELS: usize = 8;
/// The number of line styles in the style sheet.
const LINE_STYLES: usize = 4;

/// Renders a chart. `name` is unique on the page.
pub(crate) fn chart(chart: &Chart, name: &str) -> Markup {
    let title = match &chart.href {
        Some(href) => tag("a").href(href).text(&chart.title),
        None => tag("span").text(&chart.title),
    };
    let drawn = match &chart.kind {
        ChartKind::Line(series) => line(chart, series, name, false),
        ChartKind::Ended(series) => line(chart, series, name, true),
        ChartKind::Histogram(bars) => histogram(chart, bars, name),
    };
    let (value, plot, data) = match drawn {
        Some(Drawn { value, plot, data }) => (Some(value), plot, Some(data)),
        None => (None, tag("p").class("chart-empty").text("No samples yet."), None),
    };
    let value = value.map(|value| tag("span").class("chart-value").text(&value));
    let caption = tag("figcaption").child(tag("span").class("chart-title").child(title)).child(value);
    let data = data.map(|data| {
        let caption = tag("caption").class("hidden-text").text(&chart.title);
        let summary = tag("summary").text("Data").child(hidden_text(&format!(" of {}", chart.title)));
        let scroll = tag("div").class("scroll").attr("tabindex", "0").attr("role", "group");
        let scroll = scroll.attr("aria-label", format!("Data of {}", chart.title));
        tag("details").child(summary).child(scroll.child(tag("table").child(caption).child(data)))
    });
    tag("figure").class("chart").child(caption).child(plot).child(data).into()
}

/// The parts of a chart.
struct Drawn {
    /// The value that the chart is about: the last one, or the sum.
    value: String,
    plot: Element,
    /// The head and the body of the data table.
    data: Markup,
}

fn line(chart: &Chart, series: &[Series], name: &str, is_over: bool) -> Option<Drawn> {
    let values = || series.iter().flat_map(|series| &series.points).filter_map(|(_, value)| *value);
    let times = || series.iter().flat_map(|series| &series.points).map(|(at, _)| *at);
    let largest = values().filter(|value| value.is_finite()).reduce(f64::max)?;
    let (from, to) = (times().min()?, times().max()?);
    let top = round_up(largest, chart.unit);
    let x = |at: Timestamp| match from.distance(to).as_secs_f64() {
        0.0 => WIDTH,
        whole => from.distance(at).as_secs_f64() / whole * WIDTH,
    };
    let y = |value: f64| HEIGHT - (value / top).clamp(0.0, 1.0) * HEIGHT;
    let mut svg = svg(name, &describe(chart, series));
    for (index, one) in series.iter().enumerate() {
        let runs =
            one.points.split(|(_, value)| !value.is_some_and(f64::is_finite)).filter(|run| !run.is_empty());
        let (mut line, mut area) = (String::new(), String::new());
        for run in runs {
            let points: Vec<(f64, f64)> =
                run.iter().filter_map(|(at, value)| Some((x(*at), y((*value)?)))).collect();
            draw(&points, &mut line, &mut area);
        }
        let style = format!("s{}", index % LINE_STYLES + 1);
        if series.len() == 1 {
            svg = svg.child(tag("path").class(&format!("area {style}")).attr("d", area));
        }
        let line = tag("path").class(&format!("line {style}")).attr("d", line).attr("fill", "none");
        svg = svg.child(line.attr("vector-effect", "non-scaling-stroke"));
    }
    let hour = |at: Timestamp| numbers::date_and_clock(at).1.get(..5).map(|clock| format!("{clock} UTC"));
    let axis = [from, to].map(|at| {
        let text = match is_over {
            true if at == from => "0 s".to_owned(),
            true => numbers::duration(from.distance(at)),
            false => hour(at).unwrap_or_default(),
        };
        tag("span").text(&text)
    });
    let headline = |one: &Series| {
        let largest = || one.points.iter().filter_map(|(_, value)| *value).reduce(f64::max);
        let value = if is_over { largest() } else { last(one) };
        let value = value.map(|value| numbers::value(value, chart.unit));
        if is_over { value.map(|value| format!("up to {value}")) } else { value }
    };
    let legend = (series.len() > 1).then(|| {
        let item = |(index, one): (usize, &Series)| {
            let key = tag("span").class(&format!("key s{}", index % LINE_STYLES + 1));
            let value = headline(one).map(|value| tag("span").text(&value));
            tag("li").child(key).child(tag("span").text(&one.name)).child(value)
        };
        tag("ul").class("legend").children(series.iter().enumerate().map(item))
    });
    let value = match series {
        [only] => headline(only).unwrap_or_else(|| "\u{2013}".to_owned()),
        _ => String::new(),
    };
    Some(Drawn { value, plot: plot(svg, top, chart.unit, &axis).child(legend), data: samples(chart, series) })
}

/// Appends a run of points to the path of the line, and the shape below it to that of the area.
fn draw(points: &[(f64, f64)], line: &mut String, area: &mut String) {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
    // Writing to a string does not fail.
    let _ = write!(area, "M{:.1} {HEIGHT}", first.0);
    for (index, (x, y)) in points.iter().enumerate() {
        let _ = write!(line, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
        let _ = write!(area, "L{x:.1} {y:.1}");
    }
    let _ = write!(area, "L{:.1} {HEIGHT}Z", last.0);
    if points.len() == 1 {
        // A line without length is drawn as a dot.
        line.push_str("h0");
    }
}

fn histogram(chart: &Chart, bars: &[(String, f64)], name: &str) -> Option<Drawn> {
    let largest = bars.iter().map(|(_, value)| *value).reduce(f64::max)?;
    let top = round_up(largest, chart.unit);
    let all: f64 = bars.iter().map(|(_, value)| value).sum();
    let text = |value: f64| numbers::value(value, chart.unit);
    let most = bars.iter().find(|(_, value)| *value >= largest).map_or("", |(label, _)| label);
    let summary = format!("{}: {} in all, most of them in {most}", chart.title, text(all));
    let slot = WIDTH / bars.len() as f64;
    let bar = |(index, (label, value)): (usize, &(String, f64))| {
        let height = (value / top).clamp(0.0, 1.0) * HEIGHT;
        tag("rect")
            .class("bar")
            .attr("x", format!("{:.1}", (index as f64 + 0.1) * slot))
            .attr("width", format!("{:.1}", slot * 0.8))
            .attr("y", format!("{:.1}", HEIGHT - height))
            .attr("height", format!("{height:.1}"))
            .child(tag("title").text(&format!("{label}: {}", text(*value))))
    };
    let svg = svg(name, &summary).children(bars.iter().enumerate().map(bar));
    let every = bars.len().div_ceil(MOST_LABELS);
    let axis: Vec<Element> = bars
        .iter()
        .enumerate()
        .map(|(index, (label, _))| tag("span").text(if index % every == 0 { label } else { "" }))
        .collect();
    let row = |(label, value): &(String, f64)| {
        let label = tag("th").attr("scope", "row").text(label);
        tag("tr").child(label).child(tag("td").class("number").text(&text(*value)))
    };
    let head = tag("tr").child(heading("Range", false)).child(heading("Number", true));
    let data = Markup::from(tag("thead").child(head)).with(tag("tbody").children(bars.iter().map(row)));
    Some(Drawn { value: text(all), plot: plot(svg, top, chart.unit, &axis), data })
}

/// Begins a drawing with its name for screen readers and its grid lines.
fn svg(name: &str, summary: &str) -> Element {
    let id = format!("{name}-summary");
    let grid = [0.0, HEIGHT / 2.0, HEIGHT].map(|y| {
        let line = tag("line").class("grid").attr("x1", "0").attr("x2", WIDTH.to_string());
        let line = line.attr("y1", y.to_string()).attr("y2", y.to_string());
        line.attr("vector-effect", "non-scaling-stroke")
    });
    tag("svg")
        .attr("role", "img")
        .attr("aria-labelledby", &id)
        .attr("viewBox", format!("0 0 {WIDTH} {HEIGHT}"))
        .attr("preserveAspectRatio", "none")
        .child(tag("title").attr("id", &id).text(summary))
        .children(grid)
}

/// Puts a drawing between its scale and its axis.
fn plot(svg: Element, top: f64, unit: Unit, axis: &[Element]) -> Element {
    let [highest, middle] = [top, top / 2.0].map(|value| numbers::value(value, unit));
    let scale = [highest.as_str(), &middle, "0"].map(|text| tag("span").text(text));
    let labels = |class: &str| tag("div").class(class).attr("aria-hidden", "true");
    let axis_class = if axis.len() == 2 { "axis" } else { "axis ranges" };
    tag("div")
        .class("plot")
        .child(labels("scale").children(scale))
        .child(svg)
        .child(labels(axis_class).children(axis.iter().cloned()))
}

/// Describes lines in a sentence.
fn describe(chart: &Chart, series: &[Series]) -> String {
    let one = |one: &Series| {
        let values = || one.points.iter().filter_map(|(_, value)| *value);
        let (least, most) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
        let [least, most, last] = [least, most, last(one)?].map(|value| numbers::value(value, chart.unit));
        let name = if series.len() > 1 { format!("{} ", one.name) } else { String::new() };
        Some(format!("{name}last {last}, between {least} and {most}"))
    };
    let texts: Vec<String> = series.iter().filter_map(one).collect();
    format!("{}: {}", chart.title, texts.join("; "))
}

/// Returns the last value of a line.
fn last(series: &Series) -> Option<f64> {
    series.points.iter().rev().find_map(|(_, value)| *value)
}

/// Renders the head and the body of a table of samples, newest first and thinned out.
fn samples(chart: &Chart, series: &[Series]) -> Markup {
    let mut times: Vec<Timestamp> = series.iter().flat_map(|one| &one.points).map(|(at, _)| *at).collect();
    times.sort_unstable();
    times.dedup();
    let every = times.len().div_ceil(MOST_ROWS).max(1);
    let name = |one: &Series| heading(if one.name.is_empty() { "Value" } else { &one.name }, true);
    let head = tag("tr").child(heading("Time (UTC)", false)).children(series.iter().map(name));
    let row = |at: &Timestamp| {
        let clock = numbers::date_and_clock(*at).1;
        let time = tag("th").attr("scope", "row").text(clock.get(..8).unwrap_or(&clock));
        let value = |one: &Series| {
            let found = one.points.iter().find(|(time, _)| time == at).and_then(|(_, value)| *value);
            let text = found.map_or_else(|| "\u{2013}".to_owned(), |value| numbers::value(value, chart.unit));
            tag("td").class("number").text(&text)
        };
        tag("tr").child(time).children(series.iter().map(value))
    };
    let rows = tag("tbody").children(times.iter().rev().step_by(every).map(row));
    Markup::from(tag("thead").child(head)).with(rows)
}

fn heading(text: &str, is_number: bool) -> Element {
    tag("th").attr("scope", "col").attr_if("class", is_number.then_some("number")).text(text)
}

/// Returns the top of the scale: the next round number, half of which is a short text too.
fn round_up(value: f64, unit: Unit) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    if unit == Unit::Seconds && value > 40.0 {
        let tops = [1.0, 2.0, 4.0, 10.0, 20.0, 40.0, 60.0, 120.0, 240.0, 480.0, 720.0, 1_440.0]
            .map(|top| top * 60.0);
        return tops
            .into_iter()
            .find(|top| *top >= value)
            .unwrap_or_else(|| (value / 172_800.0).ceil() * 172_800.0);
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0];
    steps.iter().map(|step| step * power).find(|top| *top >= value).unwrap_or(power * 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(kind: ChartKind) -> String {
        let chart = Chart { title: "<Rate>".to_owned(), unit: Unit::PerSecond, kind, href: None };
        self::chart(&chart, "c").into_string()
    }

    fn series(values: &[Option<f64>]) -> Series {
        let point =
            |(index, value): (usize, &Option<f64>)| (Timestamp::from_millis(index as i64 * 1_000), *value);
        Series { name: "<one>".to_owned(), points: values.iter().enumerate().map(point).collect() }
    }

    fn line_of(html: &str) -> &str {
        let (_, rest) = html.split_once("class=\"line s1\" d=\"").unwrap();
        rest.split_once('"').unwrap().0
    }

    #[test]
    fn missing_value_is_a_gap_in_the_line() {
        let html = render(ChartKind::Line(vec![series(&[Some(1.0), Some(2.0), None, Some(0.0), Some(2.0)])]));
        assert_eq!(line_of(&html), "M0.0 50.0L150.0 0.0M450.0 100.0L600.0 0.0");
        assert!(html.contains("last 2/s, between 0/s and 2/s"), "{html}");
    }

    #[test]
    fn time_that_is_over_has_its_length_and_its_largest_value() {
        let values = || vec![series(&[Some(1.0), Some(7.0), Some(0.0)])];
        let html = render(ChartKind::Ended(values()));
        assert!(html.contains("<span>0 s</span><span>2 s</span>"), "{html}");
        assert!(html.contains("<span class=\"chart-value\">up to 7/s</span>"), "{html}");
        let html = render(ChartKind::Ended([values(), values()].concat()));
        assert_eq!(html.matches("<span>up to 7/s</span>").count(), 2, "{html}");
        let html = render(ChartKind::Line(values()));
        assert!(html.contains("<span class=\"chart-value\">0/s</span>") && html.contains(" UTC<"), "{html}");
    }

    #[test]
    fn single_sample_is_a_dot() {
        let html = render(ChartKind::Line(vec![series(&[Some(2.0)])]));
        assert_eq!(line_of(&html), "M600.0 0.0h0");
    }

    #[test]
    fn chart_without_samples_says_so() {
        for kind in [
            ChartKind::Line(vec![]),
            ChartKind::Line(vec![series(&[None, None])]),
            ChartKind::Histogram(vec![]),
        ] {
            let html = render(kind);
            assert!(html.contains("No samples yet.") && !html.contains("<svg"), "{html}");
        }
    }

    #[test]
    fn names_and_labels_are_escaped() {
        let lines = vec![series(&[Some(1.0)]), series(&[Some(f64::NAN)])];
        for kind in [ChartKind::Line(lines), ChartKind::Histogram(vec![("<1 s".to_owned(), 0.0)])] {
            let html = render(kind);
            assert!(!html.contains("<Rate>") && !html.contains("<one>") && !html.contains("<1 s"), "{html}");
        }
    }

    #[test]
    fn many_samples_are_thinned_out_in_the_table() {
        let html = render(ChartKind::Line(vec![series(&[Some(1.0); 100])]));
        let rows = html.matches("<tr>").count() - 1;
        assert!((10..=MOST_ROWS).contains(&rows), "{rows}");
    }

    #[test]
    fn scale_ends_at_a_round_number() {
        for (value, unit, expected) in [
            (0.0, Unit::Count, 1.0),
            (0.035, Unit::Seconds, 0.04),
            (1.0, Unit::Count, 1.0),
            (5.5, Unit::PerSecond, 6.0),
            (1_240.0, Unit::Count, 1_600.0),
            (81.0, Unit::Count, 100.0),
            (61.0, Unit::Seconds, 120.0),
            (200_000.0, Unit::Seconds, 345_600.0),
        ] {
            let top = round_up(value, unit);
            assert!((top - expected).abs() < 1e-9, "{top} instead of {expected}");
        }
    }
}
