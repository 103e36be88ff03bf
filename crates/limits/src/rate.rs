//! Rates, and the arithmetic of buckets.
//!
//! The algorithm is GCRA (generic cell rate algorithm). The only state of a bucket is its debt: the time until it is full again. Taking
//! a token adds an interval to the debt, elapsed time reduces it, and it never exceeds the window.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use config::{InvalidValue, Setting, Value};

/// Units of time, in seconds.
const UNITS: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];

/// The shortest interval. Intervals are whole microseconds; above this one, rounding changes a rate by at most 1%.
const MIN_INTERVAL: u64 = 100;

/// The longest window, which is how long a bucket may be kept.
const MAX_WINDOW: u64 = 31 * 86_400 * 1_000_000;

/// A number of requests per unit of time, and a burst: `50/s burst 100`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u32,
    /// In seconds.
    per: u64,
    burst: u32,
}

/// Why a text is not a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRate {
    #[error("it does not have the form COUNT/UNIT or COUNT/UNIT burst COUNT, with the units s, m, h and d")]
    Form,
    #[error("the count and the burst must be at least 1")]
    Nothing,
    #[error("it is more than 10000/s")]
    TooFast,
    #[error("the burst would take longer than 31 days to refill")]
    TooSlow,
}

impl Rate {
    /// Creates a rate of `count` requests per `per`, in whole seconds, and up to `burst` at once.
    pub fn new(count: u32, per: Duration, burst: u32) -> Result<Self, InvalidRate> {
        let seconds = per.as_secs();
        if seconds == 0 || per.subsec_nanos() != 0 {
            return Err(InvalidRate::Form);
        }
        if count == 0 || burst == 0 {
            return Err(InvalidRate::Nothing);
        }
        let micros = seconds.checked_mul(1_000_000).ok_or(InvalidRate::TooSlow)?;
        if micros / u64::from(count) < MIN_INTERVAL {
            return Err(InvalidRate::TooFast);
        }
        let rate = Self { count, per: seconds, burst };
        let window = rate.interval().checked_mul(u64::from(burst));
        if window.is_none_or(|window| window > MAX_WINDOW) {
            return Err(InvalidRate::TooSlow);
        }
        Ok(rate)
    }

    /// Creates a rate of one request per `seconds`, without a burst. 0 counts as 1.
    pub const fn once_in(seconds: u8) -> Self {
        Self { count: 1, per: if seconds == 0 { 1 } else { seconds as u64 }, burst: 1 }
    }

    /// Returns how many requests are allowed at once.
    pub const fn quota(&self) -> u64 {
        self.burst as u64
    }

    /// Returns the time in which the whole quota refills.
    pub const fn window(&self) -> Duration {
        Duration::from_micros(self.limit())
    }

    /// Returns the cost of a token in microseconds. Rounded up, so that the configured rate is never exceeded.
    pub(crate) const fn interval(&self) -> u64 {
        (self.per * 1_000_000).div_ceil(self.count as u64)
    }

    /// Returns the largest debt in microseconds.
    pub(crate) const fn limit(&self) -> u64 {
        self.interval() * self.quota()
    }

    /// Returns the debt after one more token, or none if the bucket is empty.
    pub(crate) fn take(&self, debt: u64) -> Option<u64> {
        let after = debt + self.interval();
        (after <= self.limit()).then_some(after)
    }

    /// Returns how many tokens are left with this debt.
    pub(crate) const fn remaining(&self, debt: u64) -> u64 {
        self.limit().saturating_sub(debt) / self.interval()
    }

    /// Returns the time until a token is available, in microseconds.
    pub(crate) const fn wait(&self, debt: u64) -> u64 {
        (debt + self.interval()).saturating_sub(self.limit())
    }
}

impl FromStr for Rate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Self, InvalidRate> {
        let mut words = text.split_whitespace();
        let (count, unit) = words.next().and_then(|word| word.split_once('/')).ok_or(InvalidRate::Form)?;
        let count: u32 = count.parse().map_err(|_| InvalidRate::Form)?;
        let per = UNITS.iter().find(|(name, _)| *name == unit).ok_or(InvalidRate::Form)?.1;
        let burst = match (words.next(), words.next(), words.next()) {
            (None, ..) => count,
            (Some("burst"), Some(burst), None) => burst.parse().map_err(|_| InvalidRate::Form)?,
            _ => return Err(InvalidRate::Form),
        };
        Self::new(count, Duration::from_secs(per), burst)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, seconds)| *seconds == self.per) {
            Some((unit, _)) => write!(f, "{}/{unit}", self.count)?,
            None => write!(f, "{}/{}s", self.count, self.per)?,
        }
        if self.burst == self.count { Ok(()) } else { write!(f, " burst {}", self.burst) }
    }
}

impl Setting for Rate {
    fn expected() -> String {
        "a rate such as \"50/s\", \"10/m\" or \"5/h burst 20\" (units s, m, h, d; without a burst, the whole count is allowed at once)"
            .to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        String::parse(value)?
            .parse()
            .map_err(|error: InvalidRate| InvalidValue::with_reason(error.to_string()))
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_parse_and_print() {
        for (text, quota, window) in [
            ("50/s burst 100", 100, Duration::from_secs(2)),
            ("10/m", 10, Duration::from_secs(60)),
            ("5/h burst 2", 2, Duration::from_secs(1_440)),
            ("1/d", 1, Duration::from_secs(86_400)),
            ("3/s", 3, Duration::from_micros(1_000_002)),
            ("10000/s", 10_000, Duration::from_secs(1)),
        ] {
            let rate = Rate::parse(&Value::Text(text.to_owned())).unwrap();
            assert_eq!((rate.quota(), rate.window()), (quota, window), "{text}");
            assert_eq!(rate.show(), format!("{text:?}"));
        }
        assert_eq!("  7/s   burst  9 ".parse::<Rate>().unwrap().to_string(), "7/s burst 9");
        assert_eq!("7/s burst 7".parse::<Rate>().unwrap().to_string(), "7/s");
    }

    #[test]
    fn invalid_rates_are_rejected_with_the_reason() {
        use InvalidRate::{Form, Nothing, TooFast, TooSlow};
        for (text, reason) in [
            ("", Form),
            ("50", Form),
            ("/s", Form),
            ("50/", Form),
            ("50/w", Form),
            ("50 / s", Form),
            ("-1/s", Form),
            ("1.5/s", Form),
            ("50/s 100", Form),
            ("50/s burst", Form),
            ("50/s burst x", Form),
            ("50/s burst 9 9", Form),
            ("99999999999/s", Form),
            ("0/s", Nothing),
            ("5/s burst 0", Nothing),
            ("10001/s", TooFast),
            ("1/d burst 32", TooSlow),
            ("1/d burst 4294967295", TooSlow),
        ] {
            assert_eq!(text.parse::<Rate>(), Err(reason), "{text}");
        }
        assert!(Rate::parse(&Value::Integer(5)).is_err());
        assert_eq!(Rate::new(1, Duration::from_secs(u64::MAX), 1), Err(TooSlow));
        assert_eq!(Rate::new(1, Duration::from_millis(1_500), 1), Err(Form));
    }

    #[test]
    fn debt_determines_remaining_tokens_and_wait() {
        let rate: Rate = "2/s burst 3".parse().unwrap();
        let mut debt = 0;
        for left in [2, 1, 0] {
            assert_eq!(rate.wait(debt), 0);
            debt = rate.take(debt).unwrap();
            assert_eq!(rate.remaining(debt), left);
        }
        assert_eq!((debt, rate.take(debt), rate.wait(debt)), (1_500_000, None, 500_000));
        assert_eq!((rate.take(1_000_001), rate.wait(1_000_001), rate.remaining(1_000_001)), (None, 1, 0));
        assert_eq!((rate.take(1_000_000), rate.remaining(1_000_000)), (Some(1_500_000), 1));
    }
}
