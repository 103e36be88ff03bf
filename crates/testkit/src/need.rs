//! What a test does when a server it needs is missing: skip loudly, or fail where skipping is no option.

use std::io::Write;

use crate::Error;

/// Unwraps a server, or leaves the test if the server is not installed here.
///
/// In CI (`CI` is set and neither empty nor `false`) a missing server fails the test: a run that
/// skips is not a run that passes. A server that is installed and does not work fails it everywhere.
///
/// ```no_run
/// async fn a_test() {
///     let redis = testkit::need!(testkit::Redis::shared().await);
///     let room = redis.keyspace();
/// }
/// ```
///
/// A test that returns something says what to return when it is skipped: `need!(…, Ok(()))`.
#[macro_export]
macro_rules! need {
    ($server:expr) => {
        $crate::need!($server, ())
    };
    ($server:expr, $skipped:expr) => {
        match $crate::or_skip($server, {
            fn here() {}
            ::std::any::type_name_of_val(&here)
        }) {
            Some(server) => server,
            None => return $skipped,
        }
    };
}

/// What [`need!`](crate::need) does, up to the `return`.
#[doc(hidden)]
pub fn or_skip<T>(server: Result<T, Error>, here: &str) -> Option<T> {
    // Not a print macro: the test runner swallows those of a test that passes.
    decide(server, in_ci(std::env::var("CI").ok().as_deref()), &test_name(here), &mut std::io::stderr())
}

fn decide<T>(server: Result<T, Error>, in_ci: bool, test: &str, out: &mut dyn Write) -> Option<T> {
    match server {
        Ok(server) => Some(server),
        Err(error @ Error::Missing { .. }) if !in_ci => {
            // One write, so that lines of tests that run at the same time do not mix.
            let _ = out.write_all(format!("SKIPPED {test}: {error}\n").as_bytes());
            None
        }
        Err(error) => panic!("{test}: {error}"),
    }
}

fn in_ci(variable: Option<&str>) -> bool {
    !matches!(variable, None | Some("" | "false"))
}

/// The test runner names the thread of a test after the test, unless it uses a single one for all. Then
/// the function must do: `here` is the path of something in it.
fn test_name(here: &str) -> String {
    let test_crate = here.split("::").next().unwrap_or(here);
    match std::thread::current().name() {
        None | Some("main") => function_around(here),
        Some(test) => format!("{test_crate}::{test}"),
    }
}

fn function_around(here: &str) -> String {
    here.trim_end_matches("::here").replace("::{{closure}}", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSING: Error = Error::Missing {
        program: "redis-server",
        remedy: "`cargo xtask test` installs it, or set REDIS_URL to one that runs",
    };

    #[test]
    fn a_missing_server_skips_with_a_loud_line() {
        let mut out = Vec::new();
        assert_eq!(decide::<()>(Err(MISSING), false, "hot::expires", &mut out), None);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "SKIPPED hot::expires: redis-server is not on the PATH; `cargo xtask test` installs it, \
             or set REDIS_URL to one that runs\n"
        );
    }

    #[test]
    #[should_panic = "hot::expires: redis-server is not on the PATH; `cargo xtask test` installs it"]
    fn a_missing_server_fails_in_ci() {
        decide::<()>(Err(MISSING), true, "hot::expires", &mut Vec::new());
    }

    #[test]
    #[should_panic = "hot::expires: redis-server: bad option"]
    fn a_broken_server_fails_everywhere() {
        let broken = Err(Error::failed("redis-server", "bad option"));
        decide::<()>(broken, false, "hot::expires", &mut Vec::new());
    }

    #[test]
    fn a_server_that_is_there_is_unwrapped() {
        fn test() -> Result<u8, String> {
            let seven = need!(Ok(7), Err("skipped".to_owned()));
            Ok(seven)
        }
        assert_eq!(test(), Ok(7));
    }

    #[test]
    fn ci_is_what_says_so() {
        assert!(in_ci(Some("true")) && in_ci(Some("1")));
        assert!(!in_ci(None) && !in_ci(Some("")) && !in_ci(Some("false")));
    }

    #[test]
    fn tests_are_called_by_their_name() {
        let own = "testkit::need::tests::tests_are_called_by_their_name";
        assert_eq!(test_name(&format!("{own}::here")), own);
        assert_eq!(function_around(&format!("{own}::{{{{closure}}}}::here")), own);
    }
}
