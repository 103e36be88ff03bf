//! The JetStream stream that stores our events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{self, RetentionPolicy, StorageType};

use crate::{Config, Error, Nats};

/// How long the bus dedupes the id of a stored event.
pub const DUPLICATE_WINDOW: Duration = Duration::from_secs(600);

/// Returns the duplicate window, which cannot be longer than the stream stores events.
pub(crate) fn duplicate_window(max_age: Duration) -> Duration {
    DUPLICATE_WINDOW.min(max_age)
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

/// The stream as configured.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) name: String,
    /// The prefix of all subjects.
    pub(crate) prefix: String,
    max_age: Duration,
    replicas: u32,
    /// The actual duplicate window in milliseconds. An operator may have changed it.
    window: Arc<AtomicU64>,
}

impl Stream {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            name: config.stream.clone(),
            prefix: config.subjects.clone(),
            max_age: config.max_age,
            replicas: config.replicas,
            window: Arc::new(AtomicU64::new(millis(duplicate_window(config.max_age)))),
        }
    }

    /// Returns how long the stream dedupes an id.
    pub(crate) fn duplicate_window(&self) -> Duration {
        Duration::from_millis(self.window.load(Ordering::Relaxed))
    }

    pub(crate) fn subjects(&self) -> String {
        format!("{}.>", self.prefix)
    }

    fn config(&self) -> stream::Config {
        stream::Config {
            name: self.name.clone(),
            description: Some("Events of Playhouse".to_owned()),
            subjects: vec![self.subjects()],
            retention: RetentionPolicy::Limits,
            storage: StorageType::File,
            max_age: self.max_age,
            duplicate_window: duplicate_window(self.max_age),
            num_replicas: self.replicas.try_into().unwrap_or(usize::MAX),
            ..stream::Config::default()
        }
    }

    /// Returns an error about this stream that an operator has to resolve.
    pub(crate) fn unusable(&self, reason: impl Into<String>) -> Error {
        Error::Stream { name: self.name.clone(), reason: reason.into() }
    }

    /// Fails if an existing stream of our name cannot be used.
    pub(crate) fn check(&self, found: &stream::Config) -> Result<(), Error> {
        const REMEDY: &str = "set bus.stream to another name, or remove that stream if it is not needed";
        let expected = self.subjects();
        if found.subjects != [expected.as_str()] {
            let actual = found.subjects.join(", ");
            let reason = format!("it is for the subjects {actual}, not {expected}; {REMEDY}");
            return Err(self.unusable(reason));
        }
        if found.retention != RetentionPolicy::Limits {
            return Err(self.unusable(format!("it removes events once they are read; {REMEDY}")));
        }
        if found.no_ack {
            return Err(self.unusable(format!("it acknowledges nothing (no_ack); {REMEDY}")));
        }
        Ok(())
    }

    /// Describes how a usable stream differs from our settings.
    pub(crate) fn differences(&self, found: &stream::Config) -> Vec<String> {
        let ours = self.config();
        let mut differences = Vec::new();
        if found.storage != ours.storage {
            differences.push("it is stored in memory, so a restart of NATS loses its events".to_owned());
        }
        let mut compare = |what: &str, found: String, ours: String| {
            if found != ours {
                differences.push(format!("{what} is {found}, not {ours}"));
            }
        };
        compare("max_age", format!("{:?}", found.max_age), format!("{:?}", ours.max_age));
        compare(
            "the duplicate window",
            format!("{:?}", found.duplicate_window),
            format!("{:?}", ours.duplicate_window),
        );
        compare("replicas", found.num_replicas.to_string(), ours.num_replicas.to_string());
        differences
    }
}

impl Nats {
    /// Returns the existing stream of our name, or `None`.
    pub(crate) async fn find_stream(&self) -> Result<Option<stream::Info>, Error> {
        // Without a connection the request would be buffered, and its own timeout would start only after it is sent.
        let found = tokio::time::timeout(self.timeout, self.jetstream.get_stream(&self.stream.name)).await;
        match found.map_err(Error::unreachable)? {
            Ok(found) => Ok(Some(found.cached_info().clone())),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(refusal)
                    if refusal.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    Ok(None)
                }
                GetStreamErrorKind::JetStream(refusal) if refusal.code() != 503 => {
                    Err(self.stream.unusable(refusal.to_string()))
                }
                _ => Err(Error::unreachable(error)),
            },
        }
    }

    /// Checks a stream that exists, and publishes by its settings.
    fn use_stream(&self, config: &stream::Config) -> Result<(), Error> {
        self.stream.check(config)?;
        self.stream.window.store(millis(config.duplicate_window), Ordering::Relaxed);
        for difference in self.stream.differences(config) {
            tracing::warn!(stream = self.stream.name, difference, "the stream differs from the settings");
        }
        Ok(())
    }

    /// Creates the stream if it does not exist. Keeps limits that an operator has changed.
    pub(crate) async fn ensure_stream(&self) -> Result<(), Error> {
        if let Some(found) = self.find_stream().await? {
            return self.use_stream(&found.config);
        }
        let config = self.stream.config();
        let created = tokio::time::timeout(self.timeout, self.jetstream.create_stream(config)).await;
        let error = match created.map_err(Error::unreachable)? {
            Ok(created) => {
                let window = created.cached_info().config.duplicate_window;
                self.stream.window.store(millis(window), Ordering::Relaxed);
                tracing::info!(
                    stream = self.stream.name,
                    subjects = self.stream.subjects(),
                    "stream created"
                );
                return Ok(());
            }
            Err(error) => error,
        };
        // Another process may have been faster. While it creates the stream, the server says that the subjects are taken.
        if let Some(found) = self.find_stream().await? {
            return self.use_stream(&found.config);
        }
        match error.kind() {
            CreateStreamErrorKind::JetStream(refusal) if refusal.code() != 503 => match refusal.error_code() {
                ErrorCode::STREAM_NAME_EXIST => Err(Error::unreachable(error)),
                ErrorCode::STREAM_SUBJECT_OVERLAP => Err(self.stream.unusable(format!(
                    "another stream already has the subjects {}; set bus.subjects to another word, or bus.stream to the \
                     name of that stream",
                    self.stream.subjects()
                ))),
                _ => Err(self.stream.unusable(refusal.to_string())),
            },
            _ => Err(Error::unreachable(error)),
        }
    }
}
