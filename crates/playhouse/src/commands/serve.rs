//! `playhouse serve`, and what it shares with `playhouse dev`.

use base::id::ProcessId;
use base::{Clock, error};
use runtime::lifecycle::{Exit, Forced, Signals};
use runtime::telemetry::Telemetry;
use runtime::{Metrics, Process};

use super::{Outcome, layers, settings};
use crate::cli::Serve;
use crate::listeners::{Addresses, Sockets};
use crate::services::SERVICES;
use crate::start::{Start, StartError};
use crate::{Settings, VERSION, answer};

pub(super) fn run(args: Serve) -> anyhow::Result<Outcome> {
    let mut layers = layers(&args.from)?;
    if let Some(roles) = args.roles {
        layers = layers.with_flag("--roles", "process.roles", roles);
    }
    let settings = settings(layers)?.config;
    let print = args.print.print_addresses;
    run_process(settings, |addresses| if print { answer(&addresses.to_json(None)) } else { Ok(()) })
}

/// Runs a process until it is told to stop. `announce` is called once everything answers.
pub(super) fn run_process(
    settings: Settings,
    announce: impl FnOnce(&Addresses) -> anyhow::Result<()>,
) -> anyhow::Result<Outcome> {
    let id = ProcessId::generate();
    let telemetry = Telemetry::start(&settings.telemetry, id, VERSION)?;
    let runtime = super::runtime()?;
    let exit = runtime.block_on(async {
        let signals = Signals::listen()?;
        let sockets = match Sockets::bind(&settings).await {
            Ok(sockets) => sockets,
            Err(error) => return Ok(Exit::StartFailed(StartError::Bind(error))),
        };
        let addresses = sockets.addresses()?;
        let metrics = Metrics::new(VERSION);
        let process = Process::new(settings.lifecycle.clone(), metrics);
        let start = Start { id, clock: Clock::system(), settings, sockets, services: SERVICES };
        let exit = process.run(signals, async |process| {
            start.run(process).await?;
            announce(&addresses).map_err(StartError::Announce)
        });
        anyhow::Ok(exit.await)
    })?;
    // What was cut off is not waited for.
    runtime.shutdown_background();
    let outcome = report(&exit);
    // At once means at once.
    if !matches!(exit, Exit::Forced(Forced::SecondSignal)) {
        telemetry.stop();
    }
    Ok(outcome)
}

fn report(exit: &Exit<StartError>) -> Outcome {
    match exit {
        Exit::Clean => {
            tracing::info!("stopped");
            Outcome::Done
        }
        Exit::StartFailed(cause) => {
            tracing::error!(cause = error::chain(cause), "cannot start");
            Outcome::Failed
        }
        Exit::PartEnded(part) => {
            tracing::error!(part, "stopped because a part ended");
            Outcome::Failed
        }
        Exit::Forced(forced) => {
            match forced {
                Forced::SecondSignal => tracing::warn!("{forced}"),
                Forced::GraceOver(_) => tracing::error!("{forced}"),
            }
            Outcome::CutOff
        }
    }
}
