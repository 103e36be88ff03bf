//! The results of checks of stores and services, for `playhouse doctor` and `/status`.

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Good,
    /// Works, but at a risk.
    Warning,
    /// Does not work, or loses data.
    Failure,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub verdict: Verdict,
    pub what: String,
    /// What the operator can do about it.
    pub advice: Option<String>,
    /// The path of the console's screen that shows it. None for the first screen of the service that reports it.
    pub screen: Option<&'static str>,
}

impl Finding {
    pub fn good(what: impl Into<String>) -> Self {
        Self { verdict: Verdict::Good, what: what.into(), advice: None, screen: None }
    }

    pub fn warning(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warning, what: what.into(), advice: Some(advice.into()), screen: None }
    }

    pub fn failure(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { verdict: Verdict::Failure, what: what.into(), advice: Some(advice.into()), screen: None }
    }

    /// Names the console's screen that shows it.
    pub const fn on_screen(mut self, path: &'static str) -> Self {
        self.screen = Some(path);
        self
    }

    /// Returns a good finding if the condition holds, and `otherwise` if not.
    pub fn check(holds: bool, good: impl Into<String>, otherwise: impl FnOnce() -> Self) -> Self {
        if holds { Self::good(good) } else { otherwise() }
    }

    /// Judges the difference between a store's clock and ours. Leases are compared by the store's clock, certificates and tokens by
    /// ours.
    pub fn clock(difference: std::time::Duration) -> Self {
        const TOLERANCE: std::time::Duration = std::time::Duration::from_secs(2);
        let what = match difference.as_millis() {
            // Times of stores are in milliseconds.
            0 => "clock agrees with the clock of this machine".to_owned(),
            millis @ 1..1_000 => format!("clock differs by {millis} ms"),
            _ => format!("clock differs by {:.1} s", difference.as_secs_f64()),
        };
        Self::check(difference <= TOLERANCE, what.clone(), || {
            Self::warning(what, "keep the clocks of all machines in step (NTP)")
        })
    }
}

/// Parses the major and minor number of a version such as `10.11.6` or `v2.9.10-beta`. Anything else counts as 0.
pub fn version(text: &str) -> (u32, u32) {
    let mut numbers =
        text.trim_start_matches('v').split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_agree_below_a_millisecond() {
        use std::time::Duration;
        let agrees = Finding::good("clock agrees with the clock of this machine");
        assert_eq!(
            [0, 999].map(|micros| Finding::clock(Duration::from_micros(micros))),
            [agrees.clone(), agrees]
        );
        assert_eq!(Finding::clock(Duration::from_millis(7)), Finding::good("clock differs by 7 ms"));
        let late = Finding::clock(Duration::from_millis(3_100));
        assert_eq!((late.verdict, late.what.as_str()), (Verdict::Warning, "clock differs by 3.1 s"));
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(version("10.11.6") > version("10.6"));
        assert_eq!(version("v2.9.10-beta"), (2, 9));
        assert_eq!(version("odd"), (0, 0));
    }
}
