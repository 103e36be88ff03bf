//! `need!` as a person sees it: through the test runner, which hides what passing tests print.

use testkit::{Error, Stream, need};

use crate::DEADLINE;
use crate::roles::{again, role};

fn in_the_role_of_a_test_without_its_server() {
    let missing = Error::Missing { program: "no-server", remedy: "get one" };
    need!(Err::<(), _>(missing));
    unreachable!("the test was left");
}

#[tokio::test]
async fn a_missing_server_is_skipped_in_the_open() {
    if role().is_some() {
        return in_the_role_of_a_test_without_its_server();
    }
    let test = again("skipped").env("CI", "").start().unwrap();
    assert!(test.wait(DEADLINE).await.success());
    let expected = "SKIPPED it::skip::a_missing_server_is_skipped_in_the_open: \
                    no-server is not on the PATH; get one\n";
    assert_eq!(test.text(Stream::Stderr), expected);
}

#[tokio::test]
async fn a_missing_server_fails_in_ci() {
    if role().is_some() {
        return in_the_role_of_a_test_without_its_server();
    }
    let test = again("failed").env("CI", "true").start().unwrap();
    assert!(!test.wait(DEADLINE).await.success());
    let said = test.text(Stream::Stderr);
    assert!(said.contains("a_missing_server_fails_in_ci: no-server is not on the PATH; get one"), "{said}");
}
