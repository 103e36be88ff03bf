//! Configuration: reference < file < environment < flags.
//!
//! A crate declares its settings by implementing [`Section`]: it asks a [`Reader`] for one key after the other. The reader
//! finds the topmost layer that has the key, parses the value, and remembers where it came from. A mistake does not stop
//! the reading: it is noted, the default takes its place, and [`load`] returns all mistakes together.
//!
//! Defaults live in the reference document and nowhere else. What nobody asked for is an unknown key.
//!
//! A value that may be secret can stand in a file of its own: every such key has a second one, `KEY_file`, in all layers.
//!
//! Some tables are named by the user, as in `[matchmaking.profiles.duel]`. [`Reader::tables`] reads them all. The reference
//! has them once, under the name `NAME`: its table is the template of them all, with their defaults and their meaning.

mod document;
mod effective;
mod layers;
mod network;
mod problem;
mod reader;
mod secret;
mod secret_file;
mod setting;
mod store_url;
mod unknown;

pub use document::{every_key, reference_keys};
pub use effective::Effective;
pub use layers::{ENV_PREFIX, Layers, env_name};
pub use network::{Network, NotANetwork};
pub use problem::{Origin, Problem, Problems};
pub use reader::Reader;
pub use secret::{Secret, redacted};
pub use setting::{ByteSize, Choice, Rejected, Setting, Value, show_duration};
pub use store_url::{Server, StoreUrl};

/// A group of settings that a crate owns.
pub trait Section: Sized {
    fn read(reader: &mut Reader<'_>) -> Self;
}

/// A configuration that is sound, with what is in force and from where.
#[derive(Debug)]
pub struct Loaded<T> {
    pub config: T,
    pub effective: Effective,
    /// What is allowed and should not be done: secrets on the command line.
    pub warnings: Vec<String>,
}

/// Reads the whole configuration from all layers, or says everything that is wrong with it.
pub fn load<T: Section>(layers: Layers) -> Result<Loaded<T>, Problems> {
    let mut state = reader::State::new(layers);
    let config = T::read(&mut Reader::root(&mut state));
    let warnings = std::mem::take(&mut state.warnings);
    let effective = state.finish()?;
    Ok(Loaded { config, effective, warnings })
}

#[cfg(test)]
mod tests;
