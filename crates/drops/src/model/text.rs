//! Texts of operators: names, resources, roles.

/// Checks a text of at most `max` characters that two people must be able to tell from another. Returns what is wrong with it.
///
/// Spaces around it are refused: MySQL compares texts without the spaces at their end, and entitlements refuse such a resource, so a paid
/// order of it could never be delivered.
pub(crate) fn check(text: &str, max: usize) -> Result<(), String> {
    if text.is_empty() || text.chars().count() > max {
        return Err(format!("must have 1 to {max} characters"));
    }
    if text.trim() != text {
        return Err("must not begin or end with a space".to_owned());
    }
    if text.chars().any(char::is_control) {
        return Err("must not hold control characters".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn spaces_around_a_text_are_refused() {
        for wrong in ["", " ", " sword", "sword ", "sword\u{3000}", "swo\nrd", "swords"] {
            assert!(check(wrong, 5).is_err(), "{wrong:?}");
        }
        for right in ["sword", "ä b c", "s"] {
            assert_eq!(check(right, 5), Ok(()), "{right:?}");
        }
    }
}
