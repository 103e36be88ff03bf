//! The wiring of operators and the audit log.

use ::config::Reader;
use db::Migrations;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use service::{Context, Loop, OpenError, Opened, OperatorRoute, Service, Settings};

use crate::audit_log::AuditLog;
use crate::config::Config;
use crate::{MIGRATIONS, api};

/// Operators as a service. Provides [`AuditLog`].
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

    fn read_settings(&self, reader: &mut Reader<'_>, settings: &mut Settings) {
        settings.put(Config::read(reader));
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<Opened, OpenError>> {
        async { open(context) }.boxed_local()
    }
}

fn open(context: &Context) -> Result<Opened, OpenError> {
    let config: &Config = context.settings.get();
    let log = AuditLog::new(context.stores.db.clone(), config.audit_retention);
    context.provide(log.clone())?;
    // In every process, because every process has an admin listener: there is no role to forget.
    let keep = Loop::new("audit-log-keeper", log, |log, drain| async move { log.run(drain).await });
    Ok(Opened { loops: vec![keep], ..Opened::default() })
}
