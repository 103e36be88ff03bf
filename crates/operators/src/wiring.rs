//! The wiring of operators and the audit log.

use ::config::Reader;
use db::Migrations;
use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use screens::{Step, Subject};
use service::{
    Context, Loop, OpenError, OperatorRoute, Provided, Screen, Service, ServiceParts, Settings, StatusError,
};

use crate::audit_log::AuditLog;
use crate::config::Config;
use crate::sessions::ConsoleSessions;
use crate::{MIGRATIONS, api, console, steps};

/// Operators as a service. Provides [`AuditLog`] and [`ConsoleSessions`].
#[derive(Clone, Copy, Debug)]
pub struct Wiring;

impl Service for Wiring {
    fn name(&self) -> &'static str {
        "operators"
    }

    fn migrations(&self) -> Option<Migrations> {
        Some(MIGRATIONS)
    }

    fn operator_routes(&self) -> Vec<OperatorRoute> {
        api::operator_routes()
    }

    fn screens(&self) -> Vec<Screen> {
        console::screens()
    }

    fn steps<'a>(
        &'a self,
        provided: &'a Provided,
        subject: &'a Subject,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<Step>, StatusError>> {
        async move {
            match provided.find::<AuditLog>() {
                Some(log) => Ok(steps::steps(&log, subject, limit).await?),
                None => Ok(Vec::new()),
            }
        }
        .boxed()
    }

    fn read_settings(&self, reader: &mut Reader<'_>, settings: &mut Settings) {
        settings.put(Config::read(reader));
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        async { open(context) }.boxed_local()
    }
}

fn open(context: &Context) -> Result<ServiceParts, OpenError> {
    let config: &Config = context.settings.get();
    let log = AuditLog::new(context.stores.db.clone(), config.audit_retention);
    context.provide(log.clone())?;
    let trusted = &context.settings.listen.limits.trusted_proxies;
    let sessions = ConsoleSessions::new(context.stores.db.clone(), config, log.clone(), trusted);
    context.provide(sessions.clone())?;
    // Runs in every process, because every process has an admin listener.
    let clean = Loop::new("audit-log-cleaner", log, |log, drain| async move { log.run(drain).await });
    let expire =
        Loop::new(
            "console-session-cleaner",
            sessions,
            |sessions, drain| async move { sessions.run(drain).await },
        );
    Ok(ServiceParts { loops: vec![clean, expire], ..ServiceParts::default() })
}
