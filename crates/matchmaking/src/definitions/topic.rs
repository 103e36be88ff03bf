//! The live topic of definitions.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use live::{Key, Message, Topic, Topics};

/// All definitions of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct AllDefinitions;

/// A definition was changed.
#[derive(Debug)]
pub(super) enum DefinitionsChanged {}

impl Topic for DefinitionsChanged {
    type Key = AllDefinitions;
    type Message = ();
    const NAME: &'static str = "definitions";
    const REPEATABLE: bool = true;
}

impl Key for AllDefinitions {
    const CHANNEL: &'static str = "definitions:";
}

impl fmt::Display for AllDefinitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all")
    }
}

impl FromStr for AllDefinitions {
    type Err = Infallible;

    fn from_str(_: &str) -> Result<Self, Infallible> {
        Ok(Self)
    }
}

/// The message that a process receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReloadDefinitions;

impl Topics for ReloadDefinitions {
    type Key = AllDefinitions;

    fn read(message: &Message<AllDefinitions>) -> Option<Self> {
        message.read::<DefinitionsChanged>().map(|_| Self)
    }
}
