//! The wiring of the screen.

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use matchmaking::Players;
use oidc::builtin::Builtin;
use service::{ConsoleConfig, Context, OpenError, OperatorRoute, Screen, Service, ServiceParts};

use crate::events::Events;
use crate::tools::{Addresses, IS_OFF, NEEDS_BUILTIN_ISSUER, Tools};
use crate::{TryIt, admin, console};

/// The screen "Try it" as a service. Other services use nothing of it.
#[derive(Clone, Copy, Debug)]
pub struct Wiring;

impl Service for Wiring {
    fn name(&self) -> &'static str {
        "try-it"
    }

    fn operator_routes(&self) -> Vec<OperatorRoute> {
        admin::operator_routes()
    }

    fn screens(&self) -> Vec<Screen> {
        console::screens()
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        async {
            context.provide(open(context)?)?;
            Ok(ServiceParts::default())
        }
        .boxed_local()
    }
}

fn open(context: &Context) -> Result<TryIt, OpenError> {
    let ConsoleConfig { try_it } = *context.settings.get();
    if !try_it {
        return Ok(TryIt::refused(IS_OFF));
    }
    // Both exist only in a process with the role gateway.
    let issuer = context.provided.find::<Builtin>();
    let (Some(issuer), Some(players), Some(gateway)) =
        (issuer, context.provided.find::<Players>(), &context.gateway)
    else {
        return Ok(TryIt::refused(NEEDS_BUILTIN_ISSUER));
    };
    let gateway = gateway.url.as_str().trim_end_matches('/').to_owned();
    let events =
        Events { db: context.stores.db.clone(), outbox: context.get()?, clock: context.clock.clone() };
    Ok(TryIt::on(Tools {
        issuer,
        accounts: context.get()?,
        entitlements: context.get()?,
        notifications: context.get()?,
        inbox: context.get()?,
        players,
        drops: context.get()?,
        events,
        addresses: Addresses { gateway, admin: context.admin },
    }))
}
