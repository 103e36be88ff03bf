//! Calls match functions, over gRPC and REST.

use std::net::SocketAddr;
use std::time::Duration;

use connectrpc::client::{CallOptions, ClientConfig, HttpClient};
use connectrpc::{ConnectError, Protocol};
use futures::StreamExt;
use futures::stream::BoxStream;
use proto::openmatch::{self, MatchFunctionClient, function_config};
use tokio::time::Instant;

use super::hosts::HostRules;
use crate::error::Error;

/// The largest match that a match function may propose, in bytes.
const MAX_MATCH: usize = 16 << 20;

/// Calls match functions. Connections are reused.
#[derive(Clone, Debug)]
pub(super) struct FunctionClient {
    rules: HostRules,
    grpc: HttpClient,
    rest: reqwest::Client,
}

/// A match function to call.
#[derive(Debug)]
pub(super) struct Function {
    address: SocketAddr,
    is_rest: bool,
    /// As the caller named it.
    pub(super) name: String,
}

impl FunctionClient {
    pub(super) fn new(rules: &HostRules) -> Result<Self, reqwest::Error> {
        Ok(Self { rules: rules.clone(), grpc: HttpClient::plaintext_http2_only(), rest: rest_client()? })
    }

    /// Checks the address of a match function.
    pub(super) async fn find(&self, config: &openmatch::FunctionConfig) -> Result<Function, Error> {
        let is_rest = match config.r#type.as_known() {
            Some(function_config::Type::GRPC) => false,
            Some(function_config::Type::REST) => true,
            None => {
                let text = "provided match function type is not supported";
                return Err(Error::Invalid(text.to_owned()));
            }
        };
        let port = u16::try_from(config.port).ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| Error::Invalid(".config.port must be from 1 to 65535".to_owned()))?;
        let address = self.rules.resolve(&config.host, port).await;
        let address = address.map_err(|error| Error::Invalid(format!(".config.host: {error}")))?;
        Ok(Function { address, is_rest, name: format!("{}:{port}", config.host) })
    }

    /// Calls a match function, which learns that its caller waits until `until`. Streams its proposals, and ends after an
    /// error.
    pub(super) fn run(
        &self,
        function: &Function,
        profile: openmatch::MatchProfile,
        until: Instant,
    ) -> BoxStream<'static, Result<openmatch::Match, String>> {
        let request = openmatch::RunRequest { profile: profile.into(), ..Default::default() };
        if function.is_rest {
            run_rest(self.rest.clone(), function.address, request, until)
        } else {
            run_grpc(self.grpc.clone(), function.address, request, until)
        }
    }
}

/// Returns a client for REST services of the game.
pub(super) fn rest_client() -> Result<reqwest::Client, reqwest::Error> {
    // A redirect or a proxy could lead to an address that was not checked.
    reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build()
}

/// Returns the configuration of a gRPC client.
pub(super) fn grpc_config(address: &str) -> Result<ClientConfig, ConnectError> {
    let uri = format!("http://{address}").parse();
    let uri = uri.map_err(|_| ConnectError::invalid_argument(format!("{address:?} is no address")))?;
    Ok(ClientConfig::new(uri).with_protocol(Protocol::Grpc).with_default_max_message_size(MAX_MATCH))
}

fn run_grpc(
    client: HttpClient,
    address: SocketAddr,
    request: openmatch::RunRequest,
    until: Instant,
) -> BoxStream<'static, Result<openmatch::Match, String>> {
    stream_of(move |proposals: Sender| async move {
        let config = grpc_config(&address.to_string()).map_err(|error| grpc_error(&error))?;
        let client = MatchFunctionClient::new(client, config);
        let options = CallOptions::default().with_timeout(time_until(until));
        let called = client.run_with_options(request, options).await;
        let mut responses = called.map_err(|error| grpc_error(&error))?;
        while let Some(response) = responses.message().await.map_err(|error| grpc_error(&error))? {
            let proposal = response.to_owned_message().proposal.into_option();
            if !send(&proposals, proposal).await {
                break;
            }
        }
        Ok(())
    })
}

fn run_rest(
    client: reqwest::Client,
    address: SocketAddr,
    request: openmatch::RunRequest,
    until: Instant,
) -> BoxStream<'static, Result<openmatch::Match, String>> {
    stream_of(move |proposals: Sender| async move {
        let url = format!("http://{address}/v1/matchfunction:run");
        let mut lines = RestLines::post(&client, &url, &request, until).await?;
        while let Some(response) = lines.next::<openmatch::RunResponse>().await? {
            if !send(&proposals, response.proposal.into_option()).await {
                break;
            }
        }
        Ok(())
    })
}

/// Returns how long a service may take. Longer than zero, which means no limit to some services.
pub(super) fn time_until(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// Writes a time in milliseconds, or in seconds if that has more than the 8 digits that gRPC allows.
fn grpc_timeout(time: Duration) -> String {
    match time.as_millis() {
        millis @ ..=99_999_999 => format!("{millis}m"),
        _ => format!("{}S", time.as_secs()),
    }
}

/// Words an error as gRPC clients of Go do, which operators of Open Match know.
pub(super) fn grpc_error(error: &ConnectError) -> String {
    let text = error.message.as_deref().unwrap_or_default();
    format!("rpc error: code = {:?} desc = {text}", error.code)
}

type Sender = tokio::sync::mpsc::Sender<Result<openmatch::Match, String>>;

/// Returns false if nobody reads the proposals any more.
async fn send(proposals: &Sender, proposal: Option<openmatch::Match>) -> bool {
    proposals.send(Ok(proposal.unwrap_or_default())).await.is_ok()
}

/// How many proposals may wait to be claimed together.
const BUFFER: usize = 64;

/// Turns a call into a stream of its proposals. Dropping the stream cancels the call.
fn stream_of<F>(
    call: impl FnOnce(Sender) -> F + Send + 'static,
) -> BoxStream<'static, Result<openmatch::Match, String>>
where
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let (sender, receiver) = tokio::sync::mpsc::channel(BUFFER);
    let calling = tokio::spawn(async move {
        if let Err(error) = call(sender.clone()).await {
            // An error means that nobody reads the proposals any more.
            let _ = sender.send(Err(error)).await;
        }
    });
    let calling = AbortOnDrop(calling);
    let next = async |(mut receiver, calling): (tokio::sync::mpsc::Receiver<_>, AbortOnDrop)| {
        Some((receiver.recv().await?, (receiver, calling)))
    };
    futures::stream::unfold((receiver, calling), next).boxed()
}

/// Cancels a task when dropped.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The lines of a streaming REST response: JSON objects with a `result` or an `error`.
pub(super) struct RestLines {
    response: reqwest::Response,
    buffer: Vec<u8>,
    /// How much of the buffer was searched for the end of a line.
    searched: usize,
    is_at_end: bool,
}

#[derive(serde::Deserialize)]
struct Line<T> {
    result: Option<T>,
    error: Option<serde_json::Value>,
}

impl RestLines {
    pub(super) async fn post(
        client: &reqwest::Client,
        url: &str,
        body: &impl serde::Serialize,
        until: Instant,
    ) -> Result<Self, String> {
        let body = serde_json::to_vec(body).map_err(|error| error.to_string())?;
        Self::post_bytes(client, url, body, until).await
    }

    pub(super) async fn post_bytes(
        client: &reqwest::Client,
        url: &str,
        body: Vec<u8>,
        until: Instant,
    ) -> Result<Self, String> {
        let request = client.post(url).header("content-type", "application/json").body(body);
        // The header by which HTTP gateways of gRPC services know a deadline.
        let request = request.header("grpc-timeout", grpc_timeout(time_until(until)));
        let response = request.send().await.map_err(|error| rest_error(&error))?;
        let status = response.status();
        if !status.is_success() {
            let text = response.text().await.unwrap_or_default();
            let text: String = text.chars().take(500).collect();
            return Err(format!("the service answered {status}: {text}"));
        }
        Ok(Self { response, buffer: Vec::new(), searched: 0, is_at_end: false })
    }

    /// Returns the next result. Returns `None` at the end.
    pub(super) async fn next<T: serde::de::DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
        loop {
            let line = match self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    let rest = self.buffer.split_off(self.searched + end + 1);
                    self.searched = 0;
                    std::mem::replace(&mut self.buffer, rest)
                }
                None if self.is_at_end && self.buffer.is_empty() => return Ok(None),
                None if self.is_at_end => {
                    self.searched = 0;
                    std::mem::take(&mut self.buffer)
                }
                None => {
                    self.searched = self.buffer.len();
                    if self.searched > 2 * MAX_MATCH {
                        return Err(format!("a line of the response is larger than {} bytes", 2 * MAX_MATCH));
                    }
                    match self.response.chunk().await.map_err(|error| rest_error(&error))? {
                        Some(chunk) => self.buffer.extend_from_slice(&chunk),
                        None => self.is_at_end = true,
                    }
                    continue;
                }
            };
            if line.trim_ascii().is_empty() {
                continue;
            }
            let line: Line<T> = serde_json::from_slice(&line)
                .map_err(|error| format!("cannot read a line of the response: {error}"))?;
            match (line.result, line.error) {
                (_, Some(error)) => return Err(format!("the service failed: {error}")),
                (Some(result), None) => return Ok(Some(result)),
                (None, None) => return Err("a line of the response has no result".to_owned()),
            }
        }
    }
}

fn rest_error(error: &reqwest::Error) -> String {
    base::error::chain(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_at_most_eight_digits() {
        for (millis, text) in
            [(1, "1m"), (20_000, "20000m"), (99_999_999, "99999999m"), (172_801_000, "172801S")]
        {
            assert_eq!(grpc_timeout(Duration::from_millis(millis)), text);
        }
    }
}
