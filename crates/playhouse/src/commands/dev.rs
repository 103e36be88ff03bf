//! `playhouse dev`

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::config::Layers;
use anyhow::Context;

use http_server::{ConfiguredCaller, TokenHash};
use operators::ConfiguredOperator;
use runtime::Process;

use super::demo::{Demo, Receiver};
use super::game_server::Duels;
use super::token::new_token;
use super::{ExitStatus, TOKEN_VARIABLE, UsageError, environment, serve, settings, with_set};
use crate::cli::Dev;
use crate::listeners::{Addresses, DevTokens};
use crate::services::SERVICES;
use crate::settings::reference_layers;
use crate::{Settings, VERSION, print};

/// The settings that `playhouse dev` fixes.
const FIXED: [(&str, &str); 4] =
    [("db.migrate", "true"), ("redis.url", "memory:"), ("bus.url", "memory:"), ("process.roles", "all")];

/// The file in the data folder that holds the operator token.
const TOKEN_FILE: &str = "operator-token";

/// The file beside it that holds the token of the service `dev`.
const SERVICE_TOKEN_FILE: &str = "service-token";

/// The folder in the data folder that holds results of games until they are reported.
const RESULTS: &str = "game-results";

pub(super) fn run(args: Dev) -> anyhow::Result<ExitStatus> {
    let is_fixed = |key: &str| key == "db.url" || FIXED.iter().any(|(fixed, _)| *fixed == key);
    if let Some((key, _)) = args.set.set.iter().find(|(key, _)| is_fixed(key)) {
        let what =
            format!("`playhouse dev` uses embedded stores, so you cannot set {key}; use `playhouse serve`");
        return Err(UsageError(what).into());
    }
    let temporary =
        args.ephemeral.then(tempfile::tempdir).transpose().context("cannot create a temporary folder")?;
    let data = temporary.as_ref().map_or(args.data.as_path(), |folder| folder.path());
    let receiver =
        args.demo.then(Receiver::bind).transpose().context("cannot open the webhook receiver of --demo")?;
    let duels = Duels::bind().context("cannot open the game server")?;
    let layers = duels.add_to(layers(&args, data)?);
    let layers = receiver.iter().fold(layers, |layers, receiver| receiver.add_to(layers));
    let mut settings = settings(layers)?.config;
    SERVICES.iter().for_each(|service| service.prepare_dev(&mut settings.shared));
    duels.add_to_matchmaking(&mut settings)?;
    let results = data.join(RESULTS);
    let service = settings.callers.is_empty().then(|| add_demo_caller(&mut settings));
    let token_file = std::path::absolute(data.join(TOKEN_FILE))?;
    let game_server = duels.add_caller(&mut settings);
    let operator = add_operator(&mut settings, &token_file);
    let tokens = DevTokens { service, operator };
    let kept = (!args.ephemeral).then(|| data.display().to_string());
    let as_json = args.print.print_addresses;
    serve::run_process(settings, move |process, addresses| {
        // Only after the start: a second process on the same folder fails to start and must not replace the first one's tokens.
        write_secret(&token_file, Some(&tokens.operator))?;
        write_secret(&token_file.with_file_name(SERVICE_TOKEN_FILE), tokens.service.as_deref())?;
        duels.start(process, addresses, game_server, results)?;
        if let Some(receiver) = receiver {
            start_demo(process, receiver, addresses, &tokens);
        }
        print(&if as_json { addresses.to_json(Some(&tokens)) } else { banner(addresses, kept.as_deref()) })
    })
}

/// Starts the traffic of `--demo`.
fn start_demo(process: &mut Process, receiver: Receiver, addresses: &Addresses, tokens: &DevTokens) {
    let receiver = Arc::new(receiver);
    process.supervise("demo-webhooks", move |drain| {
        let receiver = Arc::clone(&receiver);
        async move { receiver.run(drain).await }
    });
    match Demo::new(addresses, tokens) {
        Some(demo) => process.supervise("demo-traffic", move |drain| {
            let demo = demo.clone();
            async move { demo.run(drain).await }
        }),
        None => {
            tracing::warn!("--demo makes no traffic, because services are configured: it needs its own token")
        }
    }
}

/// Returns the layers, with embedded stores whatever the environment says.
fn layers(args: &Dev, data: &Path) -> anyhow::Result<Layers> {
    // Normalises the path, because two leading slashes mean something else in a URL.
    let file: PathBuf = data.join("playhouse.db").components().collect();
    let file =
        file.to_str().ok_or_else(|| UsageError(format!("--data: {} is not valid UTF-8", data.display())))?;
    // The banner is all that a newcomer should see; `--set telemetry.log=info` shows the log.
    let layers = reference_layers().with_default("telemetry.log", "warn");
    // `playhouse simulate` gives each of its players an address of their own.
    let layers = layers.with_default("listen.trusted_proxies", "127.0.0.0/8,::1").with_env(environment()?);
    let layers = with_set(layers, &args.set).with_flag("--data", "db.url", format!("sqlite:{file}"));
    let layers =
        FIXED.iter().fold(layers, |layers, (key, value)| layers.with_flag("playhouse dev", key, *value));
    let ports = [
        ("--gateway-port", "listen.gateway", args.gateway_port),
        ("--service-api-port", "listen.service_api", args.service_api_port),
        ("--admin-port", "listen.admin", args.admin_port),
        ("--open-match-port", "listen.open_match", args.open_match_port),
    ];
    Ok(ports.into_iter().fold(layers, |layers, (flag, key, port)| match port {
        Some(port) => layers.with_flag(flag, key, format!("127.0.0.1:{port}")),
        None => layers,
    }))
}

/// Adds a caller of the service API with all rights. Returns its token, which is new at each start.
fn add_demo_caller(settings: &mut Settings) -> String {
    let token = new_token();
    let caller = ConfiguredCaller { token_hash: TokenHash::of(&token), may: SERVICES.rights() };
    settings.callers.insert("dev".to_owned(), caller);
    token
}

/// Adds an operator and returns its token: the one in the environment, or a new one at each start.
fn add_operator(settings: &mut Settings, token_file: &Path) -> String {
    let given = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.trim().is_empty());
    let token = given.map_or_else(new_token, |token| token.trim().to_owned());
    let mut config = settings.shared.get::<operators::Config>().clone();
    let operator = ConfiguredOperator { token_hash: TokenHash::of(&token), read_only: false };
    config.operators.insert("dev".to_owned(), operator);
    config.token_file = Some(token_file.to_owned());
    settings.shared.put(config);
    token
}

/// Writes a file that is readable by its owner alone from the first byte on. Without a secret, removes the one of an earlier start.
fn write_secret(file: &Path, secret: Option<&str>) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        // An existing file may be readable by others, and opening it would not change its mode.
        match std::fs::remove_file(file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let Some(secret) = secret else { return Ok(()) };
        let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
        writeln!(opened, "{secret}")
    };
    write().with_context(|| format!("cannot write the token file {}", file.display()))
}

fn banner(addresses: &Addresses, data: Option<&str>) -> String {
    let data = match data {
        Some(folder) => format!("Data is in {folder}/"),
        None => "Data is removed at the end.".to_owned(),
    };
    let links = addresses.to_text();
    format!("\nPlayhouse {VERSION}, everything in one process. {data}\n\n{links}\n\nCtrl-C stops it.")
}
