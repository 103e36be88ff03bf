//! The wiring of the console.

use ::config::Reader;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use service::{
    ConsoleConfig, Context, Loop, OpenError, OperatorRoute, RouteMethod, Screen, Service, ServiceParts,
    Services, Settings,
};

use crate::config::Config;
use crate::registry::Console;
use crate::trace::Tracer;
use crate::{actions, live, pages, sign_in, trace};

/// The console as a service.
#[derive(Clone, Copy, Debug)]
pub struct Wiring;

impl Service for Wiring {
    fn name(&self) -> &'static str {
        "console"
    }

    fn operator_routes(&self) -> Vec<OperatorRoute> {
        let own = [
            OperatorRoute::page("/console/action", actions::form),
            OperatorRoute::form("/console/actions", actions::submit),
            OperatorRoute::page("/console/live", live::stream),
            OperatorRoute::public_page(RouteMethod::Get, "/console/assets/{name}", pages::asset),
        ];
        own.into_iter().chain(trace::routes()).chain(sign_in::routes()).collect()
    }

    fn screens(&self) -> Vec<Screen> {
        vec![trace::screen()]
    }

    fn read_settings(&self, reader: &mut Reader<'_>, settings: &mut Settings) {
        put(settings, reader.section("console"));
    }

    fn prepare_dev(&self, settings: &mut Settings) {
        let config: &Config = settings.get();
        let config = Config { try_it: true, ..config.clone() };
        put(settings, config);
    }

    fn open<'a>(&'a self, context: &'a mut Context) -> LocalBoxFuture<'a, Result<ServiceParts, OpenError>> {
        async { open(context) }.boxed_local()
    }
}

/// Stores the settings, for the console and for the services that follow them.
fn put(settings: &mut Settings, config: Config) {
    settings.put(ConsoleConfig { try_it: config.try_it });
    settings.put(config);
}

/// Returns the pages of all screens.
pub fn routes(services: Services) -> Vec<OperatorRoute> {
    services.screens().into_iter().map(|screen| OperatorRoute::page(screen.path, pages::screen)).collect()
}

fn open(context: &Context) -> Result<ServiceParts, OpenError> {
    let config: &Config = context.settings.get();
    let origin = config.origin(context.admin);
    let console = Console::new(config.clone(), context.services, context.provided.clone(), origin);
    context.provide(console.clone())?;
    context.provide(Tracer::new(context.services, context.provided.clone()))?;
    let live = Loop::new("console-live", console, live::run);
    Ok(ServiceParts { loops: vec![live], ..ServiceParts::default() })
}
