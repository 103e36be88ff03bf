//! Pages: the screens, their fragments, and assets.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{Html, IntoResponse, Redirect, Response};
use base::Code;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use http_server::{Problem, cookie};
use percent_encoding::percent_decode_str;
use screens::{ActionLink, Link, Tone, View};
use service::{Open, Operator, Provided};

use crate::call::escape;
use crate::registry::{Console, Found};
use crate::render::{self, ASSETS, Context, FRAGMENT, Shell};
use crate::sign_in;

/// The policy of all pages: only our own files, no framing.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
     frame-ancestors 'none'; base-uri 'none'",
);

/// The cookie with the result of an action, which the next page shows.
const FLASH: &str = "playhouse_console_flash";

/// Serves a screen, or one of its sections if the query names it.
pub(crate) async fn screen(Open(console): Open<Console>, operator: Operator, request: Request) -> Response {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    let shell = PageShell { console: &console, operator: &operator, here: path };
    let Some(mut found) = console.find(path, query) else {
        return shell.problem(&Problem::new(Code::NotFound).detail("There is no such screen."));
    };
    let fragment = found.request.query.remove(FRAGMENT);
    let flash = Flash::read(request.headers());
    let crumbs = crumbs(&console, &found);
    let view = match console.read(&found).await {
        Ok(view) => view,
        // The action removed what this page showed, such as a dead letter: its result is shown on the screen above.
        Err(problem) if problem.code() == Code::NotFound && flash.is_some() => {
            let above = crumbs.last().map_or("/console", |link| link.href.as_str());
            return Redirect::to(above).into_response();
        }
        Err(problem) => return shell.problem(&problem),
    };
    let (back, may_change) = (url_of(&found), !operator.read_only);
    let offers = |action: &ActionLink| console.offer(action, &back, may_change);
    let context = Context { path, query: &found.request.query, offers: &offers };
    if let Some(id) = fragment {
        let section = view.sections.iter().find(|section| section.id == id);
        return match section {
            Some(section) => html(StatusCode::OK, render::section(section, &context).markup.into_string()),
            None => html(StatusCode::NOT_FOUND, String::new()),
        };
    }
    let title = view.title.as_deref().unwrap_or(found.screen.title);
    let shown = flash.as_ref().map(|flash| (flash.tone, flash.text.as_str()));
    let shell = Shell {
        question: found.screen.question,
        crumbs: &crumbs,
        flash: shown,
        live: true,
        ..shell.shell(title)
    };
    let mut response = html(StatusCode::OK, render::page(&shell, render::view(&view, &context)));
    if flash.is_some() {
        response.headers_mut().append(SET_COOKIE, Flash::removed());
    }
    response
}

/// Returns the version of each section, as the page that this operator gets has it.
pub(crate) fn versions(
    console: &Console,
    found: &Found,
    view: &View,
    may_change: bool,
) -> Arc<[(&'static str, String)]> {
    let back = url_of(found);
    let offers = |action: &ActionLink| console.offer(action, &back, may_change);
    let context = Context { path: &found.path, query: &found.request.query, offers: &offers };
    let version = |section| {
        let fragment = render::section(section, &context);
        (fragment.id, fragment.version)
    };
    view.sections.iter().map(version).collect()
}

/// Serves a file of the pages.
pub(crate) async fn asset(State(_): State<Provided>, request: Request) -> Response {
    let name = request.uri().path().rsplit('/').next().unwrap_or_default();
    match ASSETS.iter().find(|asset| asset.name == name) {
        Some(asset) => {
            let headers = [(CONTENT_TYPE, asset.content_type), (CACHE_CONTROL, "no-cache")];
            (headers, [(X_CONTENT_TYPE_OPTIONS, "nosniff")], asset.body).into_response()
        }
        None => Problem::new(Code::NotFound).into_response(),
    }
}

/// Sends a page with the headers that all pages have.
pub(crate) fn html(status: StatusCode, html: String) -> Response {
    let mut response = (status, Html(html)).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// What the frames of all pages of one request share.
pub(crate) struct PageShell<'a> {
    pub(crate) console: &'a Console,
    pub(crate) operator: &'a Operator,
    pub(crate) here: &'a str,
}

impl<'a> PageShell<'a> {
    /// Returns a frame without live updates.
    pub(crate) fn shell(&self, title: &'a str) -> Shell<'a> {
        Shell {
            title,
            question: "",
            menu: self.console.menu(),
            here: self.here,
            crumbs: &[],
            operator: &self.operator.name,
            read_only: self.operator.read_only || self.console.config().read_only,
            flash: None,
            live: false,
            search: Some(render::Search { action: "/console/trace", name: "id", label: "Trace an id" }),
            sign_out: sign_in::SIGN_OUT,
        }
    }

    /// Shows a problem as a page, with its status.
    pub(crate) fn problem(&self, problem: &Problem) -> Response {
        let status =
            StatusCode::from_u16(problem.code().http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let next = match status {
            StatusCode::NOT_FOUND => "Check the address, or choose a screen from the menu.",
            StatusCode::SERVICE_UNAVAILABLE => {
                "Try again in a moment. If it stays, open \"Nodes and stores\" or run `playhouse doctor`."
            }
            _ => "Go back and try again.",
        };
        html(status, render::error_page(&self.shell(problem.code().title()), problem.text(), next))
    }
}

/// The result of an action, shown once on the next page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flash {
    pub(crate) tone: Tone,
    pub(crate) text: String,
}

impl Flash {
    /// The longest text, so that the cookie stays small.
    const MAX: usize = 600;
    const TONES: [(Tone, &'static str); 2] = [(Tone::Good, "good"), (Tone::Warning, "warning")];

    /// Returns the cookie that carries it to the next page.
    pub(crate) fn cookie(&self) -> HeaderValue {
        let tone = Self::TONES.iter().find(|(tone, _)| *tone == self.tone).map_or("bad", |(_, word)| word);
        let text: String = self.text.chars().take(Self::MAX).collect();
        let cookie =
            format!("{FLASH}={tone}.{}; Path=/console; Max-Age=60; HttpOnly; SameSite=Lax", escape(&text));
        HeaderValue::from_str(&cookie).unwrap_or_else(|_| Self::removed())
    }

    fn removed() -> HeaderValue {
        HeaderValue::from_static("playhouse_console_flash=; Path=/console; Max-Age=0; HttpOnly; SameSite=Lax")
    }

    fn read(headers: &HeaderMap) -> Option<Self> {
        let (tone, text) = cookie(headers, FLASH)?.split_once('.')?;
        let tone = Self::TONES.iter().find(|(_, word)| *word == tone).map_or(Tone::Bad, |(tone, _)| *tone);
        Some(Self { tone, text: percent_decode_str(text).decode_utf8().ok()?.into_owned() })
    }
}

/// Returns the path and query of a screen.
pub(crate) fn url_of(found: &Found) -> String {
    let query = query_of(&found.request.query);
    if query.is_empty() { found.path.clone() } else { format!("{}?{query}", found.path) }
}

fn query_of(query: &BTreeMap<String, String>) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish()
}

/// Returns the links to the screens above this one: `/console/drops` above `/console/drops/{drop_id}`.
fn crumbs(console: &Console, found: &Found) -> Vec<Link> {
    let mut crumbs = Vec::new();
    let mut path = found.path.as_str();
    while let Some((above, _)) = path.rsplit_once('/').filter(|(above, _)| above.len() > "/console".len()) {
        if let Some(screen) = console.screens().iter().find(|screen| screen.matches(above).is_some()) {
            crumbs.insert(0, Link::new(screen.title, above));
        }
        path = above;
    }
    crumbs
}

#[cfg(test)]
mod tests {
    use http::header::COOKIE;

    use super::*;

    #[test]
    fn flash_survives_its_cookie() {
        for tone in [Tone::Good, Tone::Warning, Tone::Bad] {
            let flash = Flash { tone, text: "Paused; \"Dragon\" – 100 %:\nsecond line".to_owned() };
            let cookie = flash.cookie();
            let sent = cookie.to_str().unwrap().split(';').next().unwrap();
            let headers =
                HeaderMap::from_iter([(COOKIE, HeaderValue::from_str(&format!("a=b; {sent}")).unwrap())]);
            assert_eq!(Flash::read(&headers), Some(flash));
        }
    }
}
