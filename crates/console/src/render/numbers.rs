//! Texts of numbers, durations and times.

use std::time::Duration;

use base::Timestamp;
use screens::{Count, Unit};

/// Groups the digits of a whole number: `1,234,567`.
pub(crate) fn whole(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if number < 0 { format!("\u{2212}{grouped}") } else { grouped }
}

/// Writes a number with about three digits: `0.034`, `1.25`, `38.2`, `1,234`.
pub(crate) fn decimal(number: f64) -> String {
    if !number.is_finite() {
        return "\u{2013}".to_owned();
    }
    let size = number.abs();
    let digits = match size {
        _ if size >= 100.0 || size == 0.0 => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{size:.digits$}");
    let (integer, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let integer = integer.parse().map_or_else(|_| integer.to_owned(), whole);
    let fraction = fraction.trim_end_matches('0');
    let text = if fraction.is_empty() { integer } else { format!("{integer}.{fraction}") };
    if number < 0.0 && text != "0" { format!("\u{2212}{text}") } else { text }
}

/// Writes a count. A capped one ends with a plus: `10,000+`.
pub(crate) fn count(count: Count) -> String {
    let counted = whole(count.counted.try_into().unwrap_or(i64::MAX));
    if count.capped { format!("{counted}+") } else { counted }
}

/// Writes a duration with its two largest units: `42 ms`, `1.3 s`, `2 min 5 s`, `3 h 12 min`, `4 d 2 h`.
pub(crate) fn duration(duration: Duration) -> String {
    let two = |large: u64, name: &str, small: u64, other: &str| match small {
        0 => format!("{large} {name}"),
        small => format!("{large} {name} {small} {other}"),
    };
    let seconds = duration.as_secs();
    match seconds {
        0 if duration.is_zero() => "0 ms".to_owned(),
        0 if duration < Duration::from_millis(10) => {
            format!("{} ms", decimal(duration.as_secs_f64() * 1_000.0))
        }
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{} s", decimal((duration.as_secs_f64() * 10.0).floor() / 10.0)),
        60..3_600 => two(seconds / 60, "min", seconds % 60, "s"),
        3_600..86_400 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

/// Writes a value with its unit.
pub(crate) fn value(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Count => decimal(value),
        Unit::PerSecond => format!("{}/s", decimal(value)),
        Unit::Seconds => match Duration::try_from_secs_f64(value) {
            Ok(value) => duration(value),
            Err(_) => format!("{} s", decimal(value)),
        },
        Unit::Bytes => {
            let names = ["B", "kB", "MB", "GB", "TB"];
            let (mut value, mut step) = (value, 0);
            while value.abs() >= 1_000.0 && step + 1 < names.len() {
                (value, step) = (value / 1_000.0, step + 1);
            }
            format!("{} {}", decimal(value), names[step])
        }
    }
}

/// Writes a time for people, in UTC to the second: `2026-11-18 12:05:29 UTC`.
pub(crate) fn absolute(time: Timestamp) -> String {
    let text = time.to_rfc3339();
    let (date, clock) = text.split_once('T').unwrap_or((&text, ""));
    format!("{date} {} UTC", clock.get(..8).unwrap_or(clock))
}

/// Returns the date, and the time of day to the millisecond.
pub(crate) fn date_and_clock(time: Timestamp) -> (String, String) {
    let text = time.to_rfc3339();
    let (date, clock) = text.split_once('T').unwrap_or((&text, ""));
    (date.to_owned(), clock.trim_end_matches('Z').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped() {
        let texts = [0, 7, 999, 1_000, 1_234_567, -1_000].map(whole);
        assert_eq!(texts, ["0", "7", "999", "1,000", "1,234,567", "\u{2212}1,000"]);
        let texts = [0.0, 0.0342, 1.5, 38.25, 1_234.4, -2.0, f64::NAN, -0.0001].map(decimal);
        assert_eq!(texts, ["0", "0.034", "1.5", "38.2", "1,234", "\u{2212}2", "\u{2013}", "0"]);
        assert_eq!(count(Count::up_to(10_001, 10_000)), "10,000+");
    }

    #[test]
    fn duration_has_its_two_largest_units() {
        let texts = [0, 42, 1_349, 60_000, 125_000, 11_520_000, 353_000_000]
            .map(|millis| duration(Duration::from_millis(millis)));
        assert_eq!(texts, ["0 ms", "42 ms", "1.3 s", "1 min", "2 min 5 s", "3 h 12 min", "4 d 2 h"]);
        assert_eq!(duration(Duration::from_micros(1_250)), "1.25 ms");
    }

    #[test]
    fn value_has_its_unit() {
        assert_eq!(value(12.34, Unit::PerSecond), "12.3/s");
        assert_eq!(value(0.25, Unit::Seconds), "250 ms");
        assert_eq!(value(1_500_000.0, Unit::Bytes), "1.5 MB");
        assert_eq!(value(3_000.0, Unit::Count), "3,000");
    }

    #[test]
    fn time_is_in_utc() {
        assert_eq!(absolute(Timestamp::from_millis(1_772_366_400_120)), "2026-03-01 12:00:00 UTC");
    }
}
