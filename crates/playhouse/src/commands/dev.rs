//! `playhouse dev`

use std::path::{Path, PathBuf};

use ::config::Layers;
use anyhow::Context;

use http_server::{ConfiguredCaller, TokenHash};

use super::token::new_token;
use super::{Misuse, Outcome, environment, serve, settings, with_set};
use crate::cli::Dev;
use crate::listeners::Addresses;
use crate::services::SERVICES;
use crate::{REFERENCE, Settings, VERSION, answer};

/// What `dev` decides by itself.
const DECIDED: [(&str, &str); 4] =
    [("db.migrate", "true"), ("hot.url", "memory:"), ("bus.url", "memory:"), ("process.roles", "all")];

pub(super) fn run(args: Dev) -> anyhow::Result<Outcome> {
    let decided = |key: &str| key == "db.url" || DECIDED.iter().any(|(decided, _)| *decided == key);
    if let Some((key, _)) = args.set.set.iter().find(|(key, _)| decided(key)) {
        let what = format!("`playhouse dev` decides {key} by itself; use `playhouse serve` to choose it");
        return Err(Misuse(what).into());
    }
    let temporary =
        args.ephemeral.then(tempfile::tempdir).transpose().context("cannot make a temporary folder")?;
    let data = temporary.as_ref().map_or(args.data.as_path(), |folder| folder.path());
    let mut settings = settings(layers(&args, data)?)?.config;
    SERVICES.iter().for_each(|service| service.prepare_dev(&mut settings.shared));
    let token = settings.callers.is_empty().then(|| add_demo_caller(&mut settings));
    let kept = (!args.ephemeral).then(|| data.display().to_string());
    let print = args.print.print_addresses;
    serve::run_process(settings, move |addresses| {
        answer(&if print {
            addresses.to_json(token.as_deref())
        } else {
            banner(addresses, kept.as_deref(), token.as_deref())
        })
    })
}

/// Embedded stores, whatever the environment says: that is what `dev` is.
fn layers(args: &Dev, data: &Path) -> anyhow::Result<Layers> {
    // By its components, because two leading slashes mean something else in a URL.
    let file: PathBuf = data.join("playhouse.db").components().collect();
    let file =
        file.to_str().ok_or_else(|| Misuse(format!("--data: {} is not valid UTF-8", data.display())))?;
    // The banner is what a newcomer should see; `--set telemetry.log=info` brings the rest.
    let layers = Layers::new(REFERENCE).with_default("telemetry.log", "warn").with_env(environment()?);
    let layers = with_set(layers, &args.set).with_flag("--data", "db.url", format!("sqlite:{file}"));
    let layers =
        DECIDED.iter().fold(layers, |layers, (key, value)| layers.with_flag("playhouse dev", key, *value));
    let ports = [
        ("--gateway-port", "listen.gateway", args.gateway_port),
        ("--internal-port", "listen.internal", args.internal_port),
        ("--admin-port", "listen.admin", args.admin_port),
        ("--open-match-port", "listen.open_match", args.open_match_port),
    ];
    Ok(ports.into_iter().fold(layers, |layers, (flag, key, port)| match port {
        Some(port) => layers.with_flag(flag, key, format!("127.0.0.1:{port}")),
        None => layers,
    }))
}

/// Adds a caller of the service API to try things with. Returns its token, a new one at each start.
fn add_demo_caller(settings: &mut Settings) -> String {
    let token = new_token();
    let caller = ConfiguredCaller { token_hash: TokenHash::of(&token), may: SERVICES.rights() };
    settings.callers.insert("dev".to_owned(), caller);
    token
}

fn banner(addresses: &Addresses, data: Option<&str>, token: Option<&str>) -> String {
    let data = match data {
        Some(folder) => format!("Data is kept in {folder}/"),
        None => "Nothing is kept.".to_owned(),
    };
    let table = addresses.to_text(token);
    format!("\nPlayhouse {VERSION}, everything in one process. {data}\n\n{table}\n\nCtrl-C stops it.")
}
