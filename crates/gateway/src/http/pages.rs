//! The pages: plain HTML, one stylesheet, a few scripts, nothing from elsewhere.

use std::fmt::Write;

use ::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use ::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::Json;
use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use base::Code;
use base::html::escaped;
use http_server::Problem;
use serde_json::{Value, json};

use super::Segment;
use crate::Gateway;

/// Our own scripts and stylesheet, and calls to ourselves. No page of ours is shown inside another.
const OURS: HeaderValue = HeaderValue::from_static(
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

/// A page with a few words on it.
#[derive(Debug)]
pub(super) struct Page {
    status: StatusCode,
    title: String,
    body: String,
}

impl Page {
    pub(super) fn new(title: &str) -> Self {
        Self { status: StatusCode::OK, title: escaped(title), body: String::new() }
    }

    /// A paragraph of HTML.
    pub(super) fn text(mut self, html: &str) -> Self {
        let _ = writeln!(self.body, "<p>{html}</p>");
        self
    }

    pub(super) fn small(mut self, html: &str) -> Self {
        let _ = writeln!(self.body, "<p class=\"small\">{html}</p>");
        self
    }

    /// What to do next.
    pub(super) fn link(self, to: &str, text: &str) -> Self {
        self.button("button", to, text)
    }

    /// What else could be done.
    pub(super) fn quiet_link(self, to: &str, text: &str) -> Self {
        self.button("button quiet", to, text)
    }

    fn button(mut self, class: &str, to: &str, text: &str) -> Self {
        let _ = writeln!(self.body, "<a class=\"{class}\" href=\"{}\">{}</a>", escaped(to), escaped(text));
        self
    }

    /// Any HTML.
    pub(super) fn html(mut self, html: &str) -> Self {
        self.body.push_str(html);
        self
    }

    pub(super) const fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let Self { status, title, body } = self;
        let html = format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<link rel=\"stylesheet\" \
             href=\"/assets/playhouse.css\">\n<main>\n<h1>{title}</h1>\n{body}</main>\n</html>\n"
        );
        let mut response = (status, Html(html)).into_response();
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, OURS);
        response
    }
}

/// The first page, for people; its name and version, for programs.
pub(super) async fn index(State(gateway): State<Gateway>, headers: HeaderMap) -> Response {
    let wants = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !wants.contains("text/html") {
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

/// The description of the API, to be read by people.
pub(super) async fn docs(State(gateway): State<Gateway>) -> Response {
    let ways = "<a href=\"/\">Playhouse</a> · <a href=\"/openapi.json\">openapi.json</a>";
    Page::new("The API for players").small(ways).html(&gateway.openapi.page).into_response()
}

pub(super) async fn health() -> Json<Value> {
    Json(json!({ "alive": true }))
}
