//! Asking a running process at its admin port.

use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::Value;

use super::{encoded, layers, settings};
use crate::cli::From;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Where a process is asked.
pub(super) struct Admin(String);

impl Admin {
    /// At the address given, or else at listen.admin.
    pub(super) fn find(given: Option<&str>, from: &From) -> anyhow::Result<Self> {
        Ok(Self(match given {
            Some(url) if url.contains("://") => url.trim_end_matches('/').to_owned(),
            Some(address) => format!("http://{}", address.trim_end_matches('/')),
            None => format!("http://{}", settings(layers(from)?)?.config.shared.listen.admin),
        }))
    }

    /// At this address.
    pub(super) fn at(address: &str) -> Self {
        Self(format!("http://{address}"))
    }

    pub(super) fn url(&self) -> &str {
        &self.0
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
        let Self(admin) = self;
        let client = Client::builder().timeout(TIMEOUT).build()?;
        let sent = complete(client.request(method, format!("{admin}{path}"))).send().await;
        let response = sent
            .with_context(|| format!("no process answers at {admin}: is one running? --admin says where"))?;
        let status = response.status();
        let body: Value =
            response.json().await.with_context(|| format!("{admin} is not an admin port of playhouse"))?;
        if !status.is_success() {
            let detail = body["detail"].as_str().or(body["title"].as_str()).unwrap_or("no reason given");
            bail!("{detail}");
        }
        Ok(body)
    }
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
