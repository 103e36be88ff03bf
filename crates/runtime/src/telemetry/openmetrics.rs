//! Parses the text format of our own registry, so that the metrics can be exported in another format.
//!
//! The input is the output of [`Metrics::encode`](crate::Metrics::encode). This is not a general parser.

use std::collections::BTreeMap;

/// A metric with all its series.
#[derive(Debug, PartialEq)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) help: String,
    pub(super) unit: String,
    pub(super) series: Series,
}

pub(super) type Labels = Vec<(String, String)>;

#[derive(Debug, PartialEq)]
pub(super) enum Series {
    Gauge(Vec<(Labels, f64)>),
    Counter(Vec<(Labels, f64)>),
    Histogram(BTreeMap<Labels, Distribution>),
}

/// One series of a histogram.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Distribution {
    /// Upper bounds, without the last (infinite) one.
    pub(super) bounds: Vec<f64>,
    /// How many values are at most each bound, and in total: cumulative, as in the text.
    pub(super) cumulative: Vec<u64>,
    pub(super) sum: f64,
    pub(super) count: u64,
}

pub(super) fn parse(text: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    let mut help = BTreeMap::new();
    let mut units = BTreeMap::new();
    for line in text.lines() {
        if let Some((keyword, name, rest)) = comment(line) {
            match keyword {
                "HELP" => drop(help.insert(name.to_owned(), rest.to_owned())),
                "UNIT" => {
                    units.insert(name.to_owned(), rest.to_owned());
                    if let Some(family) = families.last_mut().filter(|family| family.name == name) {
                        rest.clone_into(&mut family.unit);
                    }
                }
                "TYPE" => families.push(Family {
                    name: name.to_owned(),
                    help: help.get(name).cloned().unwrap_or_default(),
                    unit: units.get(name).cloned().unwrap_or_default(),
                    series: match rest {
                        "counter" => Series::Counter(Vec::new()),
                        "histogram" => Series::Histogram(BTreeMap::new()),
                        _ => Series::Gauge(Vec::new()),
                    },
                }),
                _ => {}
            }
        } else if let (Some(family), Some((name, labels, value))) = (families.last_mut(), sample(line)) {
            family.add(name, labels, value);
        }
    }
    families
}

impl Family {
    fn add(&mut self, name: &str, mut labels: Labels, value: f64) {
        let suffix = name.strip_prefix(&self.name).unwrap_or_default();
        match &mut self.series {
            Series::Gauge(points) | Series::Counter(points) => points.push((labels, value)),
            Series::Histogram(series) => {
                let bound = labels.iter().position(|(label, _)| label == "le").map(|at| labels.remove(at).1);
                let distribution = series.entry(labels).or_default();
                match (suffix, bound) {
                    ("_sum", _) => distribution.sum = value,
                    ("_count", _) => distribution.count = whole(value),
                    (_, Some(bound)) => {
                        distribution.cumulative.push(whole(value));
                        distribution
                            .bounds
                            .extend(bound.parse::<f64>().ok().filter(|bound| bound.is_finite()));
                    }
                    _ => {}
                }
            }
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts are whole and not negative"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

/// Parses `# KEYWORD name rest`.
fn comment(line: &str) -> Option<(&str, &str, &str)> {
    let mut words = line.strip_prefix("# ")?.splitn(3, ' ');
    Some((words.next()?, words.next()?, words.next().unwrap_or_default()))
}

/// Parses `name{label="value",…} number`.
fn sample(line: &str) -> Option<(&str, Labels, f64)> {
    let name_end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => labels(inner)?,
        None => (Vec::new(), rest),
    };
    let number = rest.split_whitespace().next()?;
    Some((name, labels, number.parse().ok()?))
}

fn labels(mut rest: &str) -> Option<(Labels, &str)> {
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
        labels.push((name.to_owned(), value));
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family as Metric;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::registry::{Registry, Unit};

    use super::*;

    #[test]
    fn registry_output_is_parsed_completely() {
        let mut registry = Registry::default();
        let counter = Metric::<Vec<(String, String)>, Counter>::default();
        let tricky = vec![("who".to_owned(), "a \"b\"\\\n,}".to_owned()), ("x".to_owned(), "1".to_owned())];
        counter.get_or_create(&tricky).inc_by(7);
        registry.register("calls", "How many", counter);
        let gauge: Gauge = Gauge::default();
        gauge.set(-3);
        registry.register("depth", "How deep", gauge);
        let histogram = Histogram::new([0.1, 1.0]);
        for value in [0.05, 0.5, 0.7, 9.0] {
            histogram.observe(value);
        }
        registry.register_with_unit("wait", "How long", Unit::Seconds, histogram);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();

        let families = parse(&text);
        assert_eq!(families[0].name, "calls");
        assert_eq!(families[0].series, Series::Counter(vec![(tricky, 7.0)]));
        assert_eq!(families[1].series, Series::Gauge(vec![(vec![], -3.0)]));
        assert_eq!((families[2].name.as_str(), families[2].unit.as_str()), ("wait_seconds", "seconds"));
        let distribution =
            Distribution { bounds: vec![0.1, 1.0], cumulative: vec![1, 3, 4], sum: 10.25, count: 4 };
        assert_eq!(families[2].series, Series::Histogram(BTreeMap::from([(vec![], distribution)])));
        assert_eq!(families.len(), 3, "{text}");
    }
}
