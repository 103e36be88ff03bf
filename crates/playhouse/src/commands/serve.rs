//! `playhouse serve`, and the run of a process, which `playhouse dev` shares.

use base::id::ProcessId;
use base::{Clock, error};
use runtime::lifecycle::{Exit, Forced, Signals};
use runtime::telemetry::Telemetry;
use runtime::{Metrics, Process};

use super::{ExitStatus, layers, settings};
use crate::cli::Serve;
use crate::listeners::{Addresses, Sockets};
use crate::services::SERVICES;
use crate::start::{Start, StartError};
use crate::{Settings, VERSION, print};

pub(super) fn run(args: Serve) -> anyhow::Result<ExitStatus> {
    let mut layers = layers(&args.from)?;
    if let Some(roles) = args.roles {
        layers = layers.with_flag("--roles", "process.roles", roles);
    }
    let settings = settings(layers)?.config;
    let as_json = args.print.print_addresses;
    run_process(settings, |_, addresses| if as_json { print(&addresses.to_json(None)) } else { Ok(()) })
}

/// Runs a process until a signal stops it. Calls `announce` once all listeners answer; it may start further loops.
pub(super) fn run_process(
    settings: Settings,
    announce: impl FnOnce(&mut Process, &Addresses) -> anyhow::Result<()>,
) -> anyhow::Result<ExitStatus> {
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
            announce(process, &addresses).map_err(StartError::Announce)
        });
        anyhow::Ok(exit.await)
    })?;
    // Tasks that were cut off are not waited for.
    runtime.shutdown_background();
    let outcome = report(&exit);
    // A second signal means: stop at once.
    if !matches!(exit, Exit::Forced(Forced::SecondSignal)) {
        telemetry.stop();
    }
    Ok(outcome)
}

fn report(exit: &Exit<StartError>) -> ExitStatus {
    match exit {
        Exit::Clean => {
            tracing::info!("stopped");
            ExitStatus::Done
        }
        Exit::StartFailed(cause) => {
            tracing::error!(cause = error::chain(cause), "cannot start");
            ExitStatus::Failed
        }
        Exit::PartEnded(part) => {
            tracing::error!(part, "stopped, because a part of the process ended");
            ExitStatus::Failed
        }
        Exit::Forced(forced) => {
            match forced {
                Forced::SecondSignal => tracing::warn!("{forced}"),
                Forced::GraceOver(_) => tracing::error!("{forced}"),
            }
            ExitStatus::CutOff
        }
    }
}
