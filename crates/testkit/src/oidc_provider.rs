//! An identity provider that is quick to start and does what a test wants: panva's `oidc-provider`.
//!
//! A certified implementation that is not ours, run by Node.js. What is ours is `server.mjs`: a sign-in
//! page without passwords, claims in the form that Keycloak has them, and orders for faults. The packages
//! are installed by `npm` once per build folder, exactly those of the committed lock file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use url::Url;

use crate::npm::{self, Npm};
use crate::process::Launch;
use crate::server::{Kind, Place, Server};
use crate::unique::unique;
use crate::{Error, http};

const SERVER: &str = include_str!("oidc_provider/server.mjs");
const PACKAGE: &str = include_str!("oidc_provider/package.json");
const LOCK: &str = include_str!("oidc_provider/package-lock.json");
const REFRESH_TOKENS_LIVE: Duration = Duration::from_secs(3600);

/// An OpenID provider.
///
/// - Whoever types a name into the field `login` of its page, and clicks on `[name=go]`, is that person:
///   `sub` and `preferred_username` are the name, `name` is `Player NAME`. `[name=cancel]` cancels.
/// - People whose name begins with `root-` have the role `playhouse-operator`, in `realm_access.roles` of
///   the access token and the identity token.
/// - Access tokens are JWTs for the audience `playhouse`. Refresh tokens are always given, and rotate: one
///   that is used a second time ends the whole grant.
/// - The [service](Clients::service_id) has the roles `playhouse-service` and `playhouse-may-read`.
/// - It keeps all it knows over a restart.
pub type OidcProvider = Server<OidcProviderKind>;

/// The two clients that the provider knows, and how long its tokens live.
#[derive(Clone, Debug)]
pub struct Clients {
    /// The client that people sign in to, by authorization code with PKCE.
    pub client_id: String,
    /// Its secret.
    pub client_secret: String,
    /// Where it is.
    pub uris: Uris,
    /// The client that gets tokens for itself.
    pub service_id: String,
    /// Its secret.
    pub service_secret: String,
    /// The life of access tokens, in whole seconds.
    pub access_token_life: Duration,
}

/// Where a client is.
#[derive(Clone, Debug, Serialize)]
pub struct Uris {
    /// Where people may come back to after they have signed in. Never empty.
    pub redirect_uris: Vec<String>,
    /// Where people may come back to after they have signed out.
    pub post_logout_redirect_uris: Vec<String>,
    /// Who is told about the end of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backchannel_logout_uri: Option<String>,
}

/// How the provider is started.
#[derive(Debug)]
pub struct OidcProviderKind {
    npm: Npm,
    /// The path of the orders, by which it is told from a stranger.
    mark: String,
    clients: Clients,
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            client_id: "playhouse".to_owned(),
            client_secret: "secret-of-the-client".to_owned(),
            uris: Uris::at("http://127.0.0.1:1"),
            service_id: "shop".to_owned(),
            service_secret: "secret-of-the-service".to_owned(),
            access_token_life: Duration::from_secs(300),
        }
    }
}

impl Uris {
    /// Those of a gateway whose public address this is.
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
    /// A provider for the caller alone.
    pub async fn start(clients: Clients) -> Result<Self, Error> {
        Server::of(OidcProviderKind::find(clients)?).await
    }

    /// `http://127.0.0.1:…`, without a slash at the end.
    pub fn issuer(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// The issuer's endpoint of that path.
    pub fn url(&self, path: &str) -> Url {
        Url::parse(&self.issuer()).and_then(|issuer| issuer.join(path)).expect("a path")
    }

    /// Moves the client that people sign in to: its address is often known only later.
    pub async fn set_uris(&self, uris: &Uris) {
        let mut order = json!(uris);
        order["client_id"] = json!(self.kind.clients.client_id);
        self.order("client", order).await;
    }

    /// Gives a person these roles and no others, from the next token on.
    pub async fn set_roles(&self, user: &str, roles: &[&str]) {
        self.order("roles", json!({ "user": user, "roles": roles })).await;
    }

    /// Signs with a new key from now on. The old ones are still published.
    pub async fn rotate_keys(&self) {
        self.order("rotate-keys", json!({})).await;
    }

    /// Publishes the newest key alone.
    pub async fn retire_keys(&self) {
        self.order("retire-keys", json!({})).await;
    }

    /// The identifiers of the published keys; the first is the one that signs.
    pub async fn keys(&self) -> Vec<String> {
        strings(&self.about().await["keys"])
    }

    /// Who has a session.
    pub async fn people(&self) -> Vec<String> {
        strings(&self.about().await["people"])
    }

    /// How many refresh tokens were taken and answered with new tokens since it was started.
    pub async fn refreshes(&self) -> u64 {
        self.about().await["refreshes"].as_u64().unwrap_or_default()
    }

    /// How many refresh tokens were refused since then: used before, run out, or revoked.
    pub async fn refused_refreshes(&self) -> u64 {
        self.about().await["refused"].as_u64().unwrap_or_default()
    }

    /// Ends the sessions of a person, revokes the tokens, and tells the clients by back-channel logout.
    /// Returns how many were told.
    ///
    /// # Panics
    /// When a client that is told does not answer with success.
    pub async fn end_sessions_of(&self, user: &str) -> u64 {
        let told = self.order("end-sessions", json!({ "user": user })).await;
        told["told"].as_u64().unwrap_or_default()
    }

    /// Answers everything with 503, or no longer.
    pub async fn fail(&self, on: bool) {
        self.order("faults", json!({ "failing": on })).await;
    }

    /// How many requests have arrived that are answered later, because it is [slow](Self::slow).
    pub async fn waiting(&self) -> u64 {
        self.about().await["waiting"].as_u64().unwrap_or_default()
    }

    /// Answers everything this much later.
    pub async fn slow(&self, by: Duration) {
        self.order("faults", json!({ "slow": by.as_millis() as u64 })).await;
    }

    async fn about(&self) -> Value {
        self.order("about", json!({})).await
    }

    async fn order(&self, name: &str, body: Value) -> Value {
        let url = self.kind.door(self.addr().port(), name);
        let done = http::ask_well(http::client().post(url).json(&body)).await;
        done.unwrap_or_else(|why| panic!("the identity provider has not done {name}: {why}"))
    }
}

impl OidcProviderKind {
    fn find(clients: Clients) -> Result<Self, Error> {
        Ok(Self { npm: Npm::find()?, mark: unique(), clients })
    }

    fn door(&self, port: u16, order: &str) -> String {
        format!("http://127.0.0.1:{port}/{}/{order}", self.mark)
    }

    fn config(&self, place: &Place) -> Value {
        let Clients { client_id, client_secret, uris, service_id, service_secret, access_token_life } =
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
            "port": place.port,
            "mark": self.mark,
            "state": place.data(),
            "audience": "playhouse",
            "access_token_seconds": access_token_life.as_secs(),
            "refresh_token_seconds": REFRESH_TOKENS_LIVE.as_secs(),
            "operator_prefix": "root-",
            "operator_role": "playhouse-operator",
            "service": { "client_id": service_id, "roles": ["playhouse-service", "playhouse-may-read"] },
            "clients": [client, service],
        })
    }
}

impl Kind for OidcProviderKind {
    fn name(&self) -> &'static str {
        "oidc-provider"
    }

    fn on_disk(&self) -> bool {
        false
    }

    fn prepare(&self, place: &Place) -> Result<(), Error> {
        let files = [("package.json", PACKAGE), (npm::LOCK, LOCK)];
        let packages = self.npm.folder(self.name(), &files)?.join("node_modules");
        // Beside the packages, which is where Node.js looks for them, and yet of this version.
        symlink(packages, place.folder().join("node_modules"))
            .and_then(|()| fs::write(script(place.folder()), SERVER))
            .map_err(|error| Error::failed(self.name(), error))
    }

    fn launch(&self, place: &Place) -> Launch {
        Launch::new(&self.npm.node)
            .arg(script(place.folder()))
            .arg(self.config(place).to_string())
            .folder(place.folder())
            .env("NODE_ENV", Some("production".into()))
    }

    async fn answers(&self, place: &Place) -> Result<(), String> {
        http::ask_well(http::client().post(self.door(place.port, "about"))).await.map(drop)
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
    use crate::server::assert_notices_taken_port;

    #[tokio::test]
    async fn a_taken_port_is_noticed() {
        let kind = || OidcProviderKind::find(Clients::default());
        assert_notices_taken_port(crate::need!(kind()), crate::need!(kind())).await;
    }

    #[test]
    fn the_lock_file_names_no_registry() {
        npm::assert_names_no_registry(LOCK);
    }
}
