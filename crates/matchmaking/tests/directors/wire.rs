//! Directors: in the process, or over gRPC or REST as a Director in another process calls.

use std::sync::Arc;

use connectrpc::client::{ClientConfig, HttpClient};
use connectrpc::{ConnectError, ErrorCode, Protocol};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, stream};
use matchmaking::{Backend, Error};
use proto::openmatch::{
    self, AssignmentFailure, AssignmentGroup, BackendServiceClient, FetchMatchesRequest,
    FetchMatchesResponse, FunctionConfig, Match, MatchProfile,
};
use runtime::Drain;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::listener::Listening;

/// The matches of a call.
pub(crate) type Matches = BoxStream<'static, Result<Match, Error>>;

/// How Directors call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    InProcess,
    Grpc,
    Rest,
}

/// The calls of a Director.
pub(crate) enum Director {
    InProcess(Backend),
    Grpc(Arc<Listening>, Box<BackendServiceClient<HttpClient>>),
    Rest(Arc<Listening>, reqwest::Client),
}

impl Director {
    pub(crate) fn grpc(listening: Arc<Listening>) -> Self {
        let config = ClientConfig::new(format!("http://{}", listening.address).parse().unwrap());
        let config = config.with_protocol(Protocol::Grpc);
        let client = BackendServiceClient::new(HttpClient::plaintext_http2_only(), config);
        Self::Grpc(listening, Box::new(client))
    }

    /// Fails if the request is refused. On the wire, a requested drain stops the process.
    pub(crate) async fn fetch_matches(
        &self,
        config: Option<FunctionConfig>,
        profile: Option<MatchProfile>,
        drain: Drain,
    ) -> Result<Matches, Error> {
        let listening = match self {
            Self::InProcess(backend) => {
                return Ok(backend.fetch_matches(config, profile, None, drain).await?.boxed());
            }
            Self::Grpc(listening, _) | Self::Rest(listening, _) => listening.clone(),
        };
        tokio::spawn(async move {
            drain.requested().await;
            listening.stop();
        });
        let request =
            FetchMatchesRequest { config: config.into(), profile: profile.into(), ..Default::default() };
        match self {
            Self::InProcess(_) => unreachable!(),
            Self::Grpc(_, client) => fetch_by_grpc(client, request).await,
            Self::Rest(listening, client) => fetch_by_rest(listening, client, request).await,
        }
    }

    pub(crate) async fn assign_tickets(
        &self,
        assignments: Vec<AssignmentGroup>,
    ) -> Result<Vec<AssignmentFailure>, Error> {
        let request = openmatch::AssignTicketsRequest { assignments, ..Default::default() };
        match self {
            Self::InProcess(backend) => backend.assign_tickets(request.assignments).await,
            Self::Grpc(_, client) => {
                let assigned = client.assign_tickets(request).await.map_err(from_grpc)?;
                Ok(assigned.into_owned().failures)
            }
            Self::Rest(listening, client) => {
                let path = "tickets:assign";
                let assigned: openmatch::AssignTicketsResponse =
                    post(listening, client, path, request).await?;
                Ok(assigned.failures)
            }
        }
    }

    pub(crate) async fn release_tickets(&self, ids: &[impl AsRef<str>]) -> Result<(), Error> {
        let ticket_ids = ids.iter().map(|id| id.as_ref().to_owned()).collect();
        let request = openmatch::ReleaseTicketsRequest { ticket_ids, ..Default::default() };
        match self {
            Self::InProcess(backend) => backend.release_tickets(ids).await,
            Self::Grpc(_, client) => client.release_tickets(request).await.map(drop).map_err(from_grpc),
            Self::Rest(listening, client) => {
                post::<Value>(listening, client, "tickets:release", request).await.map(drop)
            }
        }
    }

    pub(crate) async fn release_all_tickets(&self) -> Result<(), Error> {
        let request = openmatch::ReleaseAllTicketsRequest::default();
        match self {
            Self::InProcess(backend) => backend.release_all_tickets().await,
            Self::Grpc(_, client) => client.release_all_tickets(request).await.map(drop).map_err(from_grpc),
            Self::Rest(listening, client) => {
                post::<Value>(listening, client, "tickets:releaseall", request).await.map(drop)
            }
        }
    }
}

async fn fetch_by_grpc(
    client: &BackendServiceClient<HttpClient>,
    request: FetchMatchesRequest,
) -> Result<Matches, Error> {
    let mut responses = match client.fetch_matches(request).await.map_err(from_grpc) {
        Ok(responses) => responses,
        Err(refused @ Error::Invalid(_)) => return Err(refused),
        Err(failed) => return Ok(stream::iter([Err(failed)]).boxed()),
    };
    let first = match responses.message().now_or_never() {
        Some(Ok(Some(first))) => Some(first.to_owned_message()),
        Some(Err(error)) => match from_grpc(error) {
            refused @ Error::Invalid(_) => return Err(refused),
            failed => return Ok(stream::iter([Err(failed)]).boxed()),
        },
        Some(Ok(None)) | None => None,
    };
    let rest = stream::unfold(Some(responses), async |responses| {
        let mut responses = responses?;
        match responses.message().await {
            Ok(response) => Some((Ok(response?.to_owned_message()), Some(responses))),
            Err(error) => Some((Err(from_grpc(error)), None)),
        }
    });
    let all = stream::iter(first.map(Ok)).chain(rest);
    Ok(all
        .map(|response: Result<FetchMatchesResponse, Error>| {
            Ok(response?.r#match.into_option().unwrap_or_default())
        })
        .boxed())
}

async fn fetch_by_rest(
    listening: &Listening,
    client: &reqwest::Client,
    request: FetchMatchesRequest,
) -> Result<Matches, Error> {
    let url = format!("http://{}/v1/backendservice/matches:fetch", listening.address);
    let body = serde_json::to_string(&request).unwrap();
    let response = client.post(url).body(body).send().await.unwrap();
    if response.status() == 400 {
        let refused: Value = response.json().await.unwrap();
        return Err(from_rest(&refused["error"]));
    }
    let lines = stream::unfold((response, Vec::new()), async |(mut response, mut read)| {
        loop {
            if let Some(end) = read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = read.drain(..=end).collect();
                return Some((serde_json::from_slice::<Value>(&line).unwrap(), (response, read)));
            }
            read.extend_from_slice(&response.chunk().await.unwrap()?);
        }
    });
    Ok(lines
        .map(|mut line| match line.get("error") {
            Some(error) => Err(from_rest(error)),
            None => Ok(serde_json::from_value::<Match>(line["result"]["match"].take()).unwrap()),
        })
        .boxed())
}

async fn post<T: DeserializeOwned>(
    listening: &Listening,
    client: &reqwest::Client,
    path: &str,
    body: impl serde::Serialize,
) -> Result<T, Error> {
    let url = format!("http://{}/v1/backendservice/{path}", listening.address);
    let response = client.post(url).body(serde_json::to_string(&body).unwrap()).send().await.unwrap();
    if !response.status().is_success() {
        return Err(from_rest(&response.json().await.unwrap()));
    }
    Ok(response.json().await.unwrap())
}

/// Returns the error that the service had.
fn from_grpc(error: ConnectError) -> Error {
    let text = error.message.unwrap_or_default();
    match error.code {
        ErrorCode::InvalidArgument => Error::Invalid(text),
        ErrorCode::Unknown => Error::Function(text),
        ErrorCode::Unavailable => Error::Stopping,
        code => panic!("{code:?}: {text}"),
    }
}

fn from_rest(error: &Value) -> Error {
    let text = error["message"].as_str().unwrap().to_owned();
    assert_eq!(error["details"], Value::Array(Vec::new()));
    match error["code"].as_u64() {
        Some(3) => Error::Invalid(text),
        Some(2) => Error::Function(text),
        Some(14) => Error::Stopping,
        code => panic!("{code:?}: {text}"),
    }
}
