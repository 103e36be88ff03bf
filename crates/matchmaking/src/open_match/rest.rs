//! REST as Open Match's HTTP gateway offers it: a request becomes a Connect call in JSON within the process.
//!
//! - A path variable is the field of that name. The body, if there is one, holds the other fields, by their names in the .proto file or
//!   in JSON.
//! - `Grpc-Timeout` is the deadline of the call, such as `1500m` for milliseconds.
//! - An answer is the message. A stream is one line per message, `{"result": …}`, and `{"error": …}` if it fails.
//! - An error is `{"code": …, "message": …, "details": []}` with the gRPC code, and the HTTP status that the gateway maps it to: 400 for
//!   FAILED_PRECONDITION, 409 for ABORTED, 501 for UNIMPLEMENTED.

use std::collections::BTreeSet;
use std::convert::Infallible;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on, options};
use buffa_descriptor::{MessageDescriptor, MethodDescriptor};
use bytes::{Buf, BytesMut};
use connectrpc::{ConnectError, ConnectRpcService, ErrorCode};
use futures::{FutureExt, Stream, StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tower::Service;

use super::{SCHEMA, names};

/// The deadline of a call, as HTTP gateways of gRPC services take it.
const TIMEOUT: &str = "grpc-timeout";

/// A REST route of Open Match.
#[derive(Clone, Copy, Debug)]
pub struct RestRoute {
    filter: MethodFilter,
    /// Variables have the names of fields: `/v1/frontendservice/tickets/{ticket_id}`.
    path: &'static str,
    /// The name of the method that it calls.
    method: &'static str,
}

impl RestRoute {
    pub const fn get(path: &'static str, method: &'static str) -> Self {
        Self { filter: MethodFilter::GET, path, method }
    }

    pub const fn post(path: &'static str, method: &'static str) -> Self {
        Self { filter: MethodFilter::POST, path, method }
    }

    pub const fn patch(path: &'static str, method: &'static str) -> Self {
        Self { filter: MethodFilter::PATCH, path, method }
    }

    pub const fn delete(path: &'static str, method: &'static str) -> Self {
        Self { filter: MethodFilter::DELETE, path, method }
    }
}

/// Returns the REST routes of a service that `rpc` implements.
pub(super) fn router(
    rpc: &ConnectRpcService,
    service: &'static str,
    max_request: usize,
    routes: &'static [RestRoute],
) -> Router {
    let methods = SCHEMA.service_by_name(service);
    routes.iter().fold(Router::new(), |router, route| {
        let Some(method) = methods.and_then(|service| service.method(route.method)) else { return router };
        let call =
            Call { rpc: rpc.clone(), path: format!("/{service}/{}", route.method), max_request, method };
        let handler = async move |variables: RawPathParams, request: Request| {
            call.answer(&variables, request).await.unwrap_or_else(failure)
        };
        router.route(route.path, on(route.filter, handler))
    })
}

/// Returns the routes with an answer to OPTIONS, which a layer turns into the answer to a preflight of a browser.
pub(super) fn with_options(router: Router, routes: &[RestRoute]) -> Router {
    let paths: BTreeSet<&'static str> = routes.iter().map(|route| route.path).collect();
    paths
        .into_iter()
        .fold(router, |router, path| router.route(path, options(async || StatusCode::NO_CONTENT)))
}

/// A method that is called over REST.
#[derive(Clone)]
struct Call {
    rpc: ConnectRpcService,
    path: String,
    max_request: usize,
    method: &'static MethodDescriptor,
}

impl Call {
    fn input(&self) -> &'static MessageDescriptor {
        SCHEMA.message(self.method.input())
    }

    fn output(&self) -> &'static MessageDescriptor {
        SCHEMA.message(self.method.output())
    }

    async fn answer(mut self, variables: &RawPathParams, request: Request) -> Result<Response, ConnectError> {
        let (parts, body) = request.into_parts();
        // A GET or DELETE says everything in its path.
        let has_body = matches!(parts.method, Method::POST | Method::PATCH);
        let body = if has_body { self.read(body).await? } else { Map::new() };
        let message = Value::Object(self.with_variables(body, variables)).to_string();
        let is_stream = self.method.is_server_streaming();
        let (kind, body) = match is_stream {
            true => ("application/connect+json", envelope(&message)),
            false => ("application/json", message.into()),
        };
        let mut call = Request::post(&self.path).header(CONTENT_TYPE, kind);
        if let Some(timeout) = parts.headers.get(TIMEOUT) {
            call = call.header("connect-timeout-ms", milliseconds(timeout)?);
        }
        let call = call.body(Body::from(body));
        let mut call = call.map_err(|error| ConnectError::internal(error.to_string()))?;
        // The connection, its trace and its request id.
        *call.extensions_mut() = parts.extensions;
        let response = match self.rpc.call(call).await {
            Ok(response) => response.map(Body::new),
            Err(never) => match never {},
        };
        if is_stream { self.stream(response).await } else { self.message(response).await }
    }

    async fn read(&self, body: Body) -> Result<Map<String, Value>, ConnectError> {
        let limit = self.max_request;
        let too_large = |_| ConnectError::resource_exhausted(format!("the body has more than {limit} bytes"));
        let body = axum::body::to_bytes(body, limit).await.map_err(too_large)?;
        if body.trim_ascii().is_empty() {
            return Ok(Map::new());
        }
        serde_json::from_slice(&body).map_err(|error| {
            let message = self.input().full_name().rsplit('.').next().unwrap_or_default();
            ConnectError::invalid_argument(format!("the body is not a {message} in JSON: {error}"))
        })
    }

    /// Adds the path variables to the fields of a body. They win over the body.
    fn with_variables(&self, mut body: Map<String, Value>, variables: &RawPathParams) -> Map<String, Value> {
        for (name, value) in variables {
            if let Some(field) = self.input().field_by_name(name) {
                body.remove(field.json_name());
            }
            body.insert(name.to_owned(), value.into());
        }
        body
    }

    async fn message(&self, response: Response) -> Result<Response, ConnectError> {
        let status = response.status();
        let body = collect(response).await?;
        if status != StatusCode::OK {
            return Err(parse_error(&body));
        }
        Ok(json_response(status, self.rename(&body).to_string()))
    }

    fn rename(&self, message: &[u8]) -> Value {
        let mut message = serde_json::from_slice(message).unwrap_or_default();
        names::to_original(&mut message, self.output());
        message
    }

    async fn stream(self, response: Response) -> Result<Response, ConnectError> {
        if response.status() != StatusCode::OK {
            return Err(parse_error(&collect(response).await?));
        }
        // Fused, because an answer without messages has ended by then.
        let mut lines = Box::pin(self.lines(response).fuse());
        // A call that has failed already gets the status of its error.
        let first = lines.next().now_or_never();
        if let Some(Some(Err(error))) = first {
            let body = json!({ "error": error_body(&error) });
            return Ok(json_response(error.http_status(), format!("{body}\n")));
        }
        let lines = stream::iter(first.flatten()).chain(lines).map(|line| {
            let line = line.unwrap_or_else(|error| json!({ "error": error_body(&error) }));
            Ok::<_, Infallible>(format!("{line}\n"))
        });
        Ok(json_response(StatusCode::OK, Body::from_stream(lines)))
    }

    /// Returns the messages of a stream, and at the end its error if it has one.
    fn lines(self, response: Response) -> impl Stream<Item = Result<Value, ConnectError>> + Send {
        let frames = Frames { body: response.into_body().into_data_stream(), buffer: BytesMut::new() };
        stream::unfold(Some((frames, self)), async |state| {
            let (mut frames, call) = state?;
            match frames.next().await {
                Ok(Some(Frame::Message(message))) => {
                    Some((Ok(json!({ "result": call.rename(&message) })), Some((frames, call))))
                }
                Ok(Some(Frame::End(end))) => Some((Err(end_error(&end)?), None)),
                Ok(None) => Some((Err(ConnectError::internal("the stream broke off")), None)),
                Err(error) => Some((Err(error), None)),
            }
        })
    }
}

/// Reads a `Grpc-Timeout`: up to 8 digits and a unit. Returns milliseconds, at least one, as the Connect protocol wants them.
fn milliseconds(timeout: &HeaderValue) -> Result<u64, ConnectError> {
    let text = timeout.to_str().unwrap_or_default();
    let parse = || {
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let count: u64 = digits.parse().ok().filter(|_| digits.len() <= 8 && !digits.starts_with('+'))?;
        Some(match unit {
            "H" => count * 3_600_000,
            "M" => count * 60_000,
            "S" => count * 1000,
            "m" => count,
            "u" => count.div_ceil(1000),
            "n" => count.div_ceil(1_000_000),
            _ => return None,
        })
    };
    // The most that the Connect protocol can say: 115 days.
    let time = parse().map(|time| time.clamp(1, 9_999_999_999));
    time.ok_or_else(|| ConnectError::invalid_argument(format!("invalid grpc-timeout: {text}")))
}

/// The frames of a stream in the Connect protocol: a flag, the length in four bytes, the message.
struct Frames {
    body: axum::body::BodyDataStream,
    buffer: BytesMut,
}

enum Frame {
    Message(Bytes),
    End(Bytes),
}

const HEAD: usize = connectrpc::envelope::HEADER_SIZE;

impl Frames {
    async fn next(&mut self) -> Result<Option<Frame>, ConnectError> {
        loop {
            if let Some(frame) = self.parse() {
                return Ok(Some(frame));
            }
            match self.body.next().await {
                Some(Ok(data)) => self.buffer.extend_from_slice(&data),
                Some(Err(error)) => return Err(ConnectError::internal(error.to_string())),
                None => return Ok(None),
            }
        }
    }

    fn parse(&mut self) -> Option<Frame> {
        let (flag, length) = (*self.buffer.first()?, self.buffer.get(1..HEAD)?);
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if self.buffer.len() < HEAD + length {
            return None;
        }
        self.buffer.advance(HEAD);
        let message = self.buffer.split_to(length).freeze();
        let is_end = flag & connectrpc::envelope::flags::END_STREAM != 0;
        Some(if is_end { Frame::End(message) } else { Frame::Message(message) })
    }
}

/// Returns a message as the only frame of a request.
fn envelope(message: &str) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0], &length[..], message.as_bytes()].concat()
}

async fn collect(response: Response) -> Result<Bytes, ConnectError> {
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
    body.map_err(|error| ConnectError::internal(error.to_string()))
}

/// An error of the Connect protocol.
#[derive(Deserialize)]
struct WireError {
    code: ErrorCode,
    #[serde(default)]
    message: String,
}

impl From<WireError> for ConnectError {
    fn from(error: WireError) -> Self {
        Self::new(error.code, error.message)
    }
}

fn parse_error(body: &[u8]) -> ConnectError {
    let error = serde_json::from_slice::<WireError>(body);
    error.map_or_else(|error| ConnectError::internal(error.to_string()), Into::into)
}

/// Returns the error at the end of a stream.
fn end_error(end: &[u8]) -> Option<ConnectError> {
    #[derive(Deserialize)]
    struct End {
        error: Option<WireError>,
    }
    serde_json::from_slice::<End>(end).ok()?.error.map(Into::into)
}

fn error_body(error: &ConnectError) -> Value {
    json!({ "code": error.code.grpc_code(), "message": error.message.as_deref().unwrap_or_default(), "details": [] })
}

fn failure(error: ConnectError) -> Response {
    json_response(error.http_status(), error_body(&error).to_string())
}

fn json_response(status: StatusCode, body: impl Into<Body>) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], body.into()).into_response()
}
