//! The settings of section `gateway.session`.

use std::time::Duration;

use ::config::{Reader, Secret, Section};

/// The shortest key. A shorter one can be found by brute force from any sealed text.
const MIN_KEY_LENGTH: usize = 32;

/// The settings of sessions.
#[derive(Clone, Debug)]
pub struct Config {
    /// The keys that seal sessions: the first one seals, all of them open.
    pub keys: Vec<Secret>,
    /// The prefix of all keys in Redis.
    pub key_prefix: String,
    /// How long an unused session lasts.
    pub idle: Duration,
    /// The longest life of a session.
    pub lifetime: Duration,
    /// How long a session stays valid while the issuer is unreachable and cannot refresh it.
    pub refresh_grace: Duration,
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        let (minute, year) = (Duration::from_secs(60), Duration::from_secs(366 * 86_400));
        let config = Self {
            keys: reader.optional("keys").unwrap_or_default(),
            key_prefix: reader.get("key_prefix"),
            idle: reader.get_within("idle", minute..=year),
            lifetime: reader.get_within("lifetime", minute..=year),
            refresh_grace: reader.get_within("refresh_grace", Duration::ZERO..=year),
        };
        let is_long = |key: &Secret| key.expose().len() >= MIN_KEY_LENGTH;
        reader.check(&["keys"], config.keys.iter().all(is_long), || {
            format!(
                "each must have at least {MIN_KEY_LENGTH} characters; create one with `openssl rand -base64 32`"
            )
        });
        reader.check(&["idle", "lifetime"], config.idle <= config.lifetime, || {
            "idle must be at most lifetime".to_owned()
        });
        config
    }
}
