//! What services provide to each other.

use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use http_server::{Caller, Problem};
use service::Service;

use super::*;

/// A service that provides a value, or vouches for callers.
struct Provider {
    name: &'static str,
    vouches: bool,
}

#[derive(Debug)]
struct Stock;

#[derive(Debug)]
struct Nobody;

impl Vouch for Nobody {
    fn caller<'a>(&'a self, _token: &'a str) -> BoxFuture<'a, Result<Option<Caller>, Problem>> {
        async { Ok(None) }.boxed()
    }
}

impl Service for Provider {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<Opened, OpenError>> {
        async {
            if self.vouches {
                return Ok(Opened { vouch: Some(Arc::new(Nobody)), ..Opened::default() });
            }
            context.provide(Stock)?;
            Ok(Opened::default())
        }
        .boxed_local()
    }
}

const SHOP: Provider = Provider { name: "shop", vouches: false };
const DROPS: Provider = Provider { name: "drops", vouches: false };
const LDAP: Provider = Provider { name: "ldap", vouches: true };
const MESH: Provider = Provider { name: "mesh", vouches: true };

#[tokio::test]
async fn a_service_that_needs_one_that_is_not_in_the_list_fails_the_start() {
    assert!(open(Services(&[&outbox::Wiring, &account::Wiring, &entitlement::Wiring]), "").await.is_ok());
    let failed = open(Services(&[&outbox::Wiring, &entitlement::Wiring]), "").await.unwrap_err();
    assert_eq!(
        failed.to_string(),
        "the service \"entitlement\" needs account::Accounts, which no service before it in the list of services provides"
    );
}

#[tokio::test]
async fn two_services_that_provide_the_same_type_fail_the_start() {
    let failed = open(Services(&[&SHOP, &DROPS]), "").await.unwrap_err();
    assert!(
        failed.to_string().starts_with("playhouse::Stock is provided twice, by \"shop\" and by \"drops\""),
        "{failed}"
    );
}

#[tokio::test]
async fn two_services_that_vouch_for_callers_fail_the_start() {
    let opened = open(Services(&[&SHOP, &LDAP]), "").await.unwrap();
    assert!(opened.vouch.is_some());
    let failed = open(Services(&[&LDAP, &SHOP, &MESH]), "").await.unwrap_err();
    let expected = "dyn http_server::Vouch is provided twice, by \"ldap\" and by \"mesh\"";
    assert!(failed.to_string().starts_with(expected), "{failed}");
}

#[tokio::test]
async fn a_service_has_live_messages_without_any_other() {
    assert!(open(Services(&[&outbox::Wiring, &matchmaking::Wiring]), "").await.is_ok());
}

#[tokio::test]
async fn a_service_starts_its_own_loops() {
    let loops = async |services| format!("{:?}", open(services, "").await.unwrap().loops);
    let of_matchmaking = loops(Services(&[&outbox::Wiring, &matchmaking::Wiring])).await;
    assert!(of_matchmaking.contains("matchmaking-presence"), "{of_matchmaking}");
    let of_notification = loops(Services(&[&outbox::Wiring, &account::Wiring, &notification::Wiring])).await;
    assert!(of_notification.contains("notification-watch"), "{of_notification}");
}
