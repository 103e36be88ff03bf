//! The scripts, one per step.

use std::sync::LazyLock;

use ::redis::aio::ConnectionManager;
use ::redis::{Cmd, ErrorKind, FromRedisValue, ServerErrorKind, ToRedisArgs};

use super::keys::Keys;
use crate::error::Error;

pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(Scripts::new);

pub(super) struct Scripts {
    pub(super) create: Script,
    pub(super) fetch: Script,
    pub(super) release: Script,
    pub(super) delete: Script,
    pub(super) deindex: Script,
    pub(super) adopt: Script,
    pub(super) assign: Script,
    pub(super) notify: Script,
    pub(super) recover: Script,
    pub(super) join: Script,
    pub(super) tickets: Script,
    pub(super) present: Script,
    pub(super) overdue: Script,
    pub(super) sweep: Script,
    pub(super) lock: Script,
    pub(super) extend: Script,
    pub(super) unlock: Script,
}

impl Scripts {
    fn new() -> Self {
        let (cancelling, making, playing) = (
            include_str!("scripts/cancelling.lua"),
            include_str!("scripts/making.lua"),
            include_str!("scripts/playing.lua"),
        );
        let step = |needs: &[&str], text| {
            Script::new(&[include_str!("scripts/preamble.lua"), &needs.concat(), text].concat())
        };
        Self {
            create: step(&[making], include_str!("scripts/create.lua")),
            fetch: step(&[], include_str!("scripts/fetch.lua")),
            release: step(&[], include_str!("scripts/release.lua")),
            delete: step(&[cancelling], include_str!("scripts/delete.lua")),
            deindex: step(&[], include_str!("scripts/deindex.lua")),
            adopt: step(&[], include_str!("scripts/adopt.lua")),
            assign: step(&[], include_str!("scripts/assign.lua")),
            notify: step(&[], include_str!("scripts/notify.lua")),
            recover: step(&[], include_str!("scripts/recover.lua")),
            join: step(&[making, playing], include_str!("scripts/join.lua")),
            tickets: step(&[playing], include_str!("scripts/tickets.lua")),
            present: step(&[playing], include_str!("scripts/present.lua")),
            overdue: step(&[playing], include_str!("scripts/overdue.lua")),
            sweep: step(&[cancelling, playing], include_str!("scripts/sweep.lua")),
            lock: Script::new(include_str!("scripts/lock.lua")),
            extend: Script::new(include_str!("scripts/extend.lua")),
            unlock: Script::new(include_str!("scripts/unlock.lua")),
        }
    }
}

pub(super) struct Script(::redis::Script);

impl Script {
    fn new(text: &str) -> Self {
        Self(::redis::Script::new(text))
    }

    /// A call with these keys.
    pub(super) fn call(&'static self, keys: &[String]) -> Step {
        let mut command = ::redis::cmd("EVALSHA");
        command.arg(self.0.get_hash()).arg(keys.len()).arg(keys);
        Step { script: self, command }
    }

    /// A call with what the preamble wants.
    pub(super) fn step(&'static self, keys: &Keys, token: &str) -> Step {
        let mut step = self.call(&[keys.all()]);
        step.arg(keys.prefix()).arg(token);
        step
    }
}

/// A call of a script. Built as one command: a list of a thousand tickets is one buffer.
pub(super) struct Step {
    script: &'static Script,
    command: Cmd,
}

impl Step {
    pub(super) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.command.arg(arg);
        self
    }

    /// Ends a chain of arguments.
    pub(super) fn end(&mut self) {}

    /// Runs the script, which is loaded again where the server has lost it.
    pub(super) async fn run<T: FromRedisValue>(&self, mut connection: ConnectionManager) -> Result<T, Error> {
        match self.command.query_async(&mut connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.script.0.load_async(&mut connection).await?;
                Ok(self.command.query_async(&mut connection).await?)
            }
            done => Ok(done?),
        }
    }
}
