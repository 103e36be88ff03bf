//! Errors as callers see them: problem documents, or gRPC statuses.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use base::Code;
use base::id::RequestId;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::{Map, Value, json};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// How many seconds a caller waits before it repeats a request that could not be served, where the handler names no time.
const RETRY_SECONDS: u16 = 1;

/// An error for the caller. What happened inside is logged by whoever makes one, and is not in here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    code: Code,
    cause: Option<&'static str>,
    detail: Option<String>,
    members: Vec<(&'static str, Value)>,
}

impl Problem {
    pub const fn new(code: Code) -> Self {
        Self { code, cause: None, detail: None, members: Vec::new() }
    }

    /// Names the cause, where programs tell several causes of one code apart. The `type` of the document is then
    /// `urn:playhouse:problem:CAUSE`. A cause never changes its name.
    pub const fn cause(mut self, cause: &'static str) -> Self {
        self.cause = Some(cause);
        self
    }

    /// What the caller can do about it.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// One more member of the document, for programs to read. Those that every problem has cannot be replaced.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.members.push((name, value.into()));
        self
    }

    /// The answer in the caller's protocol. Headers that were added to `response` on the way stay.
    pub(super) fn render(&self, request_id: &RequestId, is_grpc: bool, mut response: Response) -> Response {
        response.headers_mut().remove(CONTENT_LENGTH);
        if is_grpc {
            self.render_grpc(&mut response);
            return response;
        }
        let problem_type = self.cause.map_or_else(|| self.code.problem_type(), Code::problem_type_of);
        let every = [
            ("type", json!(problem_type)),
            ("title", json!(self.code.title())),
            ("status", json!(self.code.http_status())),
            ("detail", json!(self.detail)),
            ("request_id", json!(request_id.as_str())),
        ];
        let members = self.members.iter().cloned().chain(every);
        let document: Map<String, Value> = members.map(|(name, value)| (name.to_owned(), value)).collect();
        *response.body_mut() = Body::from(Value::Object(document).to_string());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.code == Code::Unavailable {
            headers.entry(RETRY_AFTER).or_insert_with(|| HeaderValue::from(RETRY_SECONDS));
        }
        response
    }

    /// A gRPC answer without messages: the status stands in the headers, the HTTP status is 200.
    fn render_grpc(&self, response: &mut Response) {
        *response.status_mut() = StatusCode::OK;
        *response.body_mut() = Body::empty();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(self.code.grpc_status())));
        let message = percent_encoded(self.detail.as_deref().unwrap_or(self.code.title()));
        if let Ok(message) = HeaderValue::from_str(&message) {
            headers.insert(GRPC_MESSAGE, message);
        }
    }
}

/// Carries the problem to the middleware, which knows the request's id and protocol.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}
