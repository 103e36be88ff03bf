//! The Open Match wire contract, generated from the .proto files of this crate.
//!
//! These types belong at the edge of the process: the rules of matchmaking have types of their own. The package is called
//! `openmatch`, so that every client written for Open Match or minimatch finds what it expects.

#![expect(clippy::allow_attributes, reason = "the generator writes them")]

#[expect(missing_debug_implementations, reason = "generated: views and wrappers are shaped by the generator")]
mod generated {
    connectrpc::include_generated!("generated.rs");
}

pub use generated::{openmatch, playhouse};

/// The compiled .proto files with all that they import, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
