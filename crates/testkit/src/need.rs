//! Skips a test, or fails it in CI, if a server that it needs is not installed.

use std::io::Write;

use crate::Error;

/// Unwraps a server, or returns from the test if the server is not installed.
///
/// In CI (`CI` is set and neither empty nor `false`) a missing server fails the test, because a skipped test proves nothing. A
/// server that is installed but does not work always fails the test.
///
/// ```no_run
/// async fn a_test() {
///     let redis = testkit::need!(testkit::Redis::shared().await);
///     let namespace = redis.namespace();
/// }
/// ```
///
/// A test that returns a value passes the value to return when it is skipped: `need!(…, Ok(()))`.
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

/// Implements [`need!`](crate::need), except for the `return`.
#[doc(hidden)]
pub fn or_skip<T>(server: Result<T, Error>, here: &str) -> Option<T> {
    // Not a print macro: the test runner hides that output if the test passes.
    decide(server, in_ci(std::env::var("CI").ok().as_deref()), &test_name(here), &mut std::io::stderr())
}

fn decide<T>(server: Result<T, Error>, in_ci: bool, test: &str, out: &mut dyn Write) -> Option<T> {
    match server {
        Ok(server) => Some(server),
        Err(error @ Error::Missing { .. }) if !in_ci => {
            // One write, so that lines of concurrent tests do not mix.
            let _ = out.write_all(format!("SKIPPED {test}: {error}\n").as_bytes());
            None
        }
        Err(error) => panic!("{test}: {error}"),
    }
}

fn in_ci(variable: Option<&str>) -> bool {
    !matches!(variable, None | Some("" | "false"))
}

/// Returns the name of the current test. The test runner names the thread after the test, unless it uses one thread for all
/// tests. In that case the name comes from `here`, the path of an item inside the test function.
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
        remedy: "`cargo xtask test` installs it, or set REDIS_URL to a running server",
    };

    #[test]
    fn missing_server_skips_the_test_and_prints_a_line() {
        let mut out = Vec::new();
        assert_eq!(decide::<()>(Err(MISSING), false, "hot::expires", &mut out), None);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "SKIPPED hot::expires: redis-server is not on the PATH; `cargo xtask test` installs it, \
             or set REDIS_URL to a running server\n"
        );
    }

    #[test]
    #[should_panic = "hot::expires: redis-server is not on the PATH; `cargo xtask test` installs it"]
    fn missing_server_fails_the_test_in_ci() {
        decide::<()>(Err(MISSING), true, "hot::expires", &mut Vec::new());
    }

    #[test]
    #[should_panic = "hot::expires: redis-server: bad option"]
    fn broken_server_fails_the_test_everywhere() {
        let broken = Err(Error::failed("redis-server", "bad option"));
        decide::<()>(broken, false, "hot::expires", &mut Vec::new());
    }

    #[test]
    fn available_server_is_unwrapped() {
        fn test() -> Result<u8, String> {
            let seven = need!(Ok(7), Err("skipped".to_owned()));
            Ok(seven)
        }
        assert_eq!(test(), Ok(7));
    }

    #[test]
    fn ci_is_detected_by_its_variable() {
        assert!(in_ci(Some("true")) && in_ci(Some("1")));
        assert!(!in_ci(None) && !in_ci(Some("")) && !in_ci(Some("false")));
    }

    #[test]
    fn test_name_is_the_path_of_the_test() {
        let own = "testkit::need::tests::test_name_is_the_path_of_the_test";
        assert_eq!(test_name(&format!("{own}::here")), own);
        assert_eq!(function_around(&format!("{own}::{{{{closure}}}}::here")), own);
    }
}
