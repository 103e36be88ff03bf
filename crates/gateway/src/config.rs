//! Settings of the gateway.

use std::collections::BTreeMap;
use std::time::Duration;

use ::config::{ByteSize, Reader, Section};
use limits::Rate;
use service::GatewayListener;
use sessions::{Origin, PublicUrl};
use url::Url;

use crate::clients::{Feature, Platform};

/// Settings of the gateway.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The URL of the gateway for players. Its listen address by default.
    pub(crate) public_url: Option<PublicUrl>,
    pub(crate) session: sessions::Config,
    /// How long the data of a user is cached.
    pub(crate) user_cache: Duration,
    /// How long a request may take.
    pub(crate) request_timeout: Duration,
    /// How long one part of an aggregated response may take.
    pub(crate) part_timeout: Duration,
    /// The largest body of a request, in bytes.
    pub(crate) max_body: usize,
    /// Other origins whose pages may call the gateway.
    pub(crate) cors_origins: Vec<Origin>,
    /// The most open streams of a player in one process.
    pub(crate) max_streams: usize,
    pub(crate) limits: LimitsConfig,
    pub(crate) platforms: BTreeMap<String, Platform>,
    pub(crate) features: BTreeMap<String, Feature>,
    pub(crate) lobby: LobbyConfig,
}

/// The example lobby.
#[derive(Clone, Debug)]
pub(crate) struct LobbyConfig {
    pub(crate) enabled: bool,
    /// The origins of game servers that the lobby may connect to.
    pub(crate) game_servers: Vec<Origin>,
}

/// Rate limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitsConfig {
    /// How long a decision by Redis may take.
    pub(crate) timeout: Duration,
    /// All requests from one address.
    pub(crate) address: Rate,
    /// Per player, or per address for callers that are not signed in.
    pub(crate) read: Rate,
    pub(crate) write: Rate,
    pub(crate) sign_in: Rate,
    pub(crate) stream: Rate,
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        let (milli, second) = (Duration::from_millis(1), Duration::from_secs(1));
        Self {
            public_url: reader.optional("public_url"),
            session: reader.section("session"),
            user_cache: reader.get_within("user_cache", Duration::ZERO..=60 * second),
            request_timeout: reader.get_within("request_timeout", 10 * milli..=300 * second),
            part_timeout: reader.get_within("part_timeout", 10 * milli..=60 * second),
            max_body: reader.get::<ByteSize>("max_body").0.try_into().unwrap_or(usize::MAX),
            cors_origins: reader.get("cors_origins"),
            max_streams: reader.get_within("max_streams", 1..=10_000) as usize,
            limits: reader.section("limits"),
            platforms: reader.tables("platforms"),
            features: reader.tables("features"),
            lobby: reader.section("lobby"),
        }
        .checked(reader)
    }
}

impl Config {
    /// Returns the URL of the gateway for players.
    pub(crate) fn public_url(&self, listener: &GatewayListener) -> Url {
        self.public_url.as_ref().map_or_else(|| listener.url.clone(), |url| url.0.clone())
    }

    fn checked(self, reader: &mut Reader<'_>) -> Self {
        reader.check(&["part_timeout", "request_timeout"], self.part_timeout < self.request_timeout, || {
            "part_timeout must be shorter than request_timeout, so that a slow part does not fail the whole response".to_owned()
        });
        for (name, feature) in &self.features {
            for platform in &feature.platforms {
                let key = format!("features.{name}.platforms");
                reader.check(&[&key], self.platforms.contains_key(platform), || {
                    format!("there is no [gateway.platforms.{platform}]")
                });
            }
        }
        self
    }
}

impl Section for LobbyConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self { enabled: reader.get("enabled"), game_servers: reader.get("game_servers") }
    }
}

impl Section for LimitsConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            timeout: reader.get_within("timeout", Duration::from_millis(1)..=Duration::from_secs(10)),
            address: reader.get("address"),
            read: reader.get("read"),
            write: reader.get("write"),
            sign_in: reader.get("sign_in"),
            stream: reader.get("stream"),
        }
    }
}
