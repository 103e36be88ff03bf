//! Configuration: reference < file < environment < flags.
//!
//! A crate declares its settings by implementing [`Section`]: it reads one key after the other from a [`Reader`]. The reader
//! takes the value of the topmost layer that has the key, parses it, and records where it came from. A mistake does not stop
//! the reading: the reader records it and continues with the default. [`load`] returns all mistakes together.
//!
//! Defaults live in the reference document and nowhere else. A key that no section reads is an unknown key.
//!
//! A secret value can be stored in a file of its own: every such key has a second one, `KEY_file`, in all layers.
//!
//! Some tables are named by the user, as in `[matchmaking.profiles.duel]`. [`Reader::tables`] reads them all. The reference
//! has such a table once, under the name `NAME`: it is the template that documents them and holds their defaults.
//! [`TableReader`] reads such tables after the start, from texts that are not in the file.

mod document;
mod effective;
mod layers;
mod network;
mod problem;
mod reader;
mod renamed;
mod secret;
mod secret_file;
mod setting;
mod store_url;
mod table_reader;
mod unknown;

pub use document::{reference_keys, reference_with_all_keys};
pub use effective::Effective;
pub use layers::{ENV_PREFIX, Layers, env_name};
pub use network::{InvalidNetwork, Network};
pub use problem::{Origin, Problem, Problems};
pub use reader::{Reader, check_table_name};
pub use renamed::RenamedKey;
pub use secret::{Secret, redact_url};
pub use setting::{ByteSize, Choice, InvalidValue, Setting, Value, show_duration};
pub use store_url::{Server, StoreUrl};
pub use table_reader::TableReader;

/// A group of settings that a crate owns.
pub trait Section: Sized {
    fn read(reader: &mut Reader<'_>) -> Self;
}

/// A valid configuration, with the effective value of every key and its origin.
#[derive(Debug)]
pub struct Loaded<T> {
    pub config: T,
    pub effective: Effective,
    /// Settings that are allowed but discouraged: secrets on the command line.
    pub warnings: Vec<String>,
}

/// Reads the whole configuration from all layers. Fails with all mistakes at once.
pub fn load<T: Section>(layers: Layers) -> Result<Loaded<T>, Problems> {
    let mut state = reader::State::new(layers);
    let config = T::read(&mut Reader::root(&mut state));
    let warnings = std::mem::take(&mut state.warnings);
    let effective = state.finish()?;
    Ok(Loaded { config, effective, warnings })
}

#[cfg(test)]
mod tests;
