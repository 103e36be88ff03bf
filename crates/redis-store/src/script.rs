//! Lua scripts: how they are declared and run.

use std::fmt;
use std::sync::OnceLock;

use redis::aio::ConnectionManager;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, ToRedisArgs};

use crate::Key;

/// Declares a [`Script`] from `.lua` files, which are joined in this order. Paths are relative to the calling file.
///
/// Each file begins with a comment that says what it does, its `KEYS`, its `ARGV` and its reply.
#[macro_export]
macro_rules! script {
    ($($path:literal),+ $(,)?) => {
        $crate::Script::new(&[$(include_str!($path)),+])
    };
}

/// A Lua script, which Redis runs as one atomic step. It is a static, declared by [`script!`](crate::script).
///
/// Every key that it touches is declared with the call, so that a cluster can find the node. If the script learns ids
/// only while it runs, it declares their [stem](crate::KeySpace::stem).
pub struct Script {
    parts: &'static [&'static str],
    script: OnceLock<redis::Script>,
}

impl Script {
    /// Prefer [`script!`](crate::script), which reads the parts from files.
    pub const fn new(parts: &'static [&'static str]) -> Self {
        Self { parts, script: OnceLock::new() }
    }

    /// The whole text.
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

/// A call of a script. It is built as one command: a list of a thousand keys or arguments is one buffer.
#[derive(Debug)]
pub struct Call {
    script: &'static Script,
    command: Cmd,
}

impl Call {
    /// Adds an argument, or each one of a list.
    pub fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.command.arg(arg);
        self
    }

    /// Ends a chain of arguments.
    pub fn end(&mut self) {}

    /// Runs the script by its hash in one round trip. A server that does not know it gets it first, in two more.
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
