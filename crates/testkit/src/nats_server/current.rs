//! The current NATS server. Most tests run on the older one of the distribution, so both ends of the supported range are tested.

use std::env;
use std::path::{Path, PathBuf};

use crate::{Error, installed};

/// `xtask` reads the same file and builds this version.
const VERSION: &str = include_str!("version");
const MISSING: Error = Error::Missing {
    program: "nats-server 2.15 or newer",
    remedy: "`cargo xtask install` builds it; that needs Go, or Debian and root to install Go",
};

/// Finds the server that `cargo xtask install` has built, or else one on the PATH that is at least as new. Blocks.
pub(super) fn find() -> Result<PathBuf, Error> {
    let built = cache().map(|cache| cache.join(format!("nats-server-{}/nats-server", VERSION.trim())));
    if let Some(built) = built.filter(|built| built.is_file()) {
        return Ok(built);
    }
    let wanted = minor(VERSION);
    let mut on_path = installed::find_all("nats-server");
    on_path
        .find(|program| installed::version(program).and_then(|version| minor(&version)) >= wanted)
        .ok_or(MISSING)
}

/// Returns the folder where `xtask` puts it. It is outside the build folder, so that `cargo clean` does not remove it.
fn cache() -> Option<PathBuf> {
    let set = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("playhouse-testkit"))
}

/// Parses the major and minor version from `nats-server: v2.15.2`.
fn minor(version: &str) -> Option<(u32, u32)> {
    let (_, version) = version.rsplit_once('v')?;
    let mut parts = version.split('.').map_while(|part| part.trim().parse().ok());
    Some((parts.next()?, parts.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(minor("nats-server: v2.9.10"), Some((2, 9)));
        assert!(minor("nats-server: v2.9.10") < minor(VERSION));
        assert!(minor("nats-server: v3.0.0-beta") > minor(VERSION));
        assert_eq!(minor("nats-server: dev"), None);
    }

    #[test]
    fn error_names_the_version_that_xtask_builds() {
        let (major, minor) = minor(VERSION).unwrap();
        assert!(MISSING.to_string().starts_with(&format!("nats-server {major}.{minor} or newer is not")));
    }
}
