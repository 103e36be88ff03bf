//! What services provide to each other.

use super::*;

#[tokio::test]
async fn a_service_that_needs_one_that_is_not_in_the_list_fails_the_start() {
    assert!(open(Services(&[&outbox::Wiring, &account::Wiring, &entitlement::Wiring]), "").await.is_ok());
    let failed = open(Services(&[&outbox::Wiring, &entitlement::Wiring]), "").await.unwrap_err();
    assert_eq!(
        failed.to_string(),
        "the service \"entitlement\" needs account::Accounts, which no service before it in the list of services provides"
    );
}
