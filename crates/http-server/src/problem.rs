//! Errors that are sent to callers: problem documents, or gRPC statuses.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use base::Code;
use base::id::RequestId;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::Value;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The content type of a problem document.
const CONTENT: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The `Retry-After` of a 503 response, in seconds, if the handler sets none.
const RETRY_SECONDS: u16 = 1;

/// An error for the caller. It contains no internal cause: the code that creates it logs the cause.
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

    /// Sets the cause, so that programs can distinguish several causes of one code. The `type` of the document becomes
    /// `urn:playhouse:problem:CAUSE`. A cause is never renamed.
    pub const fn cause(mut self, cause: &'static str) -> Self {
        self.cause = Some(cause);
        self
    }

    /// Sets the text that says what happened and what the caller can do. Without it, the `detail` of the document is the title.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds a member to the document, for programs. The standard members cannot be replaced.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.members.push((name, value.into()));
        self
    }

    pub const fn code(&self) -> Code {
        self.code
    }

    fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Returns a text for people: the detail, or the title of the code.
    pub fn text(&self) -> &str {
        self.detail.as_deref().unwrap_or_else(|| self.code.title())
    }

    /// Renders the problem in the caller's protocol. Keeps the headers of `response`.
    pub(super) fn render(&self, request_id: &RequestId, is_grpc: bool, mut response: Response) -> Response {
        response.headers_mut().remove(CONTENT_LENGTH);
        if is_grpc {
            self.render_grpc(&mut response);
            return response;
        }
        *response.body_mut() = Body::from(self.document(request_id));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, CONTENT);
        if self.code == Code::Unavailable {
            headers.entry(RETRY_AFTER).or_insert_with(|| HeaderValue::from(RETRY_SECONDS));
        }
        response
    }

    /// Serializes the problem document.
    fn document(&self, request_id: &RequestId) -> String {
        let problem_type = self.cause.map_or_else(|| self.code.problem_type(), Code::problem_type_of);
        let document = Document {
            detail: self.text(),
            request_id: request_id.as_str(),
            status: self.code.http_status(),
            title: self.code.title(),
            problem_type: &problem_type,
        };
        document.with(&self.members)
    }

    /// Renders a gRPC response without messages: the gRPC status is in the headers, the HTTP status is 200.
    fn render_grpc(&self, response: &mut Response) {
        *response.status_mut() = StatusCode::OK;
        *response.body_mut() = Body::empty();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(self.code.grpc_status())));
        let message = percent_encoded(self.text());
        if let Ok(message) = HeaderValue::from_str(&message) {
            headers.insert(GRPC_MESSAGE, message);
        }
    }
}

/// A problem whose document is serialized in advance, but for the id of the request. For refusals at high rates.
#[derive(Clone, Debug)]
pub struct PreparedProblem {
    problem: Problem,
    /// The document up to the id of the request.
    before: String,
    /// The document behind it.
    after: String,
}

impl PreparedProblem {
    pub fn new(problem: Problem) -> Self {
        let request_id = RequestId::generate();
        let document = problem.document(&request_id);
        let (before, after) = document.split_once(request_id.as_str()).unwrap_or((&document, ""));
        Self { before: before.to_owned(), after: after.to_owned(), problem }
    }

    /// Renders the problem in the caller's protocol, with these headers.
    pub(super) fn render(&self, request_id: &RequestId, is_grpc: bool, headers: HeaderMap) -> Response {
        let mut response = Response::new(Body::empty());
        *response.headers_mut() = headers;
        if is_grpc {
            self.problem.render_grpc(&mut response);
            return response;
        }
        *response.status_mut() = self.problem.status();
        response.headers_mut().insert(CONTENT_TYPE, CONTENT);
        let Self { before, after, .. } = self;
        // An id has no character that JSON escapes.
        *response.body_mut() = Body::from([before, request_id.as_str(), after].concat());
        response
    }
}

/// The members of every problem document, sorted by name.
#[derive(Serialize)]
struct Document<'a> {
    detail: &'a str,
    request_id: &'a str,
    status: u16,
    title: &'a str,
    #[serde(rename = "type")]
    problem_type: &'a str,
}

impl Document<'_> {
    /// Serializes the document. Without further members it needs no map, which saves a microsecond per refused request.
    fn with(&self, members: &[(&'static str, Value)]) -> String {
        let json = match members {
            [] => serde_json::to_string(self).ok(),
            members => serde_json::to_value(self).ok().and_then(|mut document| {
                let all = document.as_object_mut()?;
                for (name, value) in members {
                    all.entry(*name).or_insert_with(|| value.clone());
                }
                Some(document.to_string())
            }),
        };
        json.unwrap_or_default()
    }
}

/// Passes the problem to the middleware as an extension. The middleware knows the request's id and protocol, and renders it.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
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
