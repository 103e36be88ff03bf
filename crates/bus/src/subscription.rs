//! What a durable consumer asks for.

use std::time::Duration;

use crate::Error;
use crate::config::is_name;
use crate::event::{SUBJECT_FORM, is_word};

/// Longer than anybody waits, and well within what timers and NATS can count.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// NATS keeps a consumer in a folder of its name.
const LONGEST_NAME: usize = 128;

/// A reader whose progress the bus keeps, by its name. Any number of processes may read as one consumer: each event goes
/// to one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Letters, digits, `_` and `-`.
    pub name: String,
    /// Which subjects below `bus.subjects`: `entitlement.>`, `*.made`; `None` for all. An existing consumer cannot be given
    /// others: what it has passed over would never be delivered.
    pub subjects: Option<String>,
    /// After this time an event that was neither acknowledged nor refused is delivered again.
    pub ack_wait: Duration,
    /// How many events may be delivered and not acknowledged, all readers of the name together. Those that are to come
    /// again later count.
    pub max_pending: usize,
}

impl Subscription {
    /// Whether a bus can take it, found before one is asked.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !is_name(&self.name) || self.name.len() > LONGEST_NAME {
            return Err(
                self.unusable(format!("its name must be 1 to {LONGEST_NAME} letters, digits, `_` and `-`"))
            );
        }
        if let Some(subjects) = self.subjects.as_deref().filter(|subjects| !is_pattern(subjects)) {
            return Err(self.unusable(format!(
                "its subjects {subjects:?} must be {SUBJECT_FORM}; `*` stands for any word, `>` at the end for any words"
            )));
        }
        if self.ack_wait.is_zero() || self.ack_wait > LONGEST {
            return Err(self.unusable("ack_wait must be longer than nothing and at most a year"));
        }
        if self.max_pending == 0 || i32::try_from(self.max_pending).is_err() {
            return Err(self.unusable(format!("max_pending must be 1 to {}", i32::MAX)));
        }
        Ok(())
    }

    /// An error about this consumer that a person has to settle.
    pub(crate) fn unusable(&self, reason: impl Into<String>) -> Error {
        Error::Consumer { name: self.name.clone(), reason: reason.into() }
    }

    /// There is a consumer of this name that reads other subjects.
    pub(crate) fn reads_others(&self, theirs: &str, ours: &str) -> Error {
        self.unusable(format!(
            "it reads the subjects {theirs}, and not {ours}; give the new reader another name, which starts from the first \
             event that is kept"
        ))
    }

    /// Whether an event of this subject, without the prefix of all subjects, is for this consumer.
    pub(crate) fn wants(&self, subject: &str) -> bool {
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
    fn what_no_bus_can_take_is_refused_by_name() {
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
    fn a_pattern_matches_as_on_nats() {
        let all = Subscription { subjects: None, ..subscription() };
        assert!(all.wants("a") && all.wants("a.b"));
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
