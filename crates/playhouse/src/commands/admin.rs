//! Asking a running process at its admin port.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::Value;
use url::{Host, Url};

use super::{Misuse, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, encoded, layers, settings};
use crate::cli::{AsOperator, From};

const TIMEOUT: Duration = Duration::from_secs(10);
/// What tokens of ours look like: see `new_token`.
const TOKEN_PREFIX: &str = "ph_";
const MAX_TOKEN: usize = 16 * 1024;

/// A process to send requests to, and the operator who sends them.
pub(super) struct Admin {
    url: String,
    /// None where `playhouse dev` says where its token is.
    token: Option<String>,
    note: Option<String>,
}

impl Admin {
    /// At the address given, or else at listen.admin. The token is that of the flag, else of the environment.
    pub(super) fn find(given: Option<&str>, from: &From, operator: &AsOperator) -> anyhow::Result<Self> {
        let url = match given {
            Some(url) if url.contains("://") => url.trim_end_matches('/').to_owned(),
            Some(address) => format!("http://{}", address.trim_end_matches('/')),
            None => format!("http://{}", settings(layers(from)?)?.config.shared.listen.admin),
        };
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let token =
            match (&operator.operator_token_file, variable(TOKEN_VARIABLE), variable(TOKEN_FILE_VARIABLE)) {
                (Some(file), _, _) => Some(token_in(file)?),
                (None, Some(token), _) => Some(token.trim().to_owned()),
                (None, None, Some(file)) => Some(token_in(Path::new(&file))?),
                (None, None, None) => None,
            };
        Ok(Self { url, token, note: operator.note.clone() })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) async fn ask(&self, method: Method, path: &str) -> anyhow::Result<Value> {
        self.send(method, path, |request| request).await
    }

    /// Sends a request that the caller completes, with a body for example.
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
            None => token_of_dev(&client, admin).await,
        };
        let mut request = complete(client.request(method, format!("{admin}{path}")));
        if let Some(token) = &token {
            request = request.bearer_auth(token);
        }
        if let Some(note) = note {
            // A header has no line breaks.
            let note: String = note.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            request = request.header("x-audit-note", note.as_bytes());
        }
        let sent = request.send().await;
        let response = sent
            .with_context(|| format!("no process answers at {admin}: is one running? --admin says where"))?;
        let status = response.status();
        let body: Value =
            response.json().await.with_context(|| format!("{admin} is not an admin port of playhouse"))?;
        if status.is_success() {
            return Ok(body);
        }
        let detail = body["detail"].as_str().or(body["title"].as_str()).unwrap_or("no reason given");
        match (status, token.is_some()) {
            (StatusCode::UNAUTHORIZED, false) => bail!(
                "{admin} asks for an operator token: put it into {TOKEN_VARIABLE}, or name its file with --operator-token-file. \
                 `playhouse token --operator NAME` makes one, with the lines for the configuration"
            ),
            (StatusCode::UNAUTHORIZED, true) => bail!(
                "{admin} does not know this operator token: is it the token of another process, or has it expired? Its hash belongs \
                 into [operators.NAME] of the configuration"
            ),
            _ => bail!("{detail}"),
        }
    }
}

fn token_in(file: &Path) -> Result<String, Misuse> {
    let cannot = |why: String| Misuse(format!("cannot read the operator token in {}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| cannot(error.to_string()))?;
    let token = text.trim();
    if token.is_empty() || token.len() > MAX_TOKEN || token.contains(char::is_whitespace) {
        return Err(cannot("it does not hold one token and nothing else".to_owned()));
    }
    Ok(token.to_owned())
}

/// The token of `playhouse dev` on this machine, from the file that it names, if this user may read that.
///
/// The process that answers decides which file is read, so this is for loopback addresses alone, and nothing is sent that does not look
/// like a token of ours.
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

/// A path with the parameters that are given.
pub(super) fn query<'a>(
    path: &str,
    given: impl IntoIterator<Item = (&'a str, Option<&'a String>)>,
) -> String {
    let given = given.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", encoded(value?))));
    let given: Vec<String> = given.collect();
    if given.is_empty() { path.to_owned() } else { format!("{path}?{}", given.join("&")) }
}
