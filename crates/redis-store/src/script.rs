//! Declares and runs Lua scripts.

use std::fmt;
use std::sync::OnceLock;

use redis::aio::ConnectionManager;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, ToRedisArgs};

use crate::Key;

/// Declares a [`Script`] from `.lua` files, which are concatenated in this order. Paths are relative to the calling file.
///
/// Each file starts with a comment that describes its effect, its `KEYS`, its `ARGV` and its reply.
#[macro_export]
macro_rules! script {
    ($($path:literal),+ $(,)?) => {
        $crate::Script::new(&[$(include_str!($path)),+])
    };
}

/// A Lua script, which Redis runs atomically. Declared as a static by [`script!`](crate::script).
///
/// A call declares every key that the script touches, so that a cluster can find the node. If the script learns ids only while it runs,
/// the call declares their [stem](crate::KeySpace::stem).
pub struct Script {
    parts: &'static [&'static str],
    script: OnceLock<redis::Script>,
}

impl Script {
    /// Creates a script from its parts. Prefer [`script!`](crate::script), which reads them from files.
    pub const fn new(parts: &'static [&'static str]) -> Self {
        Self { parts, script: OnceLock::new() }
    }

    /// Returns the whole text.
    pub fn text(&self) -> String {
        self.parts.concat()
    }

    fn get(&self) -> &redis::Script {
        self.script.get_or_init(|| redis::Script::new(&self.parts.concat()))
    }

    /// Prepares a call with these keys.
    pub fn call(&'static self, keys: &[Key]) -> Call {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.get().get_hash()).arg(keys.len()).arg(keys);
        Call { script: self, command }
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Script").field(&self.get().get_hash()).finish()
    }
}

/// A call of a script. It is built as one command, so a list of a thousand keys or arguments is one buffer.
#[derive(Debug)]
pub struct Call {
    script: &'static Script,
    command: Cmd,
}

impl Call {
    /// Adds an argument, or each item of a list.
    pub fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.command.arg(arg);
        self
    }

    /// Ends a chain of arguments.
    pub fn end(&mut self) {}

    /// Runs the script by its hash in one round trip. Loading it into a server that does not know it takes two more.
    pub async fn run<T: FromRedisValue>(&self, mut connection: ConnectionManager) -> Result<T, RedisError> {
        match self.command.query_async(&mut connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.script.get().load_async(&mut connection).await?;
                self.command.query_async(&mut connection).await
            }
            done => done,
        }
    }
}
