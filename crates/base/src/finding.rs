//! What a check of a store found, for `playhouse doctor`.

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Good,
    /// Works, and endangers something.
    Warning,
    /// Does not work, or loses data.
    Failure,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub verdict: Verdict,
    pub what: String,
    /// What to do about it.
    pub advice: Option<String>,
}

impl Finding {
    pub fn good(what: impl Into<String>) -> Self {
        Self { verdict: Verdict::Good, what: what.into(), advice: None }
    }

    pub fn warning(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warning, what: what.into(), advice: Some(advice.into()) }
    }

    pub fn failure(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { verdict: Verdict::Failure, what: what.into(), advice: Some(advice.into()) }
    }

    /// Good where the condition holds, else as `otherwise` says.
    pub fn when(holds: bool, good: impl Into<String>, otherwise: impl FnOnce() -> Self) -> Self {
        if holds { Self::good(good) } else { otherwise() }
    }

    /// How far a store's clock is from ours. Leases are compared by the store's clock, certificates and tokens by ours.
    pub fn clock(difference: std::time::Duration) -> Self {
        const TOLERATED: std::time::Duration = std::time::Duration::from_secs(2);
        let what = format!("clock differs by {difference:.1?}");
        Self::when(difference <= TOLERATED, what.clone(), || {
            Self::warning(what, "keep the clocks of all machines in step (NTP)")
        })
    }
}

/// The leading numbers of a version such as `10.11.6` or `v2.9.10-beta`, to be compared.
pub fn version(text: &str) -> (u32, u32) {
    let mut numbers =
        text.trim_start_matches('v').split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(version("10.11.6") > version("10.6"));
        assert_eq!(version("v2.9.10-beta"), (2, 9));
        assert_eq!(version("odd"), (0, 0));
    }
}
