//! `playhouse simulate`

use std::collections::HashSet;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use base::Clock;
use config::Layers;
use http_server::TokenHash;
use runtime::lifecycle::Signals;
use simulator::scenario::{self, BUILTIN};
use simulator::{Options, Payments, ProcessPlan, Processes, Scenario, SignIn, Target};
use tokio::sync::watch;

use super::admin::AdminClient;
use super::token::new_token;
use super::{ExitStatus, UsageError, layers, settings};
use crate::cli::Simulate;
use crate::print;

/// The question that the page of the report answers.
const QUESTION: &str = "Did every player get what they were promised?";
/// The path of the demo checkout, which only `playhouse dev` has.
const DEMO_CHECKOUT: &str = "/demo/checkout";

pub(super) async fn run(args: Simulate) -> anyhow::Result<ExitStatus> {
    if args.list {
        let lines = BUILTIN.map(|(name, text)| format!("{name:<16} {}", about(text)));
        print(&lines.join("\n"))?;
        return Ok(ExitStatus::Done);
    }
    if let Some(name) = &args.print {
        print(scenario::with_all_keys(builtin(name)?).trim_end())?;
        return Ok(ExitStatus::Done);
    }
    let scenario = read(&args)?;
    let mut signals = Signals::listen()?;
    let (stop, stopped) = watch::channel(false);
    tokio::select! {
        ended = simulate(args, scenario, stopped) => ended,
        // Ends the processes of --processes, too: they are dropped with the simulation.
        signal = second(&mut signals, &stop) => bail!("{signal} again: stopped at once, and nothing was read back"),
    }
}

/// Stops the run at the first signal. Returns the second one.
async fn second(signals: &mut Signals, stop: &watch::Sender<bool>) -> &'static str {
    let signal = signals.next().await;
    // Nobody is helped by a simulation that goes on because this cannot be written.
    let _ = writeln!(
        io::stderr(),
        "{signal}: the players stop, and what they saw is checked. Again to stop at once."
    );
    stop.send_replace(true);
    signals.next().await
}

async fn simulate(
    args: Simulate,
    scenario: Scenario,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<ExitStatus> {
    let seed = args.seed.unwrap_or_else(|| u64::from(uuid::Uuid::new_v4().as_fields().0));
    let prepared = tokio::select! {
        prepared = prepare(&args, &scenario) => prepared?,
        Ok(_) = stop.wait_for(|is_stopped| *is_stopped) => bail!("stopped before a player arrived"),
    };
    let (target, processes) = prepared;
    let (faults, kept) = if args.faults { (processes, None) } else { (None, processes) };
    let options =
        Options { scenario, name: args.scenario.clone(), seed, clock: Clock::system(), stop, faults };
    let report = simulator::run(options, target).await?;
    drop(kept);
    if let Some(file) = &args.json {
        write(file, &format!("{:#}\n", report.to_json()))?;
    }
    if let Some(file) = &args.html {
        let title = format!("Simulation of {}", report.name);
        write(file, &console::standalone_page(&title, QUESTION, &report.to_view()))?;
    }
    print(&report.to_string())?;
    Ok(match (report.is_clean(), report.is_interrupted()) {
        (false, _) => ExitStatus::Failed,
        (true, true) => ExitStatus::CutOff,
        (true, false) => ExitStatus::Done,
    })
}

/// Starts processes, or finds the running instance.
async fn prepare(args: &Simulate, scenario: &Scenario) -> anyhow::Result<(Target, Option<Processes>)> {
    Ok(match args.processes {
        Some(count) => {
            let (processes, target) = start(args, count).await?;
            (target, Some(processes))
        }
        None => (find(args, scenario).await?, None),
    })
}

/// Returns the first sentence of a scenario's comment.
fn about(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim_start_matches("# ")
}

fn builtin(name: &str) -> anyhow::Result<&'static str> {
    let found = BUILTIN.iter().find(|(known, _)| *known == name);
    let Some((_, text)) = found else {
        let names: Vec<&str> = BUILTIN.iter().map(|(name, _)| *name).collect();
        let what =
            format!("there is no scenario {name:?}; choose one of {}, or name a file", names.join(", "));
        return Err(UsageError(what).into());
    };
    Ok(text)
}

/// Reads the scenario: a file if there is one of that name, or one of the program.
fn read(args: &Simulate) -> anyhow::Result<Scenario> {
    let path = Path::new(&args.scenario);
    let layers: Layers = if path.is_file() {
        let cannot = |error| UsageError(format!("cannot read {}: {error}", path.display()));
        scenario::layers().with_file(path).map_err(cannot)?
    } else {
        scenario::layers().with_file_text(path, builtin(&args.scenario)?)
    };
    let layers = args.with.iter().fold(layers, |layers, (key, value)| layers.with_flag("--with", key, value));
    let players = args.players.map(|players| players.to_string());
    let layers =
        players.into_iter().fold(layers, |layers, players| layers.with_flag("--players", "players", players));
    Ok(config::load::<Scenario>(layers)?.config)
}

/// Finds the running instance, and how to sign in and pay there.
async fn find(args: &Simulate, scenario: &Scenario) -> anyhow::Result<Target> {
    // First, because a mistake in a file needs no instance to be found.
    let sign_in = match &args.tokens {
        None => SignIn::Builtin,
        Some(file) => SignIn::Tokens(read_tokens(file, scenario.players)?),
    };
    let admin = AdminClient::new(args.admin.as_deref(), &args.from, &args.operator)?;
    let operator_token = admin.token().await?;
    let gateways = if args.gateway.is_empty() {
        vec![format!("http://{}", settings(layers(&args.from)?)?.config.shared.listen.gateway)]
    } else {
        args.gateway.iter().map(|given| with_scheme(given)).collect()
    };
    let payments = match &args.payment_secret_file {
        Some(file) => {
            let text =
                std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            let secrets = webhook::Secrets::new([text.trim()]);
            Payments::Webhooks(secrets.with_context(|| format!("{} has no webhook secret", file.display()))?)
        }
        None if scenario.drop.share <= 0.0 => Payments::None,
        None => demo_checkout(&gateways[0]).await?,
    };
    Ok(Target { gateways, admins: vec![admin.url().to_owned()], operator_token, sign_in, payments })
}

/// Reads an access token for each player. Players who share one would get each other's orders and notifications, which no check can tell
/// apart.
fn read_tokens(file: &Path, players: u32) -> anyhow::Result<Arc<[String]>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let tokens: Vec<String> = text.split_whitespace().map(ToOwned::to_owned).collect();
    let different: HashSet<&str> = tokens.iter().map(String::as_str).collect();
    if different.len() < tokens.len() {
        let again = base::counted((tokens.len() - different.len()) as u64, "token");
        bail!("{} repeats {again}: each line must have the token of a different player", file.display());
    }
    if tokens.len() < players as usize {
        let (has, needs) =
            (base::counted(tokens.len() as u64, "access token"), base::counted(u64::from(players), "player"));
        bail!(
            "{} has {has} for {needs}: write one per line and player, or run fewer players with --players {}",
            file.display(),
            tokens.len().max(1)
        );
    }
    Ok(tokens.into())
}

/// Returns how players pay at `playhouse dev`. Fails if the instance is another one.
async fn demo_checkout(gateway: &str) -> anyhow::Result<Payments> {
    let response = reqwest::get(format!("{gateway}{DEMO_CHECKOUT}")).await;
    let response = response.with_context(|| {
        format!("no gateway answers at {gateway}. Start `playhouse dev`, or give the address with --gateway")
    })?;
    if response.status() == reqwest::StatusCode::NOT_FOUND {
        bail!(
            "{gateway} has no demo checkout, so players cannot pay. Give the secret of drops.payments.secrets with \
             --payment-secret-file, or leave the drop out with --with drop.share=0"
        );
    }
    Ok(Payments::DemoCheckout)
}

fn with_scheme(address: &str) -> String {
    let address = address.trim_end_matches('/');
    if address.contains("://") { address.to_owned() } else { format!("http://{address}") }
}

/// Starts processes on the stores of the configuration.
async fn start(args: &Simulate, count: u8) -> anyhow::Result<(Processes, Target)> {
    let Some(config) = args.from.config.clone() else {
        let what = "--processes needs --config FILE with the URLs of the stores: several processes cannot share embedded ones";
        return Err(UsageError(what.to_owned()).into());
    };
    // The processes trust the simulator's issuer, whose address is not known yet.
    let layers = layers(&args.from)?.with_flag("--processes", "identity.issuer", "http://127.0.0.1/issuer");
    let identity = settings(layers)?.config.shared.get::<oidc::Config>().clone();
    let operator_token = new_token();
    let plan = ProcessPlan {
        program: simulator::this_program()?,
        count: usize::from(count.max(1)),
        config,
        identity,
        clock: Clock::system(),
        operator_hash: TokenHash::of(&operator_token).to_string(),
        operator_token,
    };
    Ok(Processes::start(plan).await?)
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
