//! The number of items that an operator saw before a bulk action.

use base::Code;
use http_server::Problem;

/// Up to which number the items of a bulk action are counted. A larger number means that there are more.
pub const COUNT_CAP: u64 = 10_000;

/// Compares how many items match now with how many the operator saw. Both are counted up to [`COUNT_CAP`] + 1. Fails if they differ.
pub fn check_expected(expected: Option<u64>, matching: u64) -> Result<(), Problem> {
    let capped = |count: u64| count.min(COUNT_CAP + 1);
    match expected {
        Some(expected) if capped(expected) != capped(matching) => {
            let detail = format!(
                "The filter now matches {}, you saw {}: look again.",
                shown(matching),
                shown(expected)
            );
            Err(Problem::new(Code::FailedPrecondition).detail(detail))
        }
        _ => Ok(()),
    }
}

fn shown(count: u64) -> String {
    if count > COUNT_CAP { format!("more than {COUNT_CAP}") } else { count.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn action_is_refused_if_the_number_has_changed() {
        assert!(check_expected(None, 5).is_ok());
        assert!(check_expected(Some(5), 5).is_ok());
        assert!(check_expected(Some(5), 6).is_err());
        assert!(check_expected(Some(20_000), 10_001).is_ok(), "both are more than the cap");
        assert!(check_expected(Some(10_000), 10_001).is_err());
    }
}
