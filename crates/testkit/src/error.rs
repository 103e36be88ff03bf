//! Errors of starting a server.

/// The reason why a server is not available.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program is not installed. On a developer's machine the test is skipped, see [`need!`](crate::need).
    #[error("{program} is not on the PATH; {remedy}")]
    Missing {
        program: &'static str,
        /// What the reader can do about it.
        remedy: &'static str,
    },
    /// The program is installed and does not work. This fails the test everywhere.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    pub(crate) fn failed(what: &str, why: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }
}
