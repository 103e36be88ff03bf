//! The one program. Everything is in the library beside this file.

fn main() -> std::process::ExitCode {
    playhouse::main()
}
