//! Names that are unique over all tests, processes and machines that share an external server.

use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Returns a new name of letters, digits and `_`, valid for folders, databases, keys, streams and subjects.
///
/// It begins with `testkit_`, so that leftovers of killed tests on external servers can be recognised.
pub(crate) fn unique() -> String {
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("testkit_{}_{:08x}_{count}", std::process::id(), fastrand::u32(..))
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_differ_and_are_plain() {
        let (one, two) = (super::unique(), super::unique());
        assert_ne!(one, two);
        assert!(one.starts_with("testkit_"));
        assert!(one.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
        // MySQL's limit for the name of a database is 64.
        assert!(one.len() < 50);
    }
}
