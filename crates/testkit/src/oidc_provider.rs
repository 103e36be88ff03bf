//! An identity provider that starts fast and can be controlled by tests: panva's `oidc-provider`.
//!
//! It is a certified third-party implementation that runs on Node.js. `server.mjs` adds a sign-in page without passwords, claims
//! in Keycloak's format, and commands for tests. `npm` installs the packages of the committed lock file once per build folder.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use url::Url;

use crate::npm::{self, Npm};
use crate::process::Launch;
use crate::server::{Server, ServerKind, ServerLocation};
use crate::unique::unique;
use crate::{Error, http};

const SERVER: &str = include_str!("oidc_provider/server.mjs");
const PACKAGE: &str = include_str!("oidc_provider/package.json");
const LOCK: &str = include_str!("oidc_provider/package-lock.json");
const REFRESH_TOKEN_LIFETIME: Duration = Duration::from_secs(3600);

/// An OpenID provider.
///
/// - A user signs in by typing any name into the field `login` and clicking `[name=go]`. `sub` and `preferred_username` are the
///   name, `name` is `Player NAME`. `[name=cancel]` cancels.
/// - Users whose name starts with `root-` have the role `playhouse-operator`, in `realm_access.roles` of the access token and
///   the identity token.
/// - Access tokens are JWTs for the audience `playhouse`. Refresh tokens are always issued and rotate: using one twice revokes
///   the whole grant.
/// - The [service](OidcClients::service_id) has the roles `playhouse-service` and `playhouse-may-read`.
/// - Its state survives a restart.
pub type OidcProvider = Server<OidcProviderKind>;

/// The two registered clients, and the lifetime of tokens.
#[derive(Clone, Debug)]
pub struct OidcClients {
    /// The client that users sign in to, by authorization code with PKCE.
    pub client_id: String,
    /// Its secret.
    pub client_secret: String,
    /// The redirect and logout URIs of that client.
    pub uris: ClientUris,
    /// The client that requests tokens for itself, by client credentials.
    pub service_id: String,
    /// Its secret.
    pub service_secret: String,
    /// The lifetime of access tokens, in whole seconds.
    pub access_token_life: Duration,
}

/// The URIs of a client.
#[derive(Clone, Debug, Serialize)]
pub struct ClientUris {
    /// The allowed redirect URIs after sign-in. Never empty.
    pub redirect_uris: Vec<String>,
    /// The allowed redirect URIs after sign-out.
    pub post_logout_redirect_uris: Vec<String>,
    /// The URI that is called when a session ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backchannel_logout_uri: Option<String>,
}

/// Starts the provider.
#[derive(Debug)]
pub struct OidcProviderKind {
    npm: Npm,
    /// The path prefix of the commands. It is unique, so it identifies this provider.
    command_prefix: String,
    clients: OidcClients,
}

impl Default for OidcClients {
    fn default() -> Self {
        Self {
            client_id: "playhouse".to_owned(),
            client_secret: "secret-of-the-client".to_owned(),
            uris: ClientUris::at("http://127.0.0.1:1"),
            service_id: "shop".to_owned(),
            service_secret: "secret-of-the-service".to_owned(),
            access_token_life: Duration::from_secs(300),
        }
    }
}

impl ClientUris {
    /// Returns the URIs of a gateway with this public URL.
    pub fn at(gateway: &str) -> Self {
        let gateway = gateway.trim_end_matches('/');
        Self {
            redirect_uris: vec![format!("{gateway}/login/callback")],
            post_logout_redirect_uris: vec![format!("{gateway}/")],
            backchannel_logout_uri: Some(format!("{gateway}/logout/backchannel")),
        }
    }
}

impl OidcProvider {
    /// Starts a provider that only the caller uses.
    pub async fn start(clients: OidcClients) -> Result<Self, Error> {
        Server::start_new(OidcProviderKind::find(clients)?).await
    }

    /// `http://127.0.0.1:…`, without a slash at the end.
    pub fn issuer(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// Returns the issuer's URL with this path.
    pub fn url(&self, path: &str) -> Url {
        Url::parse(&self.issuer()).and_then(|issuer| issuer.join(path)).expect("a path")
    }

    /// Changes the URIs of the client that users sign in to. Its address is often known only after the start.
    pub async fn set_uris(&self, uris: &ClientUris) {
        let mut body = json!(uris);
        body["client_id"] = json!(self.kind.clients.client_id);
        self.command("client", body).await;
    }

    /// Sets the roles of a user, from the next token on.
    pub async fn set_roles(&self, user: &str, roles: &[&str]) {
        self.command("roles", json!({ "user": user, "roles": roles })).await;
    }

    /// Adds a key that signs from now on. The old keys stay published.
    pub async fn rotate_keys(&self) {
        self.command("rotate-keys", json!({})).await;
    }

    /// Removes all keys but the newest.
    pub async fn retire_keys(&self) {
        self.command("retire-keys", json!({})).await;
    }

    /// Returns the ids of the published keys. The first one signs.
    pub async fn keys(&self) -> Vec<String> {
        strings(&self.about().await["keys"])
    }

    /// Returns the users who have a session.
    pub async fn signed_in_users(&self) -> Vec<String> {
        strings(&self.about().await["users"])
    }

    /// Returns how many refresh tokens were redeemed since the start.
    pub async fn refreshes(&self) -> u64 {
        self.about().await["refreshes"].as_u64().unwrap_or_default()
    }

    /// Returns how many refresh tokens were refused since the start because they were used, expired or revoked.
    pub async fn refused_refreshes(&self) -> u64 {
        self.about().await["refused"].as_u64().unwrap_or_default()
    }

    /// Ends the sessions of a user, revokes their tokens, and calls the back-channel logout of the clients.
    /// Returns how many clients were called.
    ///
    /// # Panics
    /// If a client's response is not a success.
    pub async fn end_sessions_of(&self, user: &str) -> u64 {
        let called = self.command("end-sessions", json!({ "user": user })).await;
        called["called"].as_u64().unwrap_or_default()
    }

    /// Answers every request with 503 while `failing`.
    pub async fn set_failing(&self, failing: bool) {
        self.command("faults", json!({ "failing": failing })).await;
    }

    /// Returns how many requests are waiting because of [`set_delay`](Self::set_delay).
    pub async fn delayed_requests(&self) -> u64 {
        self.about().await["delayed"].as_u64().unwrap_or_default()
    }

    /// Delays every response.
    pub async fn set_delay(&self, delay: Duration) {
        self.command("faults", json!({ "slow": delay.as_millis() as u64 })).await;
    }

    async fn about(&self) -> Value {
        self.command("about", json!({})).await
    }

    async fn command(&self, name: &str, body: Value) -> Value {
        let url = self.kind.command_url(self.addr().port(), name);
        let done = http::request_ok(http::client().post(url).json(&body)).await;
        done.unwrap_or_else(|why| panic!("the identity provider refuses the command {name}: {why}"))
    }
}

impl OidcProviderKind {
    fn find(clients: OidcClients) -> Result<Self, Error> {
        Ok(Self { npm: Npm::find()?, command_prefix: unique(), clients })
    }

    fn command_url(&self, port: u16, name: &str) -> String {
        format!("http://127.0.0.1:{port}/{}/{name}", self.command_prefix)
    }

    fn config(&self, location: &ServerLocation) -> Value {
        let OidcClients { client_id, client_secret, uris, service_id, service_secret, access_token_life } =
            &self.clients;
        let mut client = json!(uris);
        client["client_id"] = json!(client_id);
        client["client_secret"] = json!(client_secret);
        client["grant_types"] = json!(["authorization_code", "refresh_token"]);
        client["response_types"] = json!(["code"]);
        client["backchannel_logout_session_required"] = json!(true);
        let service = json!({
            "client_id": service_id,
            "client_secret": service_secret,
            "redirect_uris": [],
            "grant_types": ["client_credentials"],
            "response_types": [],
        });
        json!({
            "port": location.port,
            "command_prefix": self.command_prefix,
            "state": location.data(),
            "audience": "playhouse",
            "access_token_seconds": access_token_life.as_secs(),
            "refresh_token_seconds": REFRESH_TOKEN_LIFETIME.as_secs(),
            "operator_prefix": "root-",
            "operator_role": "playhouse-operator",
            "service": { "client_id": service_id, "roles": ["playhouse-service", "playhouse-may-read"] },
            "clients": [client, service],
        })
    }
}

impl ServerKind for OidcProviderKind {
    fn name(&self) -> &'static str {
        "oidc-provider"
    }

    fn on_disk(&self) -> bool {
        false
    }

    fn prepare(&self, location: &ServerLocation) -> Result<(), Error> {
        let files = [("package.json", PACKAGE), (npm::LOCK, LOCK)];
        let packages = self.npm.folder(self.name(), &files)?.join("node_modules");
        // Node.js looks for packages beside the script. The script is not cached, so it always matches this version.
        symlink(packages, location.folder().join("node_modules"))
            .and_then(|()| fs::write(script(location.folder()), SERVER))
            .map_err(|error| Error::failed(self.name(), error))
    }

    fn launch(&self, location: &ServerLocation) -> Launch {
        Launch::new(&self.npm.node)
            .arg(script(location.folder()))
            .arg(self.config(location).to_string())
            .folder(location.folder())
            .env("NODE_ENV", Some("production".into()))
    }

    async fn check_ready(&self, location: &ServerLocation) -> Result<(), String> {
        http::request_ok(http::client().post(self.command_url(location.port, "about"))).await.map(drop)
    }
}

fn script(folder: &Path) -> PathBuf {
    folder.join("server.mjs")
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::assert_detects_taken_port;

    #[tokio::test]
    async fn taken_port_is_detected() {
        let kind = || OidcProviderKind::find(OidcClients::default());
        assert_detects_taken_port(crate::need!(kind()), crate::need!(kind())).await;
    }

    #[test]
    fn lock_file_names_no_registry() {
        npm::assert_names_no_registry(LOCK);
    }
}
