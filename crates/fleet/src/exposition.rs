//! Reads the metrics that figures are derived from out of the text of `/metrics`.
//!
//! The input is the output of [`runtime::Metrics::encode`]. This is not a general parser: it skips every metric that no figure uses.

use screens::Figure;

/// What a figure's metric says at one moment. Several series are added up.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    /// The value of a gauge or counter, or the count of a histogram.
    pub(crate) value: f64,
    /// The buckets of a histogram: the upper bound, and how many values are at most that.
    pub(crate) buckets: Vec<(f64, f64)>,
}

/// Returns the reading of each figure, in their order. None if no series matches.
pub(crate) fn read(text: &str, figures: &[Figure]) -> Vec<Option<Reading>> {
    let mut readings = vec![None; figures.len()];
    // The figures of the metric whose series follow.
    let (mut name, mut users): (&str, Vec<usize>) = ("", Vec::new());
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            name = described.split(' ').next().unwrap_or_default();
            users.clear();
            users.extend((0..figures.len()).filter(|at| figures[*at].metric == name));
        } else if !users.is_empty()
            && !line.starts_with('#')
            && let Some(series) = Series::parse(line, name)
        {
            for at in &users {
                if series.has(figures[*at].labels) {
                    series.add_to(readings[*at].get_or_insert_default());
                }
            }
        }
    }
    readings
}

/// One line.
struct Series<'a> {
    /// What follows the name of the metric: `_total`, `_bucket`, or nothing.
    suffix: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
}

impl<'a> Series<'a> {
    fn parse(line: &'a str, name: &str) -> Option<Self> {
        let rest = line.strip_prefix(name)?;
        let (suffix, rest) = rest.split_at(rest.find(['{', ' '])?);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(inner) => parse_labels(inner)?,
            None => (Vec::new(), rest),
        };
        let value = rest.split_whitespace().next()?.parse().ok()?;
        Some(Self { suffix, labels, value })
    }

    fn has(&self, wanted: &[(&str, &str)]) -> bool {
        let has = |(name, value): &(&str, &str)| {
            self.labels.iter().any(|(own, found)| own == name && found == value)
        };
        wanted.iter().all(has)
    }

    fn add_to(&self, reading: &mut Reading) {
        match self.suffix {
            "" | "_total" | "_count" => reading.value += self.value,
            "_bucket" => {
                let Some((_, bound)) = self.labels.iter().find(|(name, _)| *name == "le") else { return };
                let bound = bound.parse().unwrap_or(f64::INFINITY);
                match reading.buckets.iter_mut().find(|(known, _)| known.total_cmp(&bound).is_eq()) {
                    Some((_, count)) => *count += self.value,
                    None => reading.buckets.push((bound, self.value)),
                }
            }
            _ => {}
        }
    }
}

/// Parses `name="value",…}`. Returns the labels and the text after them.
fn parse_labels(mut rest: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        rest = loop {
            match chars.next()? {
                (at, '"') => break &after[at + 1..],
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.push((name, value));
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::registry::Unit;
    use screens::Measure;

    use super::*;
    use crate::figures::tests::figure;

    #[test]
    fn series_with_the_labels_of_a_figure_are_added_up() {
        let metrics = runtime::Metrics::new("1");
        let calls = Family::<Vec<(String, String)>, Counter>::default();
        let label = |queue: &str, who: &str| {
            vec![("queue".to_owned(), queue.to_owned()), ("who".to_owned(), who.to_owned())]
        };
        calls.get_or_create(&label("duel", "a \"b\"\\\n,}")).inc_by(7);
        calls.get_or_create(&label("duel", "c")).inc_by(2);
        calls.get_or_create(&label("brawl", "c")).inc_by(100);
        let depth: Gauge = Gauge::default();
        depth.set(-3);
        let wait = Histogram::new([0.1, 1.0]);
        [0.05, 0.5, 0.7, 9.0].into_iter().for_each(|value| wait.observe(value));
        metrics.register(|registry| {
            registry.register("calls", "How many", calls);
            registry.register("calls_depth", "How deep", depth);
            registry.register_with_unit("wait", "How long", Unit::Seconds, wait);
        });
        let figures = [
            Figure { labels: &[("queue", "duel")], ..figure("calls", Measure::Rate) },
            figure("calls_depth", Measure::Gauge),
            figure("wait_seconds", Measure::Quantile(0.5)),
            figure("other", Measure::Rate),
            Figure { labels: &[("queue", "other")], ..figure("calls", Measure::Rate) },
        ];
        let readings = read(&metrics.encode(), &figures);
        let values: Vec<Option<f64>> =
            readings.iter().map(|reading| reading.as_ref().map(|reading| reading.value)).collect();
        assert_eq!(values, [Some(9.0), Some(-3.0), Some(4.0), None, None]);
        let buckets = &readings[2].as_ref().unwrap().buckets;
        assert_eq!(*buckets, [(0.1, 1.0), (1.0, 3.0), (f64::INFINITY, 4.0)]);
    }

    #[test]
    fn damaged_lines_are_skipped() {
        let text = "# TYPE calls counter\ncalls_total{a=\"1 7\ncalls_total x\ncalls_total 3\n# EOF\n";
        let readings = read(text, &[figure("calls", Measure::Rate)]);
        assert_eq!(readings[0].as_ref().unwrap().value, 3.0);
    }
}
