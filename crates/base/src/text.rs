//! Texts for people.

use std::fmt::Display;

/// Returns a number with its noun in the right form: `1 event`, `2 events`, `1 entry`, `2 entries`.
pub fn counted<N>(count: N, noun: &str) -> String
where
    N: Display + PartialEq + From<u8>,
{
    if count == N::from(1) {
        return format!("1 {noun}");
    }
    match noun.strip_suffix('y') {
        Some(stem) => format!("{count} {stem}ies"),
        None => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_everything_else_plural() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "event")), ["0 events", "1 event", "2 events"]);
        assert_eq!([1, 3].map(|count| counted(count, "entry")), ["1 entry", "3 entries"]);
    }
}
