//! Why a server cannot be had.

/// Why a server cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not installed. On a developer's machine that skips a test, see [`need!`](crate::need).
    #[error("{program} is not on the PATH; {remedy}")]
    Missing {
        /// The program that was looked for.
        program: &'static str,
        /// What would help.
        remedy: &'static str,
    },
    /// It is there and does not work, which no test may pass over.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    pub(crate) fn failed(what: &str, why: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }
}
