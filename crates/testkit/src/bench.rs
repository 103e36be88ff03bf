//! The report of a benchmark: a table to read, a file to compare, and one line to quote.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::folder::target_dir;

/// The results of a benchmark.
#[derive(Clone, Debug)]
pub struct Report {
    name: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    measures: Vec<(String, f64)>,
    labels: Vec<(String, String)>,
}

impl Report {
    /// Creates an empty report. The name becomes the name of the JSON file.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            columns: Vec::new(),
            rows: Vec::new(),
            measures: Vec::new(),
            labels: Vec::new(),
        }
    }

    /// Sets the headings of the table.
    pub fn columns<C: Into<String>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.columns = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a row to the table.
    pub fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Adds a number to the summary line.
    pub fn measure(&mut self, key: &str, value: f64) {
        self.measures.push((key.to_owned(), value));
    }

    /// Adds a text to the summary line.
    pub fn label(&mut self, key: &str, value: &str) {
        self.labels.push((key.to_owned(), value.to_owned()));
    }

    /// Prints the table and the summary line, and writes `bench/NAME.json` in the build folder.
    ///
    /// `ratio` is the main result: our figure divided by the reference's. It is `None` if there was no reference.
    #[expect(clippy::print_stdout, reason = "the report is the output of a benchmark")]
    pub fn finish(self, ratio: impl Into<Option<f64>>) -> io::Result<PathBuf> {
        let ratio = ratio.into();
        let file = self.write(&target_dir().join("bench"), ratio)?;
        println!("{}{}", self.table(), self.summary_line(ratio));
        Ok(file)
    }

    fn write(&self, folder: &Path, ratio: Option<f64>) -> io::Result<PathBuf> {
        fs::create_dir_all(folder)?;
        let measures: serde_json::Map<_, _> =
            self.measures.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        let words: serde_json::Map<_, _> =
            self.labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        let report = json!({
            "name": self.name, "ratio": ratio, "measures": measures, "words": words,
            "columns": self.columns, "rows": self.rows,
        });
        let file = folder.join(format!("{}.json", self.name));
        fs::write(&file, format!("{report:#}\n"))?;
        Ok(file)
    }

    /// Formats the table. The first column holds names and is aligned left; the others hold numbers and are aligned right.
    fn table(&self) -> String {
        let lines = || std::iter::once(&self.columns).chain(&self.rows);
        let count = lines().map(Vec::len).max().unwrap_or(0);
        let width =
            |column: usize| lines().filter_map(|line| line.get(column)).map(|c| c.chars().count()).max();
        let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
        let mut table = String::new();
        for line in lines().filter(|line| !line.is_empty()) {
            let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            table += cells.collect::<Vec<_>>().join("  ").trim_end();
            table += "\n";
        }
        table
    }

    fn summary_line(&self, ratio: Option<f64>) -> String {
        let measures = self.measures.iter().map(|(key, value)| format!(" {key}={}", short(*value)));
        let words = self.labels.iter().map(|(key, value)| format!(" {key}={value}"));
        let ratio = ratio.map_or("none".to_owned(), short);
        format!("{}: ratio={ratio}{}", self.name, measures.chain(words).collect::<String>())
    }
}

/// Formats a number with three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || size == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    fn report() -> Report {
        let mut report = Report::new("locks").columns(["way", "per second", "p99"]);
        report.row(["one by one", "950", "1.2 ms"]);
        report.row(["all at once", "12000", "95 µs"]);
        report.measure("rate", 12000.4);
        report.measure("p99_ms", 0.0951);
        report
    }

    #[test]
    fn table_is_aligned() {
        let expected = "\
way          per second     p99
one by one          950  1.2 ms
all at once       12000   95 µs
";
        assert_eq!(report().table(), expected);
        assert_eq!(Report::new("empty").table(), "");
    }

    #[test]
    fn summary_line_has_the_ratio_and_the_measures() {
        assert_eq!(report().summary_line(Some(12.63)), "locks: ratio=12.6 rate=12000 p99_ms=0.10");
    }

    #[test]
    fn report_without_a_reference_has_no_ratio() {
        let mut report = report();
        report.label("peer", "absent");
        assert_eq!(report.summary_line(None), "locks: ratio=none rate=12000 p99_ms=0.10 peer=absent");
    }

    #[test]
    fn file_holds_the_whole_report() {
        let folder = Folder::fresh().unwrap();
        let file = report().write(&folder.path().join("bench"), Some(12.63)).unwrap();
        assert_eq!(file, folder.path().join("bench/locks.json"));
        let read: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        assert_eq!(read["ratio"], 12.63);
        assert_eq!(read["measures"]["rate"], 12000.4);
        assert_eq!(read["rows"][1][0], "all at once");
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        let shown = [0.0, 0.000_123_4, 0.5, 12.345, 123.45, -7.0].map(short);
        assert_eq!(shown, ["0", "1.23e-4", "0.50", "12.3", "123", "-7.00"]);
    }
}
