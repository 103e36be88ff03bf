//! Open consoles, which behave as the script `live.js` of the console does.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::fleet::Fleet;
use crate::http::{Connection, EventStream};
use crate::screens::Session;

/// How long the script waits between two updates.
const PAUSE: Duration = Duration::from_secs(1);

/// Open consoles. Dropping it closes them.
pub(crate) struct Consoles {
    counts: Arc<Counts>,
    _open: JoinSet<()>,
}

/// What the consoles have done.
#[derive(Debug, Default)]
struct Counts {
    changes: AtomicU64,
    fetches: AtomicU64,
}

impl Consoles {
    /// Opens a console for each session, on the screens in turn. Returns when all of them show their page and have a stream.
    pub(crate) async fn open(fleet: &Fleet, sessions: &[Session], paths: &[String]) -> Self {
        let (counts, mut open) = (Arc::<Counts>::default(), JoinSet::new());
        for (session, path) in sessions.iter().zip(paths.iter().cycle()) {
            let console =
                Console::open(fleet.address("admin"), session.clone(), path, Arc::clone(&counts)).await;
            open.spawn(console.run());
        }
        Self { counts, _open: open }
    }

    /// Returns how many changed sections were announced, and how many pages or sections were fetched.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.counts.changes.load(Ordering::Relaxed), self.counts.fetches.load(Ordering::Relaxed))
    }
}

struct Console {
    address: String,
    session: Session,
    path: String,
    connection: Connection,
    stream: EventStream,
    /// The version of each section that the page shows.
    versions: HashMap<String, String>,
    /// The sections that changed and are not shown yet.
    waiting: BTreeSet<String>,
    /// Whether changes may have been missed.
    is_behind: bool,
    counts: Arc<Counts>,
}

impl Console {
    async fn open(address: &str, session: Session, path: &str, counts: Arc<Counts>) -> Self {
        let mut connection = Connection::open(address).await;
        let page = connection.send(&session.get(path)).await;
        assert_eq!(page.status, 200, "{path}: {}", page.head);
        let versions = versions(&page.text());
        let stream = EventStream::open(address, &live(&session, path)).await;
        let (waiting, is_behind) = (BTreeSet::new(), false);
        let (address, path) = (address.to_owned(), path.to_owned());
        Self { address, session, path, connection, stream, versions, waiting, is_behind, counts }
    }

    async fn run(mut self) {
        let mut next = Instant::now() + PAUSE;
        loop {
            match timeout_at(next, self.stream.next()).await {
                Ok(Some(events)) => {
                    for event in events {
                        let text = |name: &str| event[name].as_str().unwrap().to_owned();
                        let (section, version) = (text("section"), text("version"));
                        if self.versions.get(&section) != Some(&version) {
                            self.waiting.insert(section);
                            self.counts.changes.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                Ok(None) => {
                    self.stream = EventStream::open(&self.address, &live(&self.session, &self.path)).await;
                    self.is_behind = true;
                }
                Err(_) => {
                    self.update().await;
                    next = Instant::now() + PAUSE;
                }
            }
        }
    }

    /// Fetches the section that changed, or the page if there are several.
    async fn update(&mut self) {
        let changed = self.waiting.first().cloned();
        let is_page = self.is_behind || self.waiting.len() > 1;
        let path = match changed {
            _ if is_page => self.path.clone(),
            Some(section) => {
                let separator = if self.path.contains('?') { '&' } else { '?' };
                format!("{}{separator}fragment={section}", self.path)
            }
            None => return,
        };
        let response = self.connection.send(&self.session.get(&path)).await;
        assert!(response.status == 200 || response.status == 404, "{path}: {}", response.head);
        if is_page {
            self.versions.clear();
        }
        self.versions.extend(versions(&response.text()));
        self.waiting.clear();
        self.is_behind = false;
        self.counts.fetches.fetch_add(1, Ordering::Relaxed);
    }
}

/// Builds the request for the stream of a screen.
fn live(session: &Session, path: &str) -> Vec<u8> {
    let escaped: String = path
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect();
    session.get(&format!("/console/live?at={escaped}"))
}

/// Reads the sections of a page and their versions.
fn versions(html: &str) -> HashMap<String, String> {
    let value = |text: &str| text.split('"').next().unwrap_or_default().to_owned();
    let sections = html.split("data-fragment=\"").skip(1);
    let versions =
        sections.filter_map(|rest| Some((value(rest), value(rest.split_once("data-version=\"")?.1))));
    versions.collect()
}
