//! Compiles the .proto files without `protoc`, and keeps their descriptors for reflection.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::SystemTime;
use std::{env, error::Error};

fn main() -> Result<(), Box<dyn Error>> {
    const FILES: [&str; 8] = [
        "openmatch/messages.proto",
        "openmatch/extensions.proto",
        "openmatch/frontend.proto",
        "openmatch/backend.proto",
        "openmatch/query.proto",
        "openmatch/matchfunction.proto",
        "openmatch/evaluator.proto",
        "playhouse/matches.proto",
    ];
    let folder = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("proto");
    let descriptors = PathBuf::from(env::var("OUT_DIR")?).join("descriptors.bin");
    let mut compiler = protox::Compiler::new([&folder])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;
    fs::write(&descriptors, compiler.encode_file_descriptor_set())?;
    // The generator has cargo watch this file. With the time of now it would be newer than this run, so every build would run it
    // again and compile all that uses this crate.
    File::options().append(true).open(&descriptors)?.set_modified(SystemTime::UNIX_EPOCH)?;
    println!("cargo:rerun-if-changed={}", folder.display());
    connectrpc_build::Config::new()
        .descriptor_set(&descriptors)
        .files(&FILES)
        .include_file("generated.rs")
        .compile()
        .map_err(|error| error.to_string().into())
}
