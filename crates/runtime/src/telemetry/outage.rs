//! Limits log lines that an outage would repeat with every request.
//!
//! A line with the field `outage` reports an operation that fails until a server is reachable again. The first line is written.
//! Later ones are counted: one line per [`REPORT_INTERVAL`] reports their number. After [`QUIET_PERIOD`] without a new one, a last line
//! reports the total and the duration. Lines of the same call site with the same value of `outage` belong to one outage.
//!
//! The value therefore names a part or a loop, never an id. Lines that must all be written, such as dead letters, have no such field.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Filter};

const FIELD: &str = "outage";
/// How often an ongoing outage is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);
/// An outage is over after this time without a failure. Longer than the backoff of retries.
const QUIET_PERIOD: Duration = Duration::from_secs(10);
/// How often open outages are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The limit of concurrent outages. Beyond it every line is written: the field probably contains an id, which is a bug.
const MAX_OPEN: usize = 256;

/// Lets the first line of an outage through and counts the others. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(super) struct Outages {
    open: Arc<Mutex<HashMap<Key, Outage>>>,
    /// Wakes the reporting thread.
    opened: Sender<()>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Key(Identifier, String);

#[derive(Clone, Debug)]
struct Outage {
    level: Level,
    target: &'static str,
    message: String,
    began: Instant,
    last: Instant,
    reported: Instant,
    /// Lines since the last report.
    unreported: u64,
    lines: u64,
}

/// A line that summarises lines that were not written.
#[derive(Clone, Debug, PartialEq)]
struct Summary {
    outage: String,
    level: Level,
    target: &'static str,
    message: String,
    lines: u64,
    lasted: Duration,
    is_over: bool,
}

impl Outages {
    /// Starts the reporting thread. It blocks while there is no outage.
    pub(super) fn start() -> Self {
        let (this, opened) = Self::new();
        let reporter = this.clone();
        let spawned = std::thread::Builder::new().name("outages".to_owned()).spawn(move || {
            while opened.recv().is_ok() {
                while !reporter.open().is_empty() {
                    std::thread::sleep(CHECK_INTERVAL);
                    reporter.report(Instant::now());
                }
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(cause = %error, "cannot start the thread that summarises repeated log lines");
        }
        this
    }

    fn new() -> (Self, Receiver<()>) {
        let (opened, wakes) = channel();
        (Self { open: Arc::default(), opened }, wakes)
    }

    /// Reports the outages that are still open when the process stops.
    pub(super) fn stop(&self) {
        for (Key(_, outage), open) in std::mem::take(&mut *self.open()) {
            if open.unreported > 0 {
                open.summary(outage, open.unreported, false).log();
            }
        }
    }

    /// Records a line. Returns whether to write it.
    fn record_line(
        &self,
        key: Key,
        now: Instant,
        describe: impl FnOnce() -> (Level, &'static str, String),
    ) -> bool {
        let mut open = self.open();
        if let Some(outage) = open.get_mut(&key) {
            outage.last = now;
            outage.unreported += 1;
            outage.lines += 1;
            return false;
        }
        if open.len() < MAX_OPEN {
            let (level, target, message) = describe();
            let outage = Outage {
                level,
                target,
                message,
                began: now,
                last: now,
                reported: now,
                unreported: 0,
                lines: 1,
            };
            open.insert(key, outage);
            // Fails only if the thread could not be started.
            let _ = self.opened.send(());
        }
        true
    }

    fn report(&self, now: Instant) {
        // Not under the lock: logging calls `record_line`, which takes it.
        self.due(now).iter().for_each(Summary::log);
    }

    /// Returns the summaries that are due and removes outages that are over.
    fn due(&self, now: Instant) -> Vec<Summary> {
        let mut due = Vec::new();
        self.open().retain(|Key(_, name), outage| {
            let is_over = now - outage.last >= QUIET_PERIOD;
            // A line that was not repeated needs no summary.
            if is_over && outage.lines > 1 {
                due.push(outage.summary(name.clone(), outage.lines, true));
            } else if !is_over && outage.unreported > 0 && now - outage.reported >= REPORT_INTERVAL {
                due.push(outage.summary(name.clone(), outage.unreported, false));
                outage.unreported = 0;
                outage.reported = now;
            }
            !is_over
        });
        due
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Key, Outage>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outage {
    fn summary(&self, outage: String, lines: u64, is_over: bool) -> Summary {
        let Self { level, target, message, began, last, .. } = self;
        Summary {
            outage,
            level: *level,
            target,
            message: message.clone(),
            lines,
            lasted: *last - *began,
            is_over,
        }
    }
}

impl Summary {
    fn log(&self) {
        let Self { outage, level, target, message, lines, lasted, is_over } = self;
        let lasted_s = lasted.as_secs();
        if *is_over {
            tracing::info!(of = outage, from = target, lines, lasted_s, "over: {message}");
        } else if *level == Level::ERROR {
            tracing::error!(of = outage, from = target, lines, lasted_s, "still: {message}");
        } else {
            tracing::warn!(of = outage, from = target, lines, lasted_s, "still: {message}");
        }
    }
}

impl<S: Subscriber> Filter<S> for Outages {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    /// Lets the other filters cache their decision per call site, together with the hint below: disabled lines cost nothing.
    /// A line that may be suppressed is decided each time.
    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        match metadata.fields().field(FIELD) {
            Some(_) => Interest::sometimes(),
            None => Interest::always(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        let Some(field) = metadata.fields().field(FIELD) else { return true };
        let mut name = FieldText { field, text: String::new() };
        event.record(&mut name);
        self.record_line(Key(metadata.callsite(), name.text), Instant::now(), || {
            let mut message = FieldText::new(metadata.fields().field("message"));
            if let Some(message) = &mut message {
                event.record(message);
            }
            let message = message.map(|message| message.text).unwrap_or_default();
            (*metadata.level(), metadata.target(), message)
        })
    }
}

/// Reads the text of one field of an event.
struct FieldText {
    field: Field,
    text: String,
}

impl FieldText {
    fn new(field: Option<Field>) -> Option<Self> {
        Some(Self { field: field?, text: String::new() })
    }
}

impl Visit for FieldText {
    fn record_str(&mut self, field: &Field, value: &str) {
        if *field == self.field {
            value.clone_into(&mut self.text);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if *field == self.field {
            self.text = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::{Layer, fmt};

    use super::*;

    /// Collects the log lines of a test.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        fn lines(&self) -> Vec<String> {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
        }
    }

    fn fail(store: &str) {
        tracing::warn!(outage = store, cause = "refused", "the tickets cannot be reached");
    }

    /// Runs `test` with the outage filter. Returns the log lines.
    fn log_lines(test: impl FnOnce(&Outages)) -> Vec<String> {
        let ((outages, _wakes), log) = (Outages::new(), Log::default());
        let writer = log.clone();
        let layer = fmt::layer().with_writer(move || writer.clone()).with_ansi(false).without_time();
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(outages.clone()));
        tracing::subscriber::with_default(subscriber, || test(&outages));
        log.lines()
    }

    #[test]
    fn outage_logs_its_start_its_progress_and_its_end() {
        let lines = log_lines(|outages| {
            let began = Instant::now();
            (0..1000).for_each(|_| fail("redis"));
            outages.report(began + Duration::from_secs(5));
            fail("redis");
            let last = outages.open().values().next().unwrap().last;
            // Simulates further failing requests.
            outages.open().values_mut().for_each(|outage| outage.last = last + REPORT_INTERVAL);
            outages.report(last + REPORT_INTERVAL + CHECK_INTERVAL);
            outages.report(last + REPORT_INTERVAL + QUIET_PERIOD);
            fail("redis");
        });
        let shown: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
        assert_eq!(shown.len(), 4, "{shown:#?}");
        assert!(shown[0].starts_with("WARN") && shown[0].ends_with("cause=\"refused\""), "{shown:#?}");
        assert!(shown[1].contains("WARN") && shown[1].contains("still: the tickets cannot be reached"));
        assert!(shown[1].contains("lines=1000") && shown[1].contains("of=\"redis\""), "{shown:#?}");
        assert!(shown[2].contains("INFO") && shown[2].contains("over: the tickets"), "{shown:#?}");
        assert!(shown[2].contains("lines=1001") && shown[2].contains("lasted_s=30"), "{shown:#?}");
        assert_eq!(shown[3], shown[0], "the next outage starts over");
    }

    #[test]
    fn outages_of_different_parts_are_separate_and_other_lines_unaffected() {
        let lines = log_lines(|outages| {
            for _ in 0..10 {
                fail("redis");
                fail("sql");
                tracing::warn!(letter = 7, "a dead letter");
            }
            outages.stop();
        });
        let count = |needle: &str| lines.iter().filter(|line| line.contains(needle)).count();
        assert_eq!(count("a dead letter"), 10, "{lines:#?}");
        // The first line of each, and the summaries at the stop.
        assert_eq!(
            (count("outage=\"redis\""), count("outage=\"sql\""), count("still")),
            (1, 1, 2),
            "{lines:#?}"
        );
    }

    #[test]
    fn line_that_is_not_repeated_gets_no_summary() {
        let lines = log_lines(|outages| {
            fail("redis");
            outages.report(Instant::now() + QUIET_PERIOD);
            assert!(outages.open().is_empty());
        });
        assert_eq!(lines.len(), 1, "{lines:#?}");
    }

    #[test]
    fn number_of_open_outages_is_bounded() {
        let lines = log_lines(|outages| {
            (0..2 * MAX_OPEN).for_each(|id| fail(&id.to_string()));
            assert_eq!(outages.open().len(), MAX_OPEN);
        });
        assert_eq!(lines.len(), 2 * MAX_OPEN);
    }
}
