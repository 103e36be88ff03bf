//! The progress of a long run: one line that is redrawn on a terminal, a line every 2 seconds elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use hierlock::ProvisionProgress;

const WIDTH: u64 = 24;
const ON_A_TERMINAL: Duration = Duration::from_millis(100);
const ELSEWHERE: Duration = Duration::from_secs(2);

/// Shows progress on stderr.
pub(super) struct Display {
    is_terminal: bool,
    last: Option<Instant>,
}

impl Display {
    pub(super) fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), last: None }
    }

    pub(super) fn show(&mut self, progress: &ProvisionProgress) {
        let pause = if self.is_terminal { ON_A_TERMINAL } else { ELSEWHERE };
        let is_last = progress.present == progress.total;
        if !is_last && self.last.is_some_and(|last| last.elapsed() < pause) {
            return;
        }
        self.last = Some(Instant::now());
        let (start, end) = if self.is_terminal { ("\r\x1b[K", "") } else { ("", "\n") };
        // If stderr is closed, there is no one to show it to.
        let _ = write!(io::stderr(), "{start}{}{end}", line(progress));
        let _ = io::stderr().flush();
    }

    pub(super) fn end(&self) {
        if self.is_terminal && self.last.is_some() {
            let _ = writeln!(io::stderr());
        }
    }
}

fn line(progress: &ProvisionProgress) -> String {
    let ProvisionProgress { total, present, created, elapsed } = *progress;
    let share = |whole: u64| (present * whole).checked_div(total).unwrap_or(whole);
    let done = usize::try_from(share(WIDTH)).unwrap_or(0);
    let left = usize::try_from(WIDTH).unwrap_or(0) - done;
    let bar = format!("[{}{}]", "#".repeat(done), ".".repeat(left));
    let mut line = format!("{bar} {:>3} %  {} of {} rows", share(100), grouped(present), grouped(total));
    if created > 0 {
        let rate = created as f64 / elapsed.as_secs_f64().max(0.001);
        let eta = (total - present) as f64 / rate;
        line += &format!("  {}/s  ETA {eta:.0} s", grouped(rate as u64));
    }
    line
}

/// Formats a number with commas between thousands.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_share_rate_and_time_left() {
        let half = ProvisionProgress {
            total: 3_000_000,
            present: 1_500_000,
            created: 1_000_000,
            elapsed: Duration::from_secs(4),
        };
        assert_eq!(
            line(&half),
            "[############............]  50 %  1,500,000 of 3,000,000 rows  250,000/s  ETA 6 s"
        );
        let begun = ProvisionProgress { total: 30, ..ProvisionProgress::default() };
        assert_eq!(line(&begun), "[........................]   0 %  0 of 30 rows");
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
