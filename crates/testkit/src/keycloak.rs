//! Keycloak, the reference identity provider, with the realm of `deploy/keycloak`.
//!
//! It is large and slow: the distribution is fetched with Maven and set up once per build folder, and each start still takes
//! about ten seconds. Most tests use [`OidcProvider`]. `cargo xtask test-keycloak` runs against Keycloak itself.
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
use crate::server::{Server, ServerKind, ServerLocation};
use crate::unique::unique;
use crate::{Error, http};

use distribution::Distribution;

const REALM: &str = include_str!("../../../deploy/keycloak/playhouse-realm.json");
const PLAYERS: &str = include_str!("../../../deploy/keycloak/playhouse-users-0.json");
/// Long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Folders of the distribution that all instances share.
const SHARED: [&str; 4] = ["conf", "lib", "providers", "themes"];

/// Keycloak's database H2 writes half a second after the commit by default, so a killed Keycloak would lose its newest
/// sessions.
const WRITE_AT_COMMIT: &str = ";WRITE_DELAY=0";

/// A Keycloak with the realm `playhouse` and its example players: `ada`, `bob` and the operator `root-eve`, all with the
/// password [`PASSWORD`](Self::PASSWORD). Its data survives a restart.
pub type Keycloak = Server<KeycloakKind>;

/// The variables of the realm file.
#[derive(Clone, Debug)]
pub struct RealmSettings {
    /// The public address of the gateway.
    pub gateway_url: String,
    /// The secret of the client `playhouse`, the gateway.
    pub client_secret: String,
    /// The secret of the client `shop`, a service.
    pub service_secret: String,
}

/// Starts Keycloak.
#[derive(Debug)]
pub struct KeycloakKind {
    distribution: Distribution,
    settings: RealmSettings,
}

impl RealmSettings {
    /// Returns settings for a gateway at this URL, with new secrets.
    pub fn at(gateway_url: impl Into<String>) -> Self {
        Self { gateway_url: gateway_url.into(), client_secret: unique(), service_secret: unique() }
    }
}

impl Keycloak {
    /// The password of the example players.
    pub const PASSWORD: &str = "for-development-only";

    /// Starts a Keycloak that only the caller uses.
    pub async fn start(settings: RealmSettings) -> Result<Self, Error> {
        let finding = tokio::task::spawn_blocking(Distribution::find);
        let distribution = finding.await.map_err(|stopped| Error::Failed(stopped.to_string()))??;
        Server::start_new(KeycloakKind { distribution, settings }).await
    }

    /// `http://127.0.0.1:…/realms/playhouse`
    pub fn issuer(&self) -> String {
        issuer(self.addr().port())
    }

    /// Returns the authorization endpoint.
    pub fn authorize_url(&self) -> String {
        format!("{}/protocol/openid-connect/auth", self.issuer())
    }

    /// Returns the token endpoint.
    pub fn token_url(&self) -> String {
        token_url(&self.issuer())
    }

    /// Returns the settings with which it was started.
    pub fn settings(&self) -> &RealmSettings {
        &self.kind.settings
    }
}

impl ServerKind for KeycloakKind {
    fn name(&self) -> &'static str {
        "keycloak"
    }

    fn on_disk(&self) -> bool {
        false
    }

    fn start_timeout(&self) -> Duration {
        TIMEOUT
    }

    fn prepare(&self, location: &ServerLocation) -> Result<(), Error> {
        let ready = self.distribution.ready()?;
        // Keycloak's home is the parent of the folder of its start script. It writes into `data` there.
        let fill = || -> io::Result<()> {
            let home = home(location);
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

    fn launch(&self, location: &ServerLocation) -> Launch {
        let RealmSettings { gateway_url, client_secret, service_secret } = &self.settings;
        distribution::kc(&home(location), location.folder())
            .args(["start", "--optimized", "--import-realm", "--cache=local"])
            .args(["--http-enabled=true", "--hostname-strict=false", "--http-host=127.0.0.1"])
            .arg(format!("--http-port={}", location.port))
            .env("KC_DB_URL_PROPERTIES", Some(WRITE_AT_COMMIT.into()))
            .env("PLAYHOUSE_URL", Some(gateway_url.trim_end_matches('/').into()))
            .env("PLAYHOUSE_CLIENT_SECRET", Some(client_secret.into()))
            .env("SHOP_CLIENT_SECRET", Some(service_secret.into()))
    }

    /// Requests a token with the secret, which another server at the same port would refuse.
    async fn check_ready(&self, location: &ServerLocation) -> Result<(), String> {
        let form = [
            ("grant_type", "client_credentials"),
            ("client_id", "shop"),
            ("client_secret", &self.settings.service_secret),
        ];
        token(&issuer(location.port), &form).await.map(drop)
    }
}

fn home(location: &ServerLocation) -> PathBuf {
    location.folder().join("keycloak")
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
    http::request_ok(request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Users deploy these files, so every secret must be a variable with an obvious placeholder.
    #[test]
    fn realm_has_no_secrets() {
        let realm: Value = serde_json::from_str(REALM).unwrap();
        let clients = realm["clients"].as_array().unwrap();
        let (public, confidential): (Vec<_>, Vec<_>) =
            clients.iter().partition(|client| client["publicClient"] == true);
        assert!(public.iter().all(|client| client.get("secret").is_none()));
        let secrets: Vec<&str> =
            confidential.iter().map(|client| client["secret"].as_str().unwrap()).collect();
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
