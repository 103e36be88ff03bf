//! The program. Its code is in the library next to this file.

use std::process::ExitCode;

/// Requests make many small allocations that are freed on another thread; `cargo xtask bench matchmaking` measures the gain.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    disable_huge_pages();
    playhouse::main()
}

/// Turns off transparent huge pages. With them an idle process occupies three times the memory that it uses, and a busy one is no
/// faster (`cargo xtask bench matchmaking`).
fn disable_huge_pages() {
    // If the kernel refuses, the process only takes more memory.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_thp_disable(true);
}
