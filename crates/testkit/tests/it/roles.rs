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

/// This test binary, to be started again in a role. It runs the calling test alone.
pub(crate) fn again(role: &str) -> Program {
    start(env::current_exe().unwrap(), role)
}

/// The same with a copy of the binary at another place.
pub(crate) fn start(exe: PathBuf, role: &str) -> Program {
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main").expect("a test thread, named after its test");
    Program::new(exe).args(["--exact", test, "--nocapture"]).env(VARIABLE, role)
}
