//! `need!` as a person sees it: through the test runner, which hides what passing tests print.

use testkit::{Error, Stream, need};

use crate::DEADLINE;
use crate::roles::{again, role};

const MISSING: Error = Error::Missing { program: "no-server", remedy: "get one" };

#[tokio::test]
async fn a_missing_server_is_skipped_in_the_open() {
    if role().is_some() {
        need!(Err::<(), _>(MISSING));
        unreachable!("the test was left");
    }
    let test = again!("skipped").env("CI", "").start().unwrap();
    assert!(test.wait(DEADLINE).await.success());
    let expected = "SKIPPED it::skip::a_missing_server_is_skipped_in_the_open: \
                    no-server is not on the PATH; get one\n";
    assert_eq!(test.text(Stream::Stderr), expected);
}

#[tokio::test]
async fn a_missing_server_fails_in_ci() {
    if role().is_some() {
        need!(Err::<(), _>(MISSING));
        unreachable!("the test was left");
    }
    let test = again!("failed").env("CI", "true").start().unwrap();
    assert!(!test.wait(DEADLINE).await.success());
    let said = test.text(Stream::Stderr);
    assert!(said.contains("a_missing_server_fails_in_ci: no-server is not on the PATH; get one"), "{said}");
}
