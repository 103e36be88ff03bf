//! The one program. Everything is in the library beside this file.

use std::process::ExitCode;

/// Requests are many small allocations that end on another thread than they began on; measured by `cargo xtask bench
/// matchmaking`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    take_memory_in_small_pages();
    playhouse::main()
}

/// The allocator asks for huge pages. With them an idle process takes three times the memory it uses, and a busy one is no faster
/// for it (`cargo xtask bench matchmaking`).
fn take_memory_in_small_pages() {
    // What the kernel refuses costs memory and nothing else.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_thp_disable(true);
}
