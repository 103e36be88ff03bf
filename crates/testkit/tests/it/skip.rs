//! `need!` under the test runner, which hides the output of passing tests.

use testkit::{Error, OutputStream, need};

use crate::DEADLINE;
use crate::roles::{again, role};

const MISSING: Error = Error::Missing { program: "no-server", remedy: "get one" };

#[tokio::test]
async fn missing_server_skips_the_test_visibly() {
    if role().is_some() {
        need!(Err::<(), _>(MISSING));
        unreachable!("the test has returned");
    }
    let test = again!("skipped").env("CI", "").start().unwrap();
    assert!(test.wait(DEADLINE).await.success());
    let expected = "SKIPPED it::skip::missing_server_skips_the_test_visibly: \
                    no-server is not on the PATH; get one\n";
    assert_eq!(test.text(OutputStream::Stderr), expected);
}

#[tokio::test]
async fn missing_server_fails_in_ci() {
    if role().is_some() {
        need!(Err::<(), _>(MISSING));
        unreachable!("the test has returned");
    }
    let test = again!("failed").env("CI", "true").start().unwrap();
    assert!(!test.wait(DEADLINE).await.success());
    let output = test.text(OutputStream::Stderr);
    assert!(output.contains("missing_server_fails_in_ci: no-server is not on the PATH; get one"), "{output}");
}
