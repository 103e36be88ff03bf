//! The client of the admin API: how commands call a running process.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::Value;
use url::{Host, Url};

use super::{TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, UsageError, encoded, layers, settings};
use crate::cli::{ConfigArgs, OperatorArgs};

const TIMEOUT: Duration = Duration::from_secs(10);
/// The prefix of our tokens: see `new_token`.
const TOKEN_PREFIX: &str = "ph_";
const MAX_TOKEN: usize = 16 * 1024;

/// Sends requests to the admin API of a process, as an operator.
pub(super) struct AdminClient {
    url: String,
    /// None if the process is `playhouse dev`, which says where its token is.
    token: Option<GivenToken>,
    note: Option<String>,
}

/// An operator token, and where it was given.
#[derive(Clone)]
struct GivenToken {
    secret: String,
    origin: String,
}

impl AdminClient {
    /// Uses the given address or else listen.admin, and the token of the flag or else of the environment.
    pub(super) fn new(
        given: Option<&str>,
        from: &ConfigArgs,
        operator: &OperatorArgs,
    ) -> anyhow::Result<Self> {
        let url = match given {
            Some(url) if url.contains("://") => url.trim_end_matches('/').to_owned(),
            Some(address) => format!("http://{}", address.trim_end_matches('/')),
            None => format!("http://{}", settings(layers(from)?)?.config.shared.listen.admin),
        };
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let given = |secret: String, origin: String| Some(GivenToken { secret, origin });
        let token =
            match (&operator.operator_token_file, variable(TOKEN_VARIABLE), variable(TOKEN_FILE_VARIABLE)) {
                (Some(file), _, _) => given(token_in(file)?, format!("of {}", file.display())),
                (None, Some(token), _) => given(token.trim().to_owned(), format!("of {TOKEN_VARIABLE}")),
                (None, None, Some(file)) => {
                    given(token_in(Path::new(&file))?, format!("of {file} ({TOKEN_FILE_VARIABLE})"))
                }
                (None, None, None) => None,
            };
        Ok(Self { url, token, note: operator.note.clone() })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the operator token: the given one, or that of a `playhouse dev` on this machine.
    pub(super) async fn token(&self) -> anyhow::Result<String> {
        if let Some(token) = &self.token {
            return Ok(token.secret.clone());
        }
        let client = Client::builder().timeout(TIMEOUT).build()?;
        token_of_dev(&client, &self.url).await.with_context(|| {
            format!(
                "no operator token for {}. Is `playhouse dev` running there? For another instance set {TOKEN_VARIABLE}, or name the \
                 file with --operator-token-file",
                self.url
            )
        })
    }

    /// Sends a request without a body.
    pub(super) async fn call(&self, method: Method, path: &str) -> anyhow::Result<Value> {
        self.send(method, path, |request| request).await
    }

    /// Sends a request that the caller completes, for example with a body.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        complete: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> anyhow::Result<Value> {
        let Self { url: admin, token, note } = self;
        let client = Client::builder().timeout(TIMEOUT).build()?;
        let token = match token {
            Some(token) => Some(token.clone()),
            None => token_of_dev(&client, admin)
                .await
                .map(|secret| GivenToken { secret, origin: "that it names itself".to_owned() }),
        };
        let mut request = complete(client.request(method, format!("{admin}{path}")));
        if let Some(token) = &token {
            request = request.bearer_auth(&token.secret);
        }
        if let Some(note) = note {
            // A header cannot contain line breaks.
            let note: String = note.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            request = request.header("x-audit-note", note.as_bytes());
        }
        let sent = request.send().await;
        let response = sent.with_context(|| {
            format!("no process answers at {admin}. Is it running? Give its address with --admin")
        })?;
        let status = response.status();
        let body: Value = response
            .json()
            .await
            .with_context(|| format!("{admin} is not the admin API of a playhouse process"))?;
        if status.is_success() {
            return Ok(body);
        }
        // Older processes send null.
        let has_detail = !body["detail"].is_null() && body["detail"] != body["title"];
        if status == StatusCode::SERVICE_UNAVAILABLE && !has_detail {
            let missing =
                self.missing_store(&client, token.as_ref().map(|token| token.secret.as_str())).await;
            bail!("{} does not answer; run `playhouse doctor`", missing.unwrap_or("A store"));
        }
        let detail = body["detail"].as_str().or(body["title"].as_str()).unwrap_or("no reason given");
        match (status, &token) {
            (StatusCode::UNAUTHORIZED, None) => bail!(
                "{admin} requires an operator token: set {TOKEN_VARIABLE}, or name the file with --operator-token-file. \
                 `playhouse token --operator NAME` creates a token and prints the lines for the configuration"
            ),
            (StatusCode::UNAUTHORIZED, Some(GivenToken { origin, .. })) => bail!(
                "{admin} does not know the operator token {origin}. Is it the token of another process, or has it expired? Its hash \
                 must be in [operators.NAME] of the configuration. `playhouse dev` needs no token from you: unset the variable"
            ),
            _ => bail!("{detail}"),
        }
    }

    /// Finds the store that is not ready according to the process.
    async fn missing_store(&self, client: &Client, token: Option<&str>) -> Option<&'static str> {
        let request = client.get(format!("{}/readyz", self.url));
        let request = token.iter().fold(request, |request, token| request.bearer_auth(token));
        let report: Value = request.send().await.ok()?.json().await.ok()?;
        let is_away = |part: &str| report["parts"][part]["ready"] == false;
        let stores = [("db", "The database"), ("redis", "Redis"), ("bus", "The bus (NATS)")];
        stores.into_iter().find(|(part, _)| is_away(part)).map(|(_, name)| name)
    }
}

fn token_in(file: &Path) -> Result<String, UsageError> {
    let cannot =
        |why: String| UsageError(format!("cannot read the operator token in {}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| cannot(error.to_string()))?;
    let token = text.trim();
    if token.is_empty() || token.len() > MAX_TOKEN || token.contains(char::is_whitespace) {
        return Err(cannot("the file must contain one token and nothing else".to_owned()));
    }
    Ok(token.to_owned())
}

/// Reads the token of a `playhouse dev` on this machine from the file that it names. Returns none if this user may not read it.
///
/// The process that answers chooses the file, so this is done for loopback addresses only, and the content is sent only if it looks like
/// one of our tokens.
async fn token_of_dev(client: &Client, admin: &str) -> Option<String> {
    let url = Url::parse(admin).ok()?;
    let is_local = match url.host()? {
        Host::Domain(name) => name == "localhost",
        Host::Ipv4(address) => IpAddr::from(address).is_loopback(),
        Host::Ipv6(address) => IpAddr::from(address).is_loopback(),
    };
    if !is_local {
        return None;
    }
    let index: Value = client.get(url).send().await.ok()?.json().await.ok()?;
    let token = token_in(Path::new(index["operator_token_file"].as_str()?)).ok()?;
    let rest = token.strip_prefix(TOKEN_PREFIX)?;
    let is_ours = rest.len() == 64 && rest.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_ours.then_some(token)
}

/// Returns a path with those parameters that have a value.
pub(super) fn query<'a>(
    path: &str,
    given: impl IntoIterator<Item = (&'a str, Option<&'a String>)>,
) -> String {
    let given = given.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", encoded(value?))));
    let given: Vec<String> = given.collect();
    if given.is_empty() { path.to_owned() } else { format!("{path}?{}", given.join("&")) }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use axum::{Json, Router};
    use serde_json::json;

    use super::*;

    /// A foreign process on the port of `dev` gets no file of the user.
    #[tokio::test]
    async fn only_a_token_of_ours_is_sent_and_only_to_this_machine() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let index = json!({ "operator_token_file": file });
        let routes = Router::new().route("/", get(async move || Json(index)));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await });
        let client = Client::new();
        let read = async |host: &str, content: &str| {
            std::fs::write(&file, content).unwrap();
            token_of_dev(&client, &format!("http://{host}:{port}")).await
        };

        let ours = format!("{TOKEN_PREFIX}{}", "0123456789abcdef".repeat(4));
        assert_eq!(read("127.0.0.1", &ours).await.as_deref(), Some(&*ours));
        for foreign in ["the content of another file", "ph_short", &ours.replace('f', "g")] {
            assert_eq!(read("127.0.0.1", foreign).await, None, "{foreign}");
        }
        // Not asked at all: this address leads to the same process.
        assert_eq!(read("0.0.0.0", &ours).await, None);
        serving.abort();
    }
}
