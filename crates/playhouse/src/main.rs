//! The one program. Everything is in the library beside this file.

use std::process::ExitCode;

/// Requests are many small allocations that end on another thread than they began on; measured by `cargo xtask bench
/// matchmaking`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    playhouse::main()
}
