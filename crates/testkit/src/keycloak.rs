//! Keycloak, the reference for identity providers, with the realm of `deploy/keycloak`.
//!
//! It is large and slow: the distribution is fetched with Maven, unpacked and made ready once per build
//! folder, and even then each start takes some ten seconds. For most tests [`OidcProvider`] is the better
//! choice; this one shows that the real thing works, and is what `cargo xtask test-keycloak` runs on.
//!
//! [`OidcProvider`]: crate::OidcProvider

mod admin;
mod distribution;

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use serde_json::Value;
use url::form_urlencoded;

use crate::folder::copy;
use crate::process::Launch;
use crate::server::{Kind, Place, Server};
use crate::unique::unique;
use crate::{Error, http};

use distribution::Distribution;

const REALM: &str = include_str!("../../../deploy/keycloak/playhouse-realm.json");
const PLAYERS: &str = include_str!("../../../deploy/keycloak/playhouse-users-0.json");
/// On a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// Parts of the distribution that are used as they are.
const SHARED: [&str; 4] = ["conf", "lib", "providers", "themes"];

/// H2, its database, writes half a second after the commit by default: a killed Keycloak would forget the
/// sessions it had just begun.
const WRITE_AT_COMMIT: &str = ";WRITE_DELAY=0";

/// A Keycloak with the realm `playhouse` and its example players: `ada`, `bob` and the operator `root-eve`,
/// all with the password [`PASSWORD`](Self::PASSWORD). It keeps all it knows over a restart.
pub type Keycloak = Server<KeycloakKind>;

/// What the realm takes from its environment.
#[derive(Clone, Debug)]
pub struct RealmSettings {
    /// The public address of the gateway.
    pub gateway_url: String,
    /// The secret of the client `playhouse`, the gateway.
    pub client_secret: String,
    /// The secret of the client `shop`, a service.
    pub service_secret: String,
}

/// How Keycloak is started.
#[derive(Debug)]
pub struct KeycloakKind {
    distribution: Distribution,
    settings: RealmSettings,
}

impl RealmSettings {
    /// A gateway there, and fresh secrets.
    pub fn at(gateway_url: impl Into<String>) -> Self {
        Self { gateway_url: gateway_url.into(), client_secret: unique(), service_secret: unique() }
    }
}

impl Keycloak {
    /// Of the example players.
    pub const PASSWORD: &str = "for-development-only";

    /// A Keycloak for the caller alone.
    pub async fn start(settings: RealmSettings) -> Result<Self, Error> {
        let finding = tokio::task::spawn_blocking(Distribution::find);
        let distribution = finding.await.map_err(|stopped| Error::Failed(stopped.to_string()))??;
        Server::of(KeycloakKind { distribution, settings }).await
    }

    /// `http://127.0.0.1:…/realms/playhouse`
    pub fn issuer(&self) -> String {
        issuer(self.addr().port())
    }

    /// Where people are sent to sign in.
    pub fn authorize_url(&self) -> String {
        format!("{}/protocol/openid-connect/auth", self.issuer())
    }

    /// Where tokens are had.
    pub fn token_url(&self) -> String {
        token_url(&self.issuer())
    }

    /// The secrets, and where it thinks the gateway was when it was started.
    pub fn settings(&self) -> &RealmSettings {
        &self.kind.settings
    }
}

impl Kind for KeycloakKind {
    fn name(&self) -> &'static str {
        "keycloak"
    }

    fn on_disk(&self) -> bool {
        false
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn prepare(&self, place: &Place) -> Result<(), Error> {
        let ready = self.distribution.ready()?;
        // It takes the folder above its start script for its home, and writes into `data` there.
        let fill = || -> io::Result<()> {
            let home = home(place);
            fs::create_dir_all(home.join("bin"))?;
            fs::copy(ready.join("bin/kc.sh"), home.join("bin/kc.sh"))?;
            for part in SHARED {
                symlink(ready.join(part), home.join(part))?;
            }
            copy(&ready.join("data"), &home.join("data"))?;
            let import = home.join("data/import");
            fs::create_dir_all(&import)?;
            fs::write(import.join("playhouse-realm.json"), REALM)?;
            fs::write(import.join("playhouse-users-0.json"), PLAYERS)
        };
        fill().map_err(|error| Error::failed(self.name(), error))
    }

    fn launch(&self, place: &Place) -> Launch {
        let RealmSettings { gateway_url, client_secret, service_secret } = &self.settings;
        distribution::kc(&home(place), place.folder())
            .args(["start", "--optimized", "--import-realm", "--cache=local"])
            .args(["--http-enabled=true", "--hostname-strict=false", "--http-host=127.0.0.1"])
            .arg(format!("--http-port={}", place.port))
            .env("KC_DB_URL_PROPERTIES", Some(WRITE_AT_COMMIT.into()))
            .env("PLAYHOUSE_URL", Some(gateway_url.trim_end_matches('/').into()))
            .env("PLAYHOUSE_CLIENT_SECRET", Some(client_secret.into()))
            .env("SHOP_CLIENT_SECRET", Some(service_secret.into()))
    }

    /// A stranger would not take the secret.
    async fn answers(&self, place: &Place) -> Result<(), String> {
        let form = [
            ("grant_type", "client_credentials"),
            ("client_id", "shop"),
            ("client_secret", &self.settings.service_secret),
        ];
        token(&issuer(place.port), &form).await.map(drop)
    }
}

fn home(place: &Place) -> PathBuf {
    place.folder().join("keycloak")
}

fn issuer(port: u16) -> String {
    format!("http://127.0.0.1:{port}/realms/playhouse")
}

fn token_url(issuer: &str) -> String {
    format!("{issuer}/protocol/openid-connect/token")
}

async fn token(issuer: &str, form: &[(&str, &str)]) -> Result<Value, String> {
    let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
    let request = http::client().post(token_url(issuer));
    http::ask_well(request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files are for users too: what is a secret there must be replaceable and look like no secret.
    #[test]
    fn the_realm_has_no_secrets() {
        let realm: Value = serde_json::from_str(REALM).unwrap();
        let secrets: Vec<&str> = realm["clients"]
            .as_array()
            .unwrap()
            .iter()
            .map(|client| client["secret"].as_str().unwrap())
            .collect();
        assert_eq!(
            secrets,
            ["${PLAYHOUSE_CLIENT_SECRET:for-development-only}", "${SHOP_CLIENT_SECRET:for-development-only}"]
        );
        let players: Value = serde_json::from_str(PLAYERS).unwrap();
        for player in players["users"].as_array().unwrap() {
            assert_eq!(player["credentials"][0]["value"], Keycloak::PASSWORD);
        }
    }
}
