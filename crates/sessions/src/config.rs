//! Settings of sessions: `gateway.session`.

use std::time::Duration;

use ::config::{Reader, Secret, Section};

/// Short secrets can be guessed from anything that was sealed with one.
const MIN_KEY_LENGTH: usize = 32;

/// How sessions live.
#[derive(Clone, Debug)]
pub struct Config {
    /// Keys that sessions are sealed with: the first seals, all of them open.
    pub keys: Vec<Secret>,
    /// What the names of all keys in Redis begin with.
    pub key_prefix: String,
    /// How long an unused session lasts.
    pub idle: Duration,
    /// How long a session lasts at most.
    pub lifetime: Duration,
    /// How long a session lasts that cannot be refreshed because the issuer is away.
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
                "each must have at least {MIN_KEY_LENGTH} characters; `openssl rand -base64 32` makes one"
            )
        });
        reader.check(&["idle", "lifetime"], config.idle <= config.lifetime, || {
            "idle must not be longer than lifetime".to_owned()
        });
        config
    }
}
