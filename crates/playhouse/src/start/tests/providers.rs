//! Values that services provide to each other.

use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use http_server::{Caller, Problem};
use service::Service;

use super::*;

/// A service that provides a value, or a caller verifier.
struct Provider {
    name: &'static str,
    verifies: bool,
}

#[derive(Debug)]
struct Stock;

#[derive(Debug)]
struct RefusingVerifier;

impl CallerVerifier for RefusingVerifier {
    fn caller<'a>(&'a self, _token: &'a str) -> BoxFuture<'a, Result<Option<Caller>, Problem>> {
        async { Ok(None) }.boxed()
    }
}

impl Service for Provider {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        async {
            if self.verifies {
                return Ok(ServiceParts {
                    caller_verifier: Some(Arc::new(RefusingVerifier)),
                    ..ServiceParts::default()
                });
            }
            context.provide(Stock)?;
            Ok(ServiceParts::default())
        }
        .boxed_local()
    }
}

const SHOP: Provider = Provider { name: "shop", verifies: false };
const DROPS: Provider = Provider { name: "drops", verifies: false };
const LDAP: Provider = Provider { name: "ldap", verifies: true };
const MESH: Provider = Provider { name: "mesh", verifies: true };

#[tokio::test]
async fn missing_dependency_of_a_service_fails_the_start() {
    assert!(
        open(Services(&[&jobs::Wiring, &outbox::Wiring, &account::Wiring, &entitlement::Wiring]), "")
            .await
            .is_ok()
    );
    let failed =
        open(Services(&[&jobs::Wiring, &outbox::Wiring, &entitlement::Wiring]), "").await.unwrap_err();
    assert_eq!(
        failed.to_string(),
        "the service \"entitlement\" needs account::Accounts, which no service before it in the list of services provides"
    );
}

#[tokio::test]
async fn type_provided_twice_fails_the_start() {
    let failed = open(Services(&[&SHOP, &DROPS]), "").await.unwrap_err();
    assert!(
        failed.to_string().starts_with("playhouse::Stock is provided twice, by \"shop\" and by \"drops\""),
        "{failed}"
    );
}

#[tokio::test]
async fn two_caller_verifiers_fail_the_start() {
    let opened = open(Services(&[&SHOP, &LDAP]), "").await.unwrap();
    assert!(opened.caller_verifier.is_some());
    let failed = open(Services(&[&LDAP, &SHOP, &MESH]), "").await.unwrap_err();
    let expected = "dyn http_server::CallerVerifier is provided twice, by \"ldap\" and by \"mesh\"";
    assert!(failed.to_string().starts_with(expected), "{failed}");
}

#[tokio::test]
async fn service_has_live_messages_without_other_services() {
    assert!(open(Services(&[&jobs::Wiring, &outbox::Wiring, &matchmaking::Wiring]), "").await.is_ok());
}

#[tokio::test]
async fn service_starts_its_own_loops() {
    let loops = async |services| format!("{:?}", open(services, "").await.unwrap().loops);
    let of_matchmaking = loops(Services(&[&jobs::Wiring, &outbox::Wiring, &matchmaking::Wiring])).await;
    assert!(of_matchmaking.contains("matchmaking-presence"), "{of_matchmaking}");
    let of_notification =
        loops(Services(&[&jobs::Wiring, &outbox::Wiring, &account::Wiring, &notification::Wiring])).await;
    assert!(of_notification.contains("notification-watch"), "{of_notification}");
}
