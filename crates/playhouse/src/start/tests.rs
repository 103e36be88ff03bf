//! Starts of a process with lists of services that exist only in tests.

mod player_routes;
mod providers;
mod stop_order;

use std::path::Path;
use std::time::Duration;

use runtime::Metrics;
use serde_json::json;
use tempfile::TempDir;
use url::Url;

use super::*;
use crate::settings::reference_layers;

const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the settings of a process with embedded stores and `file`, and the folder of its database.
fn settings(file: &str) -> (Settings, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let db = format!("[db]\nurl = \"sqlite:{}/play.db\"\nmigrate = true\n", folder.path().display());
    let layers = reference_layers().with_file_text(Path::new("play.toml"), &format!("{db}{file}"));
    (config::load(layers).unwrap().config, folder)
}

/// Opens a list of services on embedded stores.
async fn open(services: Services, file: &str) -> Result<ServiceParts, OpenError> {
    let (settings, _folder) = settings(file);
    let mut process = Process::new(settings.lifecycle.clone(), Metrics::new(VERSION));
    let (connector, provided) =
        (StoreConnector { timeout: settings.lifecycle.start_timeout }, Provided::default());
    let clock = Clock::system();
    let stores = OpenStores::open(&mut process, &settings, connector, &clock).await;
    let url = Url::parse("http://127.0.0.1:8080").unwrap();
    let mut context = Context {
        process: ProcessId::generate(),
        version: VERSION,
        clock,
        stores: stores.unwrap().stores,
        settings: settings.shared,
        metrics: process.metrics().clone(),
        readiness: process.readiness().clone(),
        connector,
        admin: ([127, 0, 0, 1], 1).into(),
        gateway: Some(GatewayListener { url, openapi: |_| json!({}) }),
        services,
        provided,
        opening: "",
    };
    open_services(&mut context).await
}
