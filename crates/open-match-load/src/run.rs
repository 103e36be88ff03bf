//! Load by players: open and closed loop.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::call::{Failure, Watch, create};
use crate::http2::Http2Client;
use crate::pool::{Pool, Target};
use crate::report::{LoadReport, Recorder, thread_time};
use crate::wire;

/// How often players who are due are started. It is the resolution of the timer.
const STEP: Duration = Duration::from_millis(1);
/// How long an odd last player waits for an opponent before one is started.
const OPPONENT_WAIT: Duration = Duration::from_secs(1);

/// How players behave.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many connections the players share. With `None` each player opens its own.
    pub connections: Option<usize>,
    /// How long a player waits for an assignment.
    pub timeout: Duration,
    /// Every how manyth player keeps watching after the first assignment, to detect a second one.
    pub linger_every: u64,
    /// How long such a player keeps watching.
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

/// Starts `rate` players per second for `seconds`, after a `warm_up` at the same rate that is not measured.
///
/// The number of players is even, so that each has an opponent.
pub async fn open_loop(
    target: &Target,
    options: &Options,
    rate: f64,
    warm_up: Duration,
    seconds: Duration,
) -> Result<LoadReport, Failure> {
    let load = LoadRun::open(target, options).await?;
    let count = |time: Duration| (rate * time.as_secs_f64()) as u64;
    let (uncounted, total) = (count(warm_up), count(warm_up + seconds).next_multiple_of(2));
    let begin = Instant::now();
    load.window.set((begin + warm_up, begin + warm_up + seconds));
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
            players.spawn_local(Rc::clone(&load).play(due));
            next += 1;
        }
        while players.try_join_next().is_some() {}
        sleep(STEP).await;
    }
    let busy = thread_time().saturating_sub(busy);
    while players.join_next().await.is_some() {}
    Ok(load.finish(seconds, busy))
}

/// Keeps `count` players active for `seconds`, after a `warm_up` that is not measured.
pub async fn closed_loop(
    target: &Target,
    options: &Options,
    count: usize,
    warm_up: Duration,
    seconds: Duration,
) -> Result<LoadReport, Failure> {
    let load = LoadRun::open(target, options).await?;
    let begin = Instant::now();
    let end = begin + warm_up + seconds;
    load.window.set((begin + warm_up, end));
    let mut players = JoinSet::new();
    for _ in 0..count {
        let load = Rc::clone(&load);
        players.spawn_local(async move {
            while Instant::now() < end {
                Rc::clone(&load).play(Instant::now()).await;
                // If the server fails at once, the other tasks must still get to run.
                yield_now().await;
            }
        });
    }
    sleep_until(begin + warm_up).await;
    let busy = thread_time();
    sleep_until(end).await;
    let busy = thread_time().saturating_sub(busy);
    let deadline = end + options.timeout;
    while !players.is_empty() {
        // If an odd number of players is left, the last one needs an opponent.
        let waiting_before = load.waiting.get();
        match timeout_at(deadline.min(Instant::now() + OPPONENT_WAIT), players.join_next()).await {
            Err(_) if Instant::now() >= deadline => break,
            Err(_) if waiting_before == load.waiting.get() && waiting_before % 2 == 1 => {
                players.spawn_local(Rc::clone(&load).play(Instant::now()));
            }
            _ => {}
        }
    }
    players.shutdown().await;
    Ok(load.finish(seconds, busy))
}

/// The shared state of a run.
struct LoadRun {
    target: Target,
    options: Options,
    pool: Option<Pool>,
    create: Bytes,
    recorder: RefCell<Recorder>,
    window: Cell<(Instant, Instant)>,
    numbers: Cell<u64>,
    /// Players who have started and not finished.
    waiting: Cell<u64>,
}

impl LoadRun {
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

    fn finish(self: Rc<Self>, measured: Duration, busy: Duration) -> LoadReport {
        self.recorder.take().finish(measured, busy)
    }

    /// Runs one player, whose scheduled start is `due`.
    async fn play(self: Rc<Self>, due: Instant) {
        let (begin, end) = self.window.get();
        let measured = due >= begin && due < end;
        if measured {
            let mut recorder = self.recorder.borrow_mut();
            recorder.report.started += 1;
            recorder.report.lag.record(due.elapsed());
        }
        self.waiting.set(self.waiting.get() + 1);
        let deadline = due + self.options.timeout;
        let played = match &self.pool {
            Some(pool) => match timeout_at(deadline, pool.acquire()).await {
                Ok(permit) => self.watch(&permit.client, due, deadline, measured).await,
                Err(_) => Err(Failure::Timeout),
            },
            None => match timeout_at(deadline, self.target.connect_alone()).await {
                Ok(Ok((client, driver))) => {
                    let played = self.watch(&client, due, deadline, measured).await;
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
        client: &Http2Client,
        due: Instant,
        deadline: Instant,
        measured: bool,
    ) -> Result<(), Failure> {
        let until_assigned = async {
            let ticket = create(client, &self.create).await?;
            // Uses another connection if the server has sent GOAWAY, as gRPC clients do.
            let other = match &self.pool {
                Some(pool) if client.is_over() => Some(pool.acquire().await),
                _ => None,
            };
            let mut watch = Watch::start(other.as_ref().map_or(client, |other| &other.client), &ticket)?;
            let connection = watch.next().await?.ok_or(Failure::Ended)?;
            Ok((ticket, watch, other, connection))
        };
        let (ticket, mut watch, _other, connection) =
            timeout_at(deadline, until_assigned).await.map_err(|_| Failure::Timeout).flatten()?;
        let now = Instant::now();
        {
            let mut recorder = self.recorder.borrow_mut();
            recorder.checks.record_first(&ticket, &connection);
            recorder.report.all_assigned += 1;
            let (begin, end) = self.window.get();
            recorder.arrived += u64::from(now >= begin && now < end);
            if measured {
                recorder.report.assigned += 1;
                recorder.report.latency.record(now - due);
            }
        }
        let number = self.numbers.get();
        self.numbers.set(number + 1);
        if number.is_multiple_of(self.options.linger_every.max(1)) {
            // The player is already assigned, so the end of this watch does not matter.
            let _ = timeout(self.options.linger, async {
                while let Ok(Some(connection)) = watch.next().await {
                    self.recorder.borrow_mut().checks.record_update(&ticket, &connection);
                }
            })
            .await;
        }
        Ok(())
    }
}
