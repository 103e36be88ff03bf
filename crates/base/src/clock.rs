//! Time as a parameter.
//!
//! A [`Clock`] is for what this process decides alone. Leases and lifetimes that several processes compare use the clock of
//! the store they live in.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch: the form in which every store keeps time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// As RFC 3339, in UTC with milliseconds: `2026-03-01T12:00:00.000Z`.
    pub fn to_rfc3339(self) -> String {
        const DAY: i64 = 86_400_000;
        let (year, month, day) = civil_date(self.0.div_euclid(DAY));
        let millis = self.0.rem_euclid(DAY);
        let (hour, minute, second) = (millis / 3_600_000, millis / 60_000 % 60, millis / 1_000 % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", millis % 1_000)
    }

    /// So much later.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_millis().try_into().unwrap_or(i64::MAX)))
    }

    /// How far this is from `other`, in whichever direction.
    pub const fn distance(self, other: Self) -> Duration {
        Duration::from_millis(self.0.abs_diff(other.0))
    }
}

/// Year, month and day of a number of days since the epoch, in the Gregorian calendar. Years are counted from March, so that
/// the leap day is the last of its year; 400 of them always have 146,097 days.
const fn civil_date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + (month <= 2) as i64;
    (year, month, day)
}

/// The number of days since the epoch of a date; the inverse of [`civil_date`].
const fn days_of_date(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The text is not a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a time: expected one such as 2026-03-01T12:00:00.000Z or 2026-03-01T13:00:00+01:00")]
pub struct NotATime;

/// Reads RFC 3339, with any offset. What is finer than a millisecond is cut off.
impl FromStr for Timestamp {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        let (date, rest) = text.split_at_checked(10).ok_or(NotATime)?;
        let (mark, rest) = rest.split_at_checked(1).ok_or(NotATime)?;
        let (time, rest) = rest.split_at_checked(8).ok_or(NotATime)?;
        let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
        let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
        let (fraction, offset) = match rest.strip_prefix('.') {
            None => (0, rest),
            Some(rest) => {
                let end = rest.find(|c: char| !c.is_ascii_digit()).ok_or(NotATime)?;
                let (digits, offset) = rest.split_at(end);
                let first: String = digits.chars().chain("000".chars()).take(3).collect();
                (if digits.is_empty() { Err(NotATime) } else { number(&first) }?, offset)
            }
        };
        let offset_minutes = match offset.split_at_checked(1) {
            Some(("Z" | "z", "")) => 0,
            Some((sign @ ("+" | "-"), offset)) => {
                let [hours, minutes] = numbers(offset, ':', [2, 2])?;
                let is_sound = hours < 24 && minutes < 60;
                let minutes = if is_sound { hours * 60 + minutes } else { return Err(NotATime) };
                if sign == "+" { minutes } else { -minutes }
            }
            _ => return Err(NotATime),
        };
        let days = days_of_date(year, month, day);
        // A leap second is taken for the one that follows.
        let is_sound = matches!(mark, "T" | "t" | " ")
            && civil_date(days) == (year, month, day)
            && (hour < 24 && minute < 60 && second <= 60);
        let seconds = days * 86_400 + hour * 3_600 + (minute - offset_minutes) * 60 + second;
        if is_sound { Ok(Self(seconds * 1_000 + fraction)) } else { Err(NotATime) }
    }
}

/// Numbers of so many digits each.
fn numbers<const N: usize>(text: &str, separator: char, lengths: [usize; N]) -> Result<[i64; N], NotATime> {
    let mut parts = text.split(separator);
    let mut found = [0; N];
    for (found, length) in found.iter_mut().zip(lengths) {
        let part = parts.next().filter(|part| part.len() == length).ok_or(NotATime)?;
        *found = number(part)?;
    }
    if parts.next().is_none() { Ok(found) } else { Err(NotATime) }
}

fn number(digits: &str) -> Result<i64, NotATime> {
    let all_digits = digits.bytes().all(|c| c.is_ascii_digit());
    digits.parse().ok().filter(|_| all_digits).ok_or(NotATime)
}

/// Tells the time. Clones of a manual clock move together.
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

    /// A clock that stands still until it is moved.
    pub fn manual(start: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(AtomicI64::new(start.0))))
    }

    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => {
                #[expect(clippy::disallowed_methods, reason = "the one place that asks the machine")]
                let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Timestamp(since_epoch.as_millis().try_into().unwrap_or(i64::MAX))
            }
            Source::Manual(now) => Timestamp(now.load(Ordering::SeqCst)),
        }
    }

    /// Moves a manual clock on; the system clock moves by itself.
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
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told_and_with_its_clones() {
        let clock = Clock::manual(Timestamp::from_millis(1_000));
        let other = clock.clone();
        other.advance(Duration::from_millis(5));
        assert_eq!(clock.now().as_millis(), 1_005);
        assert_eq!(clock.now().distance(Timestamp::from_millis(1_010)), Duration::from_millis(5));
    }

    #[test]
    fn times_are_read_as_rfc_3339() {
        let parse = |text: &str| text.parse::<Timestamp>().map(Timestamp::as_millis);
        for millis in [0, -1, 951_782_400_000, 1_709_251_199_007, 253_402_300_799_999] {
            assert_eq!(parse(&Timestamp(millis).to_rfc3339()), Ok(millis));
        }
        for text in
            ["2026-03-01T12:00:00Z", "2026-03-01t13:30:00.0+01:30", "2026-02-28 23:00:00.000999-13:00"]
        {
            assert_eq!(parse(text), Ok(1_772_366_400_000), "{text}");
        }
        assert_eq!(parse("2016-12-31T23:59:60Z"), Ok(1_483_228_800_000), "a leap second");
        for wrong in [
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
            "äääääääääääääää",
        ] {
            assert_eq!(parse(wrong), Err(NotATime), "{wrong}");
        }
    }

    #[test]
    fn times_are_written_as_rfc_3339() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_007, "2024-02-29T23:59:59.007Z"),
            (1_709_251_200_000, "2024-03-01T00:00:00.000Z"),
            (1_772_366_400_120, "2026-03-01T12:00:00.120Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Timestamp::from_millis(millis).to_rfc3339(), text);
        }
    }

    #[test]
    fn the_system_clock_is_in_this_century() {
        assert!(Clock::system().now() > Timestamp::from_millis(1_700_000_000_000));
    }
}
