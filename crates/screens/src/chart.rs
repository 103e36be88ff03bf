//! Charts, and the figures that processes record for them.

use base::Timestamp;

/// A chart over time or over ranges of values.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    pub title: String,
    pub unit: Unit,
    pub kind: ChartKind,
    /// The screen with the cause.
    pub href: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ChartKind {
    /// Values over time.
    Line(Vec<Series>),
    /// Values over a time that is over: its largest value counts, and not the last one.
    Ended(Vec<Series>),
    /// The number of values in each range, with the label of the range.
    Histogram(Vec<(String, f64)>),
}

/// A line of a chart. A missing value is a gap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    pub name: String,
    pub points: Vec<(Timestamp, Option<f64>)>,
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    PerSecond,
    Seconds,
    Count,
    Bytes,
}

/// A figure that every process records every few seconds, for the charts of the overview. Derived from a metric.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name in the stored samples, unique in the program.
    pub name: &'static str,
    pub title: &'static str,
    pub unit: Unit,
    /// The name of the metric as it is exposed, without `_total`, `_bucket` and the like.
    pub metric: &'static str,
    /// Labels that a series must have. Series that match are added up.
    pub labels: &'static [(&'static str, &'static str)],
    pub measure: Measure,
    /// How the values of several processes become one.
    pub combine: Combine,
    /// The screen that explains it.
    pub href: &'static str,
}

/// How a figure is computed from a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// The rise of a counter, or of the count of a histogram, per second.
    Rate,
    /// The value of a gauge.
    Gauge,
    /// A quantile of the values that a histogram observed since the last sample.
    Quantile(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    Sum,
    Max,
}
