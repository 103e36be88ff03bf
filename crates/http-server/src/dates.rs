//! The header `Date`, formatted once a second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use ::http::HeaderValue;
use base::Clock;

/// Formats the header. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(super) struct Dates(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    /// The last formatted second, and its text.
    last: Mutex<(u64, HeaderValue)>,
}

impl Dates {
    pub(super) fn new(clock: Clock) -> Self {
        Self(Arc::new(Inner { clock, last: Mutex::new((0, format(0))) }))
    }

    /// Returns the header for the current time.
    pub(super) fn now(&self) -> HeaderValue {
        let second = u64::try_from(self.0.clock.now().as_millis()).unwrap_or_default() / 1000;
        let mut last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != second {
            *last = (second, format(second));
        }
        last.1.clone()
    }
}

fn format(second: u64) -> HeaderValue {
    let time = UNIX_EPOCH + Duration::from_secs(second);
    HeaderValue::try_from(httpdate::fmt_http_date(time)).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use base::Timestamp;

    use super::*;

    #[test]
    fn date_follows_the_clock() {
        let clock = Clock::manual(Timestamp::from_millis(784_111_777_500));
        let dates = Dates::new(clock.clone());
        assert_eq!(dates.now(), "Sun, 06 Nov 1994 08:49:37 GMT");
        clock.advance(Duration::from_millis(499));
        assert_eq!(dates.now(), "Sun, 06 Nov 1994 08:49:37 GMT");
        clock.advance(Duration::from_millis(1));
        assert_eq!(dates.now(), "Sun, 06 Nov 1994 08:49:38 GMT");
    }
}
