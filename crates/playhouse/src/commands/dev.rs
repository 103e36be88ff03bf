//! `playhouse dev`

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use ::config::Layers;
use anyhow::Context;

use http_server::{ConfiguredCaller, TokenHash};
use operators::ConfiguredOperator;

use super::token::new_token;
use super::{Misuse, Outcome, TOKEN_VARIABLE, environment, serve, settings, with_set};
use crate::cli::Dev;
use crate::listeners::{Addresses, DevTokens};
use crate::services::SERVICES;
use crate::{REFERENCE, Settings, VERSION, answer};

/// What `dev` decides by itself.
const DECIDED: [(&str, &str); 4] =
    [("db.migrate", "true"), ("hot.url", "memory:"), ("bus.url", "memory:"), ("process.roles", "all")];

/// The file in the data folder that has the token of the operator.
const TOKEN_FILE: &str = "operator-token";

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
    let service = settings.callers.is_empty().then(|| add_demo_caller(&mut settings));
    let token_file = std::path::absolute(data.join(TOKEN_FILE))?;
    let operator = add_operator(&mut settings, &token_file);
    let tokens = DevTokens { service, operator };
    let kept = (!args.ephemeral).then(|| data.display().to_string());
    let print = args.print.print_addresses;
    serve::run_process(settings, move |addresses| {
        // Not before: a second process on the same folder fails to start, and must not replace the token of the first one.
        let written = write_secret(&token_file, &tokens.operator);
        written.with_context(|| format!("cannot write the operator token to {}", token_file.display()))?;
        answer(&if print {
            addresses.to_json(Some(&tokens))
        } else {
            banner(addresses, kept.as_deref(), tokens.service.as_deref())
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

/// Adds an operator, whose token commands of this user find by themselves: in a file that nobody else can read. The token is new at each
/// start, unless the environment has one.
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

/// Writes a file that only its owner can read, from the first byte on.
fn write_secret(file: &Path, secret: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    // One that is there may have been readable for others, and opening it does not change that.
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    writeln!(opened, "{secret}")
}

fn banner(addresses: &Addresses, data: Option<&str>, token: Option<&str>) -> String {
    let data = match data {
        Some(folder) => format!("Data is kept in {folder}/"),
        None => "Nothing is kept.".to_owned(),
    };
    let table = addresses.to_text(token);
    format!("\nPlayhouse {VERSION}, everything in one process. {data}\n\n{table}\n\nCtrl-C stops it.")
}
