//! Tests with two roles: the test starts its own test binary, which runs the same test in the other role.
//!
//! Needed to test whole test processes: their end or their environment.

use std::env;
use std::path::PathBuf;

use testkit::Program;

const VARIABLE: &str = "TESTKIT_TEST_ROLE";

/// Returns the role of this process, if it was started with one.
pub(crate) fn role() -> Option<String> {
    env::var(VARIABLE).ok()
}

/// Describes this test binary, or a copy of it, as a program that runs only the calling test, in a role.
macro_rules! again {
    ($role:expr) => {
        again!($role, ::std::env::current_exe().unwrap())
    };
    ($role:expr, $copy:expr) => {{
        fn here() {}
        $crate::roles::start($copy, ::std::any::type_name_of_val(&here), $role)
    }};
}
pub(crate) use again;

/// Implements [`again!`]. `here` is the path of an item in the calling test.
pub(crate) fn start(exe: PathBuf, here: &str, role: &str) -> Program {
    let (_crate, path) = here.split_once("::").unwrap();
    let test = path.trim_end_matches("::here").replace("::{{closure}}", "");
    Program::new(exe).args(["--exact", &test, "--nocapture"]).env(VARIABLE, role)
}
