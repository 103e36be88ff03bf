//! A test in two roles: it starts its own test binary again, which runs the same test in the other role.
//!
//! Needed where the subject is a whole test process: its end, or its environment.

use std::env;
use std::path::PathBuf;

use testkit::Program;

const VARIABLE: &str = "TESTKIT_TEST_ROLE";

/// The role that this process has been started for, if any.
pub(crate) fn role() -> Option<String> {
    env::var(VARIABLE).ok()
}

/// This test binary, or a copy of it, to be started again in a role. It runs the calling test alone.
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

/// What [`again!`] does with the path of something in the calling test.
pub(crate) fn start(exe: PathBuf, here: &str, role: &str) -> Program {
    let (_crate, path) = here.split_once("::").unwrap();
    let test = path.trim_end_matches("::here").replace("::{{closure}}", "");
    Program::new(exe).args(["--exact", &test, "--nocapture"]).env(VARIABLE, role)
}
