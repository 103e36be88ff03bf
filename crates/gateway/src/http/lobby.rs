//! The example lobby, served from `examples/lobby` for development. It is a game's page and no part of the gateway: it calls public
//! routes only, through the JavaScript client.

use std::fmt::Write;

use ::http::HeaderValue;
use ::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use base::Code;
use http_server::Problem;

use super::Segment;
use crate::Gateway;
use crate::config::LobbyConfig;

const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

const PAGE: &str = include_str!("../../../../examples/lobby/index.html");

/// Lists files of `examples/lobby` with their types and contents.
macro_rules! files {
    ($($name:literal: $kind:expr),* $(,)?) => {
        [$(($name, $kind, include_str!(concat!("../../../../examples/lobby/", $name)))),*]
    };
}

const FILES: [(&str, &str, &str); 10] = files![
    "arena.js": SCRIPT,
    "drop.js": SCRIPT,
    "inbox.js": SCRIPT,
    "inventory.js": SCRIPT,
    "lobby.css": CSS,
    "lobby.js": SCRIPT,
    "match.js": SCRIPT,
    "page.js": SCRIPT,
    "party.js": SCRIPT,
    "profile.js": SCRIPT,
];

pub(super) async fn page(State(gateway): State<Gateway>) -> Result<Response, Problem> {
    let lobby = enabled(&gateway)?;
    let mut response = Html(PAGE).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, policy(lobby)?);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

pub(super) async fn file(
    State(gateway): State<Gateway>,
    Segment(name): Segment,
) -> Result<Response, Problem> {
    enabled(&gateway)?;
    let found = FILES.iter().find(|(file, ..)| *file == name);
    let (_, kind, text) = found.ok_or_else(not_found)?;
    Ok(([(CONTENT_TYPE, *kind), (CACHE_CONTROL, "no-cache")], *text).into_response())
}

fn enabled(gateway: &Gateway) -> Result<&LobbyConfig, Problem> {
    let lobby = &gateway.config.lobby;
    if lobby.enabled { Ok(lobby) } else { Err(not_found()) }
}

/// Returns the same as for any other path that does not exist.
fn not_found() -> Problem {
    Problem::new(Code::NotFound).detail("There is nothing at this address.")
}

/// Returns the content security policy: our own scripts and styles, and connections to the gateway and to these game servers only.
fn policy(lobby: &LobbyConfig) -> Result<HeaderValue, Problem> {
    let mut policy =
        "default-src 'none'; script-src 'self'; style-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; \
         connect-src 'self'"
            .to_owned();
    for origin in &lobby.game_servers {
        let _ = write!(policy, " {origin}");
    }
    HeaderValue::try_from(policy).map_err(|_| Problem::new(Code::Internal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_lobby_is_served() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/lobby");
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut files: Vec<String> = entries
            .map(|name| name.into_string().unwrap())
            .filter(|name| name != "index.html" && name != "README.md")
            .collect();
        files.sort();
        let served: Vec<&str> = FILES.iter().map(|(name, ..)| *name).collect();
        assert_eq!(served, files);
    }
}
