//! An example of a game server: a reaction duel for two players. `playhouse dev` runs it for its lobby at `/play`.
//!
//! ```text
//! cargo run -p example-game-server -- --help
//! ```
//!
//! It does what every game server behind Playhouse does:
//!
//! 1. **It is allocated.** The engine asks it for servers with a signed webhook (`match.assign`). It verifies the signature, opens a room
//!    for each match, and answers with its address and a token for each player.
//! 2. **It admits the players of the match only.** A player sends the token of their own assignment.
//! 3. **It plays.** Players follow the game as server-sent events, each with the whole state, and act with small requests.
//! 4. **It reports the result** by the service API: a trophy for the winner, a notification for both.
//! 5. **It frees rooms** that nobody came to, that both players left, or whose match was abandoned (`match.abandoned`).
//!
//! # Invariants
//! - A match has one room, however often it is requested, and an abandoned match gets none.
//! - A result is in the [journal](results::Journal) before players see it. Every result there is reported until Playhouse has applied it.
//!   The idempotency keys are made of the match id, so it is applied once.
//! - The rules ([`duel`]) do no I/O and have no clock of their own.
//!
//! # Failure modes
//! - The server dies during a game: the game is lost, and its players find a new match. A game that was over is reported after the
//!   next start.
//! - Playhouse is away: games go on. Results wait in the journal.
//! - The disk is full: a game that is over stays undecided until its result can be written.

mod allocate;
pub mod duel;
mod http;
pub mod results;
pub mod rooms;
mod service_api;
mod view;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::Clock;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use url::Url;
use uuid::Uuid;
use webhook::Verifier;

use duel::Rules;
use results::{Journal, Reporter};
use rooms::Rooms;

pub use service_api::ServiceApi;

/// How long to wait before a result is written again after the disk refused it.
const JOURNAL_RETRY: Duration = Duration::from_secs(1);
/// How often the loop looks at the clock if no game changes.
const IDLE: Duration = Duration::from_secs(60);

/// What a game server needs.
#[derive(Debug)]
pub struct Options {
    /// The address that players connect to: an origin, without a path.
    pub public_url: Url,
    /// The keys that Playhouse signs its webhooks with.
    pub verifier: Verifier,
    pub api: ServiceApi,
    pub journal: Journal,
    pub rules: Rules,
    /// The most matches at a time. Further ones are not made, and their players wait.
    pub max_rooms: usize,
    pub clock: Clock,
    pub random: fastrand::Rng,
}

/// A game server. Cheap to clone; clones share the rooms.
#[derive(Clone, Debug)]
pub struct GameServer {
    rooms: Rooms,
    journal: Journal,
    reporter: Reporter,
    api: ServiceApi,
    verifier: Verifier,
    public_url: Url,
    clock: Clock,
    /// Wakes the loop that reports results.
    recorded: Arc<Notify>,
    stop: watch::Sender<bool>,
}

impl GameServer {
    pub fn new(options: Options) -> Self {
        let Options { public_url, verifier, api, journal, rules, max_rooms, clock, random } = options;
        Self {
            rooms: Rooms::new(clock.clone(), rules, max_rooms, random),
            reporter: Reporter::new(journal.clone(), api.clone()),
            journal,
            api,
            verifier,
            public_url,
            clock,
            recorded: Arc::new(Notify::new()),
            stop: watch::Sender::new(false),
        }
    }

    /// Returns the URL for Playhouse's webhook assigner, for a server at this address.
    pub fn allocate_url(address: SocketAddr) -> String {
        format!("http://{address}{}", http::ALLOCATE)
    }

    pub const fn rooms(&self) -> &Rooms {
        &self.rooms
    }

    /// Serves until `stop` completes. Then streams end and open requests are finished.
    pub async fn run(
        &self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        self.stop.send_replace(false);
        let stopped = self.clone();
        let stop = async move {
            stop.await;
            stopped.stop.send_replace(true);
        };
        let serve = axum::serve(listener, http::routes(self.clone())).with_graceful_shutdown(stop);
        let serve = async { serve.await };
        tokio::select! {
            served = serve => served,
            moved = self.move_games() => moved,
            reported = self.report_results() => reported,
        }
    }

    /// Moves games on at their time, and writes down the results.
    async fn move_games(&self) -> io::Result<()> {
        loop {
            let tick = self.rooms.tick();
            let now = self.clock.now();
            let mut wait =
                tick.next.map_or(IDLE, |next| if next > now { next.distance(now) } else { Duration::ZERO });
            for result in tick.results {
                let (journal, match_id) = (self.journal.clone(), result.match_id);
                let recorded = tokio::task::spawn_blocking(move || journal.record(&result)).await;
                match recorded.map_err(io::Error::other).flatten() {
                    Ok(()) => {
                        self.rooms.announce(match_id);
                        self.recorded.notify_one();
                    }
                    Err(error) => {
                        tracing::error!(%match_id, %error, "cannot write a result; free some space on the disk");
                        wait = JOURNAL_RETRY;
                    }
                }
            }
            // A change, or the time of the next one.
            let _ = tokio::time::timeout(wait.min(IDLE), self.rooms.changed()).await;
        }
    }

    /// Reports what is in the journal: at the start, after each game, and again after a failure.
    async fn report_results(&self) -> io::Result<()> {
        loop {
            let done = self.reporter.tick().await?;
            match Reporter::retry_after(&done) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => self.recorded.notified().await,
            }
        }
    }

    /// Waits until the server stops.
    async fn stopped(&self) {
        // The sender is part of this value, so it is not gone.
        let _ = self.stop.subscribe().wait_for(|is_stopped| *is_stopped).await;
    }

    fn room_url(&self, match_id: Uuid) -> String {
        format!("{}/matches/{match_id}", self.public_url.as_str().trim_end_matches('/'))
    }
}
