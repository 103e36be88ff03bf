//! Time as a parameter.
//!
//! A [`Clock`] serves decisions that concern this process alone. Leases and lifetimes that several processes compare use the
//! clock of the store that holds them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::SignedDuration;
use jiff::civil::{DateTime, Time, datetime};

const EPOCH: DateTime = datetime(1970, 1, 1, 0, 0, 0, 0);
/// The earliest time that RFC 3339 can express. The latest one is the end of the calendar.
const FIRST: DateTime = datetime(0, 1, 1, 0, 0, 0, 0);
/// The format of a date and time of day in RFC 3339.
const LOCAL: &str = "0000-00-00T00:00:00";

/// Milliseconds since the Unix epoch, the representation of time in every store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Formats the time as RFC 3339, in UTC with milliseconds: `2026-03-01T12:00:00.000Z`. RFC 3339 has the years 0 to 9999 only;
    /// times outside become the nearest one inside.
    pub fn to_rfc3339(self) -> String {
        let since_epoch = SignedDuration::from_millis(self.0);
        let time = EPOCH.saturating_add(since_epoch).max(FIRST);
        format!("{time:.3}Z")
    }

    /// Returns the time `duration` later. Saturates.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_millis().try_into().unwrap_or(i64::MAX)))
    }

    /// Returns the absolute difference between two times.
    pub const fn distance(self, other: Self) -> Duration {
        Duration::from_millis(self.0.abs_diff(other.0))
    }
}

/// The text is not a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a time: expected one such as 2026-03-01T12:00:00.000Z or 2026-03-01T13:00:00+01:00")]
pub struct InvalidTime;

/// Parses RFC 3339 with any offset. Truncates digits beyond milliseconds.
impl FromStr for Timestamp {
    type Err = InvalidTime;

    fn from_str(text: &str) -> Result<Self, InvalidTime> {
        let (local, rest) = text.split_at_checked(LOCAL.len()).ok_or(InvalidTime)?;
        let (millis, offset) = match rest.strip_prefix('.') {
            None => (0, rest),
            Some(rest) => {
                let (digits, offset) = rest.split_at(rest.find(['Z', 'z', '+', '-']).ok_or(InvalidTime)?);
                let is_number = !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit());
                let millis = format!("{digits:0<3.3}").parse().ok().filter(|_| is_number);
                (millis.ok_or(InvalidTime)?, offset)
            }
        };
        let offset = match offset.split_at_checked(1).ok_or(InvalidTime)? {
            ("Z" | "z", "") => SignedDuration::ZERO,
            ("+", offset) => distance_from_utc(offset)?,
            ("-", offset) => -distance_from_utc(offset)?,
            _ => return Err(InvalidTime),
        };
        // The calendar maps a leap second to the second before it. Map it to the second after it instead.
        let leap = SignedDuration::from_secs(local.ends_with(":60").into());
        let local: DateTime = parse_format(local, LOCAL)?;
        let since_epoch = local.duration_since(EPOCH) - offset + leap + SignedDuration::from_millis(millis);
        since_epoch.as_millis().try_into().map(Self).map_err(|_| InvalidTime)
    }
}

/// Parses the hours and minutes of an offset. An offset is less than a day, so it has the form of a time of day.
fn distance_from_utc(text: &str) -> Result<SignedDuration, InvalidTime> {
    Ok(parse_format::<Time>(text, "00:00")?.duration_since(Time::midnight()))
}

/// Parses a text that has digits exactly where `format` has zeros. Without this check the calendar library also accepts other
/// forms of ISO 8601 (no separators, a zone in brackets), which are not RFC 3339.
fn parse_format<T: FromStr>(text: &str, format: &str) -> Result<T, InvalidTime> {
    let matches_format = |(byte, expected): (u8, u8)| match expected {
        b'0' => byte.is_ascii_digit(),
        b'T' => matches!(byte, b'T' | b't' | b' '),
        _ => byte == expected,
    };
    let has_format = text.len() == format.len() && text.bytes().zip(format.bytes()).all(matches_format);
    text.parse().ok().filter(|_| has_format).ok_or(InvalidTime)
}

/// The source of the current time. Clones of a manual clock share their time.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System,
    Manual(Arc<AtomicI64>),
}

impl Clock {
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// Returns a clock that stands still until [`advance`](Self::advance).
    pub fn manual(start: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(AtomicI64::new(start.0))))
    }

    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => {
                #[expect(clippy::disallowed_methods, reason = "the one place that reads the system clock")]
                let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Timestamp(since_epoch.as_millis().try_into().unwrap_or(i64::MAX))
            }
            Source::Manual(now) => Timestamp(now.load(Ordering::SeqCst)),
        }
    }

    /// Advances a manual clock. Does nothing to the system clock.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(now) = &self.0 {
            now.fetch_add(by.as_millis().try_into().unwrap_or(i64::MAX), Ordering::SeqCst);
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0 {
            Source::System => "system",
            Source::Manual(_) => "manual",
        };
        write!(f, "Clock({kind}, {})", self.now().0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn manual_clock_moves_only_on_advance_and_clones_share_it() {
        let clock = Clock::manual(Timestamp::from_millis(1_000));
        let other = clock.clone();
        other.advance(Duration::from_millis(5));
        assert_eq!(clock.now().as_millis(), 1_005);
        assert_eq!(clock.now().distance(Timestamp::from_millis(1_010)), Duration::from_millis(5));
    }

    #[test]
    fn parses_rfc_3339() {
        let parse = |text: &str| text.parse::<Timestamp>().map(Timestamp::as_millis);
        for millis in [0, -1, 951_782_400_000, 1_709_251_199_007, 253_402_300_799_999] {
            assert_eq!(parse(&Timestamp(millis).to_rfc3339()), Ok(millis));
        }
        for text in
            ["2026-03-01T12:00:00Z", "2026-03-01t13:30:00.0+01:30", "2026-02-28 23:00:00.000999-13:00"]
        {
            assert_eq!(parse(text), Ok(1_772_366_400_000), "{text}");
        }
        for (text, millis) in [
            ("2016-12-31T23:59:60Z", 1_483_228_800_000),
            ("2016-12-31T23:59:60.25Z", 1_483_228_800_250),
            ("2017-01-01T00:59:60+01:00", 1_483_228_800_000),
            ("1969-12-31T23:59:59.9999Z", -1),
            ("1969-12-31T23:59:59.99912345678901234567Z", -1),
            ("0000-01-01T00:00:00Z", -62_167_219_200_000),
            ("0000-01-01T00:00:00+23:59", -62_167_305_540_000),
            ("0000-02-29T00:00:00z", -62_162_121_600_000),
            ("1900-02-28T23:59:59.5-00:00", -2_203_891_200_500),
            ("9999-12-31T23:59:59.999-23:59", 253_402_387_139_999),
        ] {
            assert_eq!(parse(text), Ok(millis), "{text}");
        }
        for invalid in [
            "",
            "now",
            "2026-03-01",
            "2026-03-01T12:00:00",
            "2026-02-29T12:00:00Z",
            "2026-13-01T12:00:00Z",
            "2026-03-01T24:00:00Z",
            "2026-03-01T12:60:00Z",
            "2026-03-01T12:00:00.Z",
            "2026-03-01T12:00:00+1:00",
            "+026-03-01T12:00:00Z",
            "2026-03-01T12:00:00Zx",
            "2026-03-01T12:00:00+24:00",
            "2026-03-01T12:00:00+01:60",
            "2026-03-01T12:00:00+01",
            "2026-03-01T12:00:00+0100",
            "2026-03-01T12:00:00+01:00:00",
            "2026-03-01T12:00:00-+1:00",
            "2026-03-01T12:00:00Z[UTC]",
            "2026-03-01T12:00:00+01:00[Europe/Berlin]",
            "2026-03-01T12:00:00,5Z",
            "2026-03-01T12:00:00.5",
            "2026-03-01T12:00:00.+5Z",
            "2026-03-01T12:00:00.5 Z",
            "2026-03-01T12:00:61Z",
            "2026-03-01T12:00Z",
            "2026-03-01_12:00:00Z",
            "20260301T120000Z",
            "2026-060T12:00:00Z",
            "2026-W09-7T12:00:00Z",
            "+002026-03-01T12:00:00Z",
            "-000001-03-01T12:00:00Z",
            "1900-02-29T12:00:00Z",
            " 2026-03-01T12:00:00Z",
            "2026-03-01T12:00:00.ä5Z",
            "äääääääääääääää",
        ] {
            assert_eq!(parse(invalid), Err(InvalidTime), "{invalid}");
        }
    }

    #[test]
    fn formats_as_rfc_3339() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_007, "2024-02-29T23:59:59.007Z"),
            (1_709_251_200_000, "2024-03-01T00:00:00.000Z"),
            (1_772_366_400_120, "2026-03-01T12:00:00.120Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (-2_203_891_200_500, "1900-02-28T23:59:59.500Z"),
            (-62_167_219_200_000, "0000-01-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
            (i64::MIN, "0000-01-01T00:00:00.000Z"),
            (i64::MAX, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp::from_millis(millis).to_rfc3339(), text);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn every_time_round_trips(
            millis in -62_167_219_200_000..=253_402_300_799_999_i64,
            offset in -1439..=1439_i64,
        ) {
            let text = Timestamp(millis).to_rfc3339();
            prop_assert_eq!(text.parse(), Ok(Timestamp(millis)));
            let (sign, minutes) = if offset < 0 { ('-', -offset) } else { ('+', offset) };
            let with_offset = format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60);
            prop_assert_eq!(text.replace('Z', &with_offset).parse(), Ok(Timestamp(millis - offset * 60_000)));
        }

        #[test]
        fn any_text_parses_or_fails_without_a_panic(
            text in "[1-8][0-9]{3}-[01][0-9]-[0-3][0-9][T ][0-2][0-9]:[0-6][0-9]:[0-6][0-9]\\PC{0,9}(Z|[+-][0-2][0-9]:[0-6][0-9])?",
        ) {
            if let Ok(time) = text.parse::<Timestamp>() {
                prop_assert_eq!(time.to_rfc3339().parse(), Ok(time));
            }
        }
    }

    #[test]
    fn system_clock_is_in_this_century() {
        assert!(Clock::system().now() > Timestamp::from_millis(1_700_000_000_000));
    }
}
