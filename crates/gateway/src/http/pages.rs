//! The web pages: plain HTML, one stylesheet and a few scripts, without external resources.

use std::fmt::Write;

use ::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use ::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::Json;
use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use base::Code;
use base::html::escape;
use http_server::Problem;
use serde_json::{Value, json};

use super::Segment;
use crate::Gateway;

/// The content security policy of pages: only our own scripts, styles and API. No framing.
const PAGE_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'none'; base-uri 'none'; \
     frame-ancestors 'none'",
);

const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

const FILES: [(&str, &str, &str); 6] = [
    ("playhouse.css", CSS, include_str!("../pages/playhouse.css")),
    ("playhouse.js", SCRIPT, include_str!("../pages/playhouse.js")),
    ("drops.js", SCRIPT, include_str!("../pages/drops.js")),
    ("inbox.js", SCRIPT, include_str!("../pages/inbox.js")),
    ("page.js", SCRIPT, include_str!("../pages/page.js")),
    ("stream.js", SCRIPT, include_str!("../pages/stream.js")),
];

/// A simple page.
#[derive(Debug)]
pub(super) struct Page {
    status: StatusCode,
    title: String,
    body: String,
}

impl Page {
    pub(super) fn new(title: &str) -> Self {
        Self { status: StatusCode::OK, title: escape(title), body: String::new() }
    }

    /// Adds a paragraph of HTML.
    pub(super) fn text(mut self, html: &str) -> Self {
        let _ = writeln!(self.body, "<p>{html}</p>");
        self
    }

    /// Adds a paragraph of HTML in small print.
    pub(super) fn small(mut self, html: &str) -> Self {
        let _ = writeln!(self.body, "<p class=\"small\">{html}</p>");
        self
    }

    /// Adds the main action.
    pub(super) fn link(self, to: &str, text: &str) -> Self {
        self.button("button", to, text)
    }

    /// Adds a secondary action.
    pub(super) fn quiet_link(self, to: &str, text: &str) -> Self {
        self.button("button quiet", to, text)
    }

    fn button(mut self, class: &str, to: &str, text: &str) -> Self {
        let _ = writeln!(self.body, "<a class=\"{class}\" href=\"{}\">{}</a>", escape(to), escape(text));
        self
    }

    /// Adds any HTML.
    pub(super) fn html(mut self, html: &str) -> Self {
        self.body.push_str(html);
        self
    }

    pub(super) const fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Returns the whole page as HTML.
    pub(super) fn render(&self) -> String {
        let Self { title, body, .. } = self;
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<link rel=\"stylesheet\" \
             href=\"/assets/playhouse.css\">\n<main>\n<h1>{title}</h1>\n{body}</main>\n</html>\n"
        )
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        (self.status, [(CONTENT_SECURITY_POLICY, PAGE_POLICY)], Html(self.render())).into_response()
    }
}

/// Serves the home page to browsers, and the name and version to programs.
pub(super) async fn index(State(gateway): State<Gateway>, headers: HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !accepts.contains("text/html") {
        return Json(json!({ "name": "playhouse", "version": gateway.version })).into_response();
    }
    Page::new("Playhouse").html(include_str!("../pages/index.html")).into_response()
}

pub(super) async fn asset(Segment(name): Segment) -> Result<Response, Problem> {
    let found = FILES.iter().find(|(file, ..)| *file == name);
    let (_, kind, text) = found.ok_or_else(|| Problem::new(Code::NotFound))?;
    Ok(([(CONTENT_TYPE, *kind), (CACHE_CONTROL, "no-cache")], *text).into_response())
}

pub(super) async fn openapi(State(gateway): State<Gateway>) -> Response {
    ([(CONTENT_TYPE, "application/json")], gateway.openapi.document.clone()).into_response()
}

/// Serves the API documentation as a page.
pub(super) async fn docs(State(gateway): State<Gateway>) -> Response {
    ([(CONTENT_SECURITY_POLICY, PAGE_POLICY)], Html(gateway.openapi.page.clone())).into_response()
}

pub(super) async fn health() -> Json<Value> {
    Json(json!({ "alive": true }))
}
