//! Live updates: which sections of the open screens changed.
//!
//! One loop per process reads every watched screen, compares its sections with the last ones, and sends the names and versions of those
//! that changed. Browsers with the same screen share the work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base::Code;
use futures::stream::unfold;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http_server::Problem;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use serde_json::json;
use service::{Open, Operator, Provided};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::pages;
use crate::registry::Console;

/// The shortest time between two reads of the watched screens.
const PERIOD: Duration = Duration::from_secs(1);
/// How many times as long as reading took the loop rests.
const REST: u32 = 20;
/// How often a silent stream sends a comment, so that proxies keep it open.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a stream lasts. The browser reconnects by itself, and its session is checked again.
const MAX_STREAM: Duration = Duration::from_secs(300);

/// The watched screens of a process.
#[derive(Debug, Default)]
pub(crate) struct Live {
    watched: Mutex<HashMap<Watched, watch::Sender<Versions>>>,
    added: Notify,
}

/// A screen that browsers watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Watched {
    /// The path and query.
    at: String,
    /// The offered actions, and so the rendered sections, depend on it.
    may_change: bool,
}

/// The version of each section of a screen.
type Versions = Arc<[(&'static str, String)]>;

impl Live {
    fn watch(&self, watched: Watched) -> watch::Receiver<Versions> {
        let receiver =
            self.lock().entry(watched).or_insert_with(|| watch::channel(Versions::default()).0).subscribe();
        self.added.notify_one();
        receiver
    }

    /// Returns the watched screens, and forgets those that nobody watches any more.
    fn current(&self) -> Vec<Watched> {
        let mut watched = self.lock();
        watched.retain(|_, sender| sender.receiver_count() > 0);
        watched.keys().cloned().collect()
    }

    fn update(&self, watched: &Watched, versions: Versions) {
        if let Some(sender) = self.lock().get(watched) {
            sender.send_if_modified(|last| {
                let is_new = *last != versions;
                *last = versions;
                is_new
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Watched, watch::Sender<Versions>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the watched screens once. Returns how many there are.
pub(crate) async fn tick(console: &Console) -> usize {
    let all = console.live().current();
    for watched in &all {
        let (path, query) = watched.at.split_once('?').unwrap_or((&watched.at, ""));
        let Some(found) = console.find(path, query) else { continue };
        // A screen that cannot be read keeps its last state; the page shows the problem when it is loaded again.
        if let Ok(view) = console.read(&found).await {
            console.live().update(watched, pages::versions(console, &found, &view, watched.may_change));
        }
    }
    all.len()
}

/// Repeats [`tick`] while screens are watched. Ends all streams when the process stops.
pub(crate) async fn run(console: Console, drain: Drain) -> Result<(), LoopError> {
    loop {
        let began = Instant::now();
        let watched = tick(&console).await;
        if watched == 0 {
            tokio::select! {
                () = console.live().added.notified() => {}
                () = drain.requested() => break,
            }
        } else if !drain.sleep(PERIOD.max(began.elapsed() * REST)).await {
            break;
        }
    }
    console.live().lock().clear();
    Ok(())
}

/// `GET /console/live?at=URL`: a stream with one event for each section of the screen that changed, and one for each at the beginning.
pub(crate) async fn stream(
    Open(console): Open<Console>,
    State(_): State<Provided>,
    operator: Operator,
    request: Request,
) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let at = url::form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "at");
    let at = at.map(|(_, at)| at.into_owned()).unwrap_or_default();
    let (path, query) = at.split_once('?').unwrap_or((&at, ""));
    if console.find(path, query).is_none() {
        return Problem::new(Code::NotFound)
            .detail("`at` must be the path and query of a screen.")
            .into_response();
    }
    let receiver = console.live().watch(Watched { at, may_change: !operator.read_only });
    let state =
        Stream { receiver, sent: Versions::default(), until: Instant::now() + MAX_STREAM, is_new: true };
    let body = Body::from_stream(unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok::<_, std::convert::Infallible>(bytes), state))
    }));
    ([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")], body).into_response()
}

struct Stream {
    receiver: watch::Receiver<Versions>,
    sent: Versions,
    until: Instant,
    is_new: bool,
}

impl Stream {
    /// Waits for the next bytes. Returns none when the stream ends.
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_new {
            self.is_new = false;
            return Some(Bytes::from_static(b"retry: 1000\n: open\n\n"));
        }
        loop {
            let changed = tokio::select! {
                changed = timeout(HEARTBEAT, self.receiver.changed()) => changed,
                () = sleep_until(self.until) => return None,
            };
            match changed {
                Err(_) => return Some(Bytes::from_static(b": still here\n\n")),
                Ok(Err(_)) => return None,
                Ok(Ok(())) => {}
            }
            let versions = self.receiver.borrow_and_update().clone();
            let text = changes(&self.sent, &versions);
            self.sent = versions;
            if !text.is_empty() {
                return Some(text.into());
            }
        }
    }
}

/// Formats an event for every section whose version is new.
fn changes(sent: &Versions, now: &Versions) -> String {
    let is_new = |version: &&(&'static str, String)| !sent.contains(version);
    let event = |(section, version): &(&'static str, String)| {
        format!("event: changed\ndata: {}\n\n", json!({ "section": section, "version": version }))
    };
    now.iter().filter(is_new).map(event).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_versions_are_sent() {
        let versions = |list: &[(&'static str, &str)]| -> Versions {
            list.iter().map(|(section, version)| (*section, (*version).to_owned())).collect()
        };
        let first = versions(&[("stock", "a"), ("line", "b")]);
        assert_eq!(changes(&Versions::default(), &first).matches("event: changed").count(), 2);
        let second = versions(&[("stock", "c"), ("line", "b")]);
        assert_eq!(
            changes(&first, &second),
            "event: changed\ndata: {\"section\":\"stock\",\"version\":\"c\"}\n\n"
        );
        assert_eq!(changes(&second, &second), "");
    }

    #[test]
    fn screens_that_nobody_watches_are_forgotten() {
        let live = Live::default();
        let watched = Watched { at: "/console".to_owned(), may_change: true };
        let receiver = live.watch(watched.clone());
        assert_eq!(live.current(), [watched]);
        drop(receiver);
        assert_eq!(live.current(), []);
    }
}
