//! Players who come and go.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::call::{Failure, Watch, create};
use crate::http2::Link;
use crate::outcome::{Outcome, Recorder, thread_time};
use crate::pool::{Pool, Target};
use crate::wire;

/// Players who are due are started together this often; the timer is no finer.
const STEP: Duration = Duration::from_millis(1);
/// How long players may take to finish after the last one was started: a partner is on the way.
const PARTNER: Duration = Duration::from_secs(1);

/// How players behave.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many connections they share. None: each player opens one of its own.
    pub connections: Option<usize>,
    /// How long a player waits for an assignment.
    pub timeout: Duration,
    /// One of so many goes on watching after the first assignment, to notice a second one.
    pub linger_every: u64,
    /// For how long.
    pub linger: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: Some(64),
            timeout: Duration::from_secs(10),
            linger_every: 100,
            linger: Duration::from_millis(300),
        }
    }
}

/// `rate` players per second for `seconds`, after `warm_up` at the same rate that does not count.
///
/// Their number is even, so that everybody can have an opponent.
pub async fn open_loop(
    target: &Target,
    options: &Options,
    rate: f64,
    warm_up: Duration,
    seconds: Duration,
) -> Result<Outcome, Failure> {
    let game = Game::open(target, options).await?;
    let count = |time: Duration| (rate * time.as_secs_f64()) as u64;
    let (uncounted, total) = (count(warm_up), count(warm_up + seconds).next_multiple_of(2));
    let begin = Instant::now();
    game.window.set((begin + warm_up, begin + warm_up + seconds));
    let mut busy = thread_time();
    let mut players = JoinSet::new();
    let mut next = 0;
    while next < total {
        if next <= uncounted {
            busy = thread_time();
        }
        let now = Instant::now();
        while next < total {
            let due = begin + Duration::from_secs_f64(next as f64 / rate);
            if due > now {
                break;
            }
            players.spawn_local(Rc::clone(&game).play(due));
            next += 1;
        }
        while players.try_join_next().is_some() {}
        sleep(STEP).await;
    }
    let busy = thread_time().saturating_sub(busy);
    while players.join_next().await.is_some() {}
    Ok(game.finish(seconds, busy))
}

/// `count` players at any time for `seconds`, after `warm_up` that does not count.
pub async fn closed_loop(
    target: &Target,
    options: &Options,
    count: usize,
    warm_up: Duration,
    seconds: Duration,
) -> Result<Outcome, Failure> {
    let game = Game::open(target, options).await?;
    let begin = Instant::now();
    let end = begin + warm_up + seconds;
    game.window.set((begin + warm_up, end));
    let mut players = JoinSet::new();
    for _ in 0..count {
        let game = Rc::clone(&game);
        players.spawn_local(async move {
            while Instant::now() < end {
                Rc::clone(&game).play(Instant::now()).await;
                // A server that answers with errors at once must not keep the others from running.
                yield_now().await;
            }
        });
    }
    sleep_until(begin + warm_up).await;
    let busy = thread_time();
    sleep_until(end).await;
    let busy = thread_time().saturating_sub(busy);
    let patience = end + options.timeout;
    while !players.is_empty() {
        // If their number is odd the last one needs somebody to play with.
        let waiting_since = game.waiting.get();
        match timeout_at(patience.min(Instant::now() + PARTNER), players.join_next()).await {
            Err(_) if Instant::now() >= patience => break,
            Err(_) if waiting_since == game.waiting.get() && waiting_since % 2 == 1 => {
                players.spawn_local(Rc::clone(&game).play(Instant::now()));
            }
            _ => {}
        }
    }
    players.shutdown().await;
    Ok(game.finish(seconds, busy))
}

/// A run under way.
struct Game {
    target: Target,
    options: Options,
    pool: Option<Pool>,
    create: Bytes,
    recorder: RefCell<Recorder>,
    window: Cell<(Instant, Instant)>,
    numbers: Cell<u64>,
    /// Players who have come and not gone.
    waiting: Cell<u64>,
}

impl Game {
    async fn open(target: &Target, options: &Options) -> Result<Rc<Self>, Failure> {
        let pool = match options.connections {
            Some(connections) => Some(Pool::open(target, connections).await?),
            None => None,
        };
        let now = Instant::now();
        Ok(Rc::new(Self {
            target: target.clone(),
            options: options.clone(),
            pool,
            create: wire::create_ticket(),
            recorder: RefCell::default(),
            window: Cell::new((now, now)),
            numbers: Cell::new(0),
            waiting: Cell::new(0),
        }))
    }

    fn finish(self: Rc<Self>, measured: Duration, busy: Duration) -> Outcome {
        self.recorder.take().finish(measured, busy)
    }

    /// One player, who should come at `due`.
    async fn play(self: Rc<Self>, due: Instant) {
        let (begin, end) = self.window.get();
        let measured = due >= begin && due < end;
        if measured {
            let mut recorder = self.recorder.borrow_mut();
            recorder.outcome.started += 1;
            recorder.outcome.lag.record(due.elapsed());
        }
        self.waiting.set(self.waiting.get() + 1);
        let deadline = due + self.options.timeout;
        let played = match &self.pool {
            Some(pool) => match timeout_at(deadline, pool.lease()).await {
                Ok(lease) => self.watch(&lease.link, due, deadline, measured).await,
                Err(_) => Err(Failure::Timeout),
            },
            None => match timeout_at(deadline, self.target.connect_alone()).await {
                Ok(Ok((link, driver))) => {
                    let played = self.watch(&link, due, deadline, measured).await;
                    driver.abort();
                    played
                }
                Ok(Err(failure)) => Err(failure),
                Err(_) => Err(Failure::Timeout),
            },
        };
        self.waiting.set(self.waiting.get() - 1);
        if let Err(failure) = played {
            self.recorder.borrow_mut().failed(&failure);
        }
    }

    /// Creates a ticket and watches it until it is assigned.
    async fn watch(
        &self,
        link: &Link,
        due: Instant,
        deadline: Instant,
        measured: bool,
    ) -> Result<(), Failure> {
        let until_assigned = async {
            let ticket = create(link, &self.create).await?;
            // As clients of gRPC do, when the server has said goodbye meanwhile.
            let other = match &self.pool {
                Some(pool) if link.is_over() => Some(pool.lease().await),
                _ => None,
            };
            let mut watch = Watch::start(other.as_ref().map_or(link, |other| &other.link), &ticket)?;
            let connection = watch.next().await?.ok_or(Failure::Ended)?;
            Ok((ticket, watch, other, connection))
        };
        let (ticket, mut watch, _other, connection) =
            timeout_at(deadline, until_assigned).await.map_err(|_| Failure::Timeout).flatten()?;
        let now = Instant::now();
        {
            let mut recorder = self.recorder.borrow_mut();
            recorder.checks.first(&ticket, &connection);
            recorder.outcome.everybody += 1;
            let (begin, end) = self.window.get();
            recorder.arrived += u64::from(now >= begin && now < end);
            if measured {
                recorder.outcome.assigned += 1;
                recorder.outcome.latency.record(now - due);
            }
        }
        let number = self.numbers.get();
        self.numbers.set(number + 1);
        if number.is_multiple_of(self.options.linger_every.max(1)) {
            // However this ends, the player has what it came for.
            let _ = timeout(self.options.linger, async {
                while let Ok(Some(connection)) = watch.next().await {
                    self.recorder.borrow_mut().checks.again(&ticket, &connection);
                }
            })
            .await;
        }
        Ok(())
    }
}
