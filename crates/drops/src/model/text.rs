//! Checks of texts that operators choose: names, resources, roles.

/// Checks that a text has 1 to `max` characters, no surrounding spaces and no control characters. Fails with what is wrong with it.
///
/// Two such texts that look alike are the same. Surrounding spaces are refused because MySQL ignores trailing ones in comparisons, and
/// because entitlements refuse such a resource: a paid order of it could never be delivered.
pub(crate) fn check(text: &str, max: usize) -> Result<(), String> {
    if text.is_empty() || text.chars().count() > max {
        return Err(format!("must have 1 to {max} characters"));
    }
    if text.trim() != text {
        return Err("must not begin or end with a space".to_owned());
    }
    if text.chars().any(char::is_control) {
        return Err("must not contain control characters".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn surrounding_spaces_and_control_characters_are_refused() {
        for wrong in ["", " ", " sword", "sword ", "sword\u{3000}", "swo\nrd", "swords"] {
            assert!(check(wrong, 5).is_err(), "{wrong:?}");
        }
        for right in ["sword", "ä b c", "s"] {
            assert_eq!(check(right, 5), Ok(()), "{right:?}");
        }
    }
}
