//! The settings of a durable consumer.

use std::time::Duration;

use crate::Error;
use crate::config::is_name;
use crate::event::{SUBJECT_FORM, is_word};

/// The longest wait: well within the range of timers and of NATS.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(365 * 86_400);

/// NATS stores a consumer in a directory of its name.
const MAX_NAME_LENGTH: usize = 128;

/// A durable consumer, whose progress the bus stores under its name. Any number of processes may read as one consumer: each event goes
/// to one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Letters, digits, `_` and `-`.
    pub name: String,
    /// The subjects below `bus.subjects`: `entitlement.>`, `*.made`; `None` for all. They cannot change for an existing consumer: events
    /// it has skipped would never be delivered.
    pub subjects: Option<String>,
    /// After this time an event without a response is delivered again.
    pub ack_wait: Duration,
    /// How many events may be delivered but not acknowledged, for all readers of the name together. Events that wait for a redelivery
    /// count.
    pub max_pending: usize,
}

impl Subscription {
    /// Validates the subscription before a request to the bus.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !is_name(&self.name) || self.name.len() > MAX_NAME_LENGTH {
            return Err(self
                .unusable(format!("its name must be 1 to {MAX_NAME_LENGTH} letters, digits, `_` and `-`")));
        }
        if let Some(subjects) = self.subjects.as_deref().filter(|subjects| !is_pattern(subjects)) {
            return Err(self.unusable(format!(
                "its subjects {subjects:?} must be {SUBJECT_FORM}; `*` stands for any word, `>` at the end for any words"
            )));
        }
        if self.ack_wait.is_zero() || self.ack_wait > MAX_WAIT {
            return Err(self.unusable("ack_wait must be greater than zero and at most a year"));
        }
        if self.max_pending == 0 || i32::try_from(self.max_pending).is_err() {
            return Err(self.unusable(format!("max_pending must be 1 to {}", i32::MAX)));
        }
        Ok(())
    }

    /// Returns an error about this consumer that an operator has to resolve.
    pub(crate) fn unusable(&self, reason: impl Into<String>) -> Error {
        Error::Consumer { name: self.name.clone(), reason: reason.into() }
    }

    /// Returns the error for an existing consumer of this name that reads other subjects.
    pub(crate) fn subjects_differ(&self, existing: &str, requested: &str) -> Error {
        self.unusable(format!(
            "it reads the subjects {existing}, not {requested}; choose another name, whose consumer starts from the first \
             stored event"
        ))
    }

    /// Returns whether this consumer reads a subject (without the prefix `bus.subjects`).
    pub(crate) fn matches(&self, subject: &str) -> bool {
        self.subjects.as_deref().is_none_or(|pattern| matches(pattern, subject))
    }
}

fn is_pattern(text: &str) -> bool {
    let text = match text.strip_suffix('>') {
        Some("") => return true,
        Some(rest) => match rest.strip_suffix('.') {
            Some(rest) => rest,
            None => return false,
        },
        None => text,
    };
    text.split('.').all(|word| word == "*" || is_word(word))
}

fn matches(pattern: &str, subject: &str) -> bool {
    let mut words = subject.split('.');
    for expected in pattern.split('.') {
        match (expected, words.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (expected, Some(word)) if expected == word => {}
            _ => return false,
        }
    }
    words.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription() -> Subscription {
        Subscription {
            name: "stock-keeper_2".to_owned(),
            subjects: Some("entitlement.>".to_owned()),
            ack_wait: Duration::from_secs(30),
            max_pending: 1000,
        }
    }

    #[test]
    fn invalid_subscription_is_refused_by_name() {
        subscription().check().unwrap();
        let wrong_names = ["", "a b", "a.b", "a*", ">", "a/b", "..", "ä", &"a".repeat(129)];
        let wrong_names = wrong_names.map(|name| Subscription { name: name.to_owned(), ..subscription() });
        let wrong_subjects = ["", ".", "a.", ".a", "a..b", "a b", "a>", "a.>.b", ">.a", "a*", "a.**", "ä"];
        let wrong_subjects = wrong_subjects
            .map(|subjects| Subscription { subjects: Some(subjects.to_owned()), ..subscription() });
        let wrong_numbers = [
            Subscription { ack_wait: Duration::ZERO, ..subscription() },
            Subscription { ack_wait: Duration::MAX, ..subscription() },
            Subscription { max_pending: 0, ..subscription() },
            Subscription { max_pending: usize::MAX, ..subscription() },
        ];
        for wrong in wrong_names.iter().chain(&wrong_subjects).chain(&wrong_numbers) {
            let error = wrong.check().unwrap_err();
            assert!(
                matches!(&error, Error::Consumer { name, .. } if *name == wrong.name),
                "{wrong:?}: {error}"
            );
        }
        for good in ["a", "*", ">", "a.*", "a.>", "*.made", "a.*.c", "*.*.>"] {
            Subscription { subjects: Some(good.to_owned()), ..subscription() }.check().unwrap();
        }
    }

    #[test]
    fn pattern_matches_as_on_nats() {
        let all = Subscription { subjects: None, ..subscription() };
        assert!(all.matches("a") && all.matches("a.b"));
        let matching = [
            ("a", "a"),
            ("a.b", "a.b"),
            (">", "a.b"),
            ("a.>", "a.b.c"),
            ("*", "a"),
            ("*.b", "a.b"),
            ("*.>", "a.b"),
        ];
        for (pattern, subject) in matching {
            assert!(matches(pattern, subject), "{pattern} {subject}");
        }
        let others = [
            ("a", "b"),
            ("a", "a.b"),
            ("a.b", "a"),
            ("a.>", "a"),
            ("a.>", "b.c"),
            ("*", "a.b"),
            ("*.b", "a.c"),
        ];
        for (pattern, subject) in others {
            assert!(!matches(pattern, subject), "{pattern} {subject}");
        }
    }
}
