//! A player: arrives, signs in, buys, plays, goes away and comes back.

mod matches;
mod read_back;
mod shop;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::api::{Call, GaveUp, Response};
use crate::device::{Device, OnEvent};
use crate::history::{Join, Purchase, Ticket};
use crate::session::Session;
use crate::world::World;

/// A player who waits for an event of the stream also asks this often, as a careful client does.
const RECHECK: Duration = Duration::from_secs(4);
/// A player in the middle of the simulation.
#[derive(Debug)]
pub(crate) struct Player {
    world: Arc<World>,
    number: usize,
    pub(crate) name: String,
    plan: Plan,
    events: Arc<Events>,
    signed_in: Option<SignedIn>,
    pub(crate) lost: Vec<String>,
    /// Whether the run was stopped before the player had finished.
    pub(crate) is_interrupted: bool,
    /// Set as soon as the player has joined the line, also if nothing comes of it.
    joined: OnceLock<Join>,
    purchase: Option<Purchase>,
    tickets: Vec<Ticket>,
}

/// What this player will do: decided before the start, so that a seed always gives the same plan.
#[derive(Clone, Copy, Debug)]
struct Plan {
    arrives_after: Duration,
    devices: usize,
    /// How long the player is there before each absence.
    goes_away_after: Option<Duration>,
    buys: bool,
    is_no_show: bool,
    does_not_pay: bool,
    pays_twice: bool,
    plays: bool,
    /// Declines the first ready check.
    declines: bool,
    /// The pause before each step.
    thinking: Duration,
}

/// A player who is signed in.
#[derive(Debug)]
struct SignedIn {
    user_id: String,
    session: Arc<Session>,
    /// The position of the inbox at the sign-in.
    from: u64,
    devices: Vec<Arc<Device>>,
    tasks: Vec<JoinHandle<()>>,
    online: watch::Sender<bool>,
    /// How often the player went away.
    absences: AtomicU32,
}

/// What the streams of a player said.
#[derive(Debug, Default)]
struct Events {
    state: Mutex<EventState>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct EventState {
    /// The latest state of each ticket.
    tickets: HashMap<String, Value>,
}

impl OnEvent for Events {
    fn on_event(&self, kind: &str, data: &Value) {
        if kind == "ticket" {
            let id = data["ticket_id"].as_str().unwrap_or_default().to_owned();
            self.lock().tickets.insert(id, data.clone());
        }
        self.changes.send_modify(|version| *version += 1);
    }
}

impl Events {
    fn lock(&self) -> MutexGuard<'_, EventState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ticket(&self, id: &str) -> Option<Value> {
        self.lock().tickets.get(id).cloned()
    }
}

impl Plan {
    fn new(world: &World, number: usize) -> Self {
        let scenario = &world.scenario;
        let mut random =
            fastrand::Rng::with_seed(world.seed ^ (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut happens = |share: f64| random.f64() < share;
        let (has_more, away) = (happens(scenario.habits.on_more_devices), happens(scenario.habits.away));
        let (buys, is_no_show) = (happens(scenario.drop.share), happens(scenario.drop.no_show));
        let (does_not_pay, pays_twice) = (happens(scenario.drop.no_payment), happens(0.2));
        let (plays, declines) = (happens(scenario.matchmaking.share), happens(scenario.matchmaking.declines));
        let position = number as f64 / f64::from(scenario.players.max(2) - 1);
        Self {
            arrives_after: scenario.arrival.at(position),
            devices: if has_more { scenario.habits.devices as usize } else { 1 },
            goes_away_after: away.then(|| Duration::from_millis(random.u64(500..5_000))),
            buys,
            is_no_show,
            does_not_pay,
            pays_twice,
            plays,
            declines,
            thinking: scenario.habits.thinking.mul_f64(random.f64() * 2.0),
        }
    }
}

impl Player {
    pub(crate) fn new(world: Arc<World>, number: usize) -> Self {
        let (name, plan) = (format!("sim-{}-{number}", world.run), Plan::new(&world, number));
        Self {
            world,
            number,
            name,
            plan,
            events: Arc::default(),
            signed_in: None,
            lost: Vec::new(),
            is_interrupted: false,
            joined: OnceLock::new(),
            purchase: None,
            tickets: Vec::new(),
        }
    }

    /// Walks the whole journey, or until the run is stopped. Streams stay open until [`finish`](Self::finish).
    pub(crate) async fn live(mut self, started: Instant) -> Self {
        let world = self.world.clone();
        let arrives = sleep_until(started + self.plan.arrives_after);
        if world.until_stopped(arrives).await.is_none() {
            self.is_interrupted = true;
            return self;
        }
        world.api.meter.count(|counts| counts.arrived += 1);
        match world.until_stopped(self.sign_in()).await {
            None => self.is_interrupted = true,
            Some(Err(GaveUp(why))) => self.lost.push(format!("did not sign in: {why}")),
            Some(Ok(signed_in)) => {
                let journey = Journey { player: &self, at: &signed_in };
                let steps = async { tokio::join!(journey.shop(), journey.play(), journey.go_away()) };
                match world.until_stopped(steps).await {
                    None => {
                        // Streams stay open, and what they miss is checked.
                        signed_in.online.send_replace(true);
                        self.is_interrupted = true;
                    }
                    Some((bought, (tickets, failure), ())) => {
                        match bought {
                            Ok(purchase) => self.purchase = purchase,
                            Err(GaveUp(why)) => self.lost.push(format!("the purchase has no outcome: {why}")),
                        }
                        self.tickets = tickets;
                        let failure = failure.map(|GaveUp(why)| format!("a ticket has no outcome: {why}"));
                        self.lost.extend(failure);
                    }
                }
                self.signed_in = Some(signed_in);
            }
        }
        self
    }

    async fn sign_in(&self) -> Result<SignedIn, GaveUp> {
        let world = &self.world;
        let session = Arc::new(Session::open(world.clone(), &self.name, self.number).await?);
        let me = expect(session.call(&Call::get("who am I", "/v1/me")).await?)?;
        let user_id = me["user_id"].as_str().unwrap_or_default().to_owned();
        world.claim_user(&user_id, &self.name)?;
        let home = expect(session.call(&Call::get("home", "/v1/home")).await?)?;
        let last = &home["notifications"]["data"]["last_event_id"];
        let from = last.as_str().and_then(|last| last.parse().ok()).unwrap_or_default();
        let (online, receiver) = watch::channel(true);
        let devices: Vec<Arc<Device>> = (0..self.plan.devices).map(|_| Arc::new(Device::new(from))).collect();
        let tasks = devices.iter().map(|device| {
            let events: Arc<dyn OnEvent> = self.events.clone();
            tokio::spawn(device.clone().run(world.clone(), session.clone(), events, receiver.clone()))
        });
        let tasks = tasks.collect();
        Ok(SignedIn { user_id, session, from, devices, tasks, online, absences: AtomicU32::new(0) })
    }
}

/// A player who is signed in, with what they do.
struct Journey<'a> {
    player: &'a Player,
    at: &'a SignedIn,
}

impl Journey<'_> {
    /// Calls the gateway. A player who goes away loses the response, and repeats the request afterwards, with the same key.
    async fn call(&self, call: &Call) -> Result<Response, GaveUp> {
        let mut online = self.at.online.subscribe();
        loop {
            // The sender is in `self.at`, so it is never gone.
            let _ = online.wait_for(|online| *online).await;
            tokio::select! {
                response = self.at.session.call(call) => return response,
                _ = online.wait_for(|online| !*online) => self.player.world.api.meter.retried(),
            }
        }
    }

    async fn think(&self) {
        sleep(self.player.plan.thinking).await;
    }

    /// Waits until something happens on a stream, or it is time to ask.
    async fn wait(&self, changes: &mut watch::Receiver<u64>) -> Result<(), GaveUp> {
        if Instant::now() >= self.player.world.players_end {
            return Err(GaveUp("nothing happened until the end of the simulation".to_owned()));
        }
        let _ = timeout(RECHECK, changes.changed()).await;
        Ok(())
    }

    /// Disconnects all devices for a while, as often as the scenario says. The player does nothing meanwhile.
    async fn go_away(&self) {
        let Some(after) = self.player.plan.goes_away_after else { return };
        for _ in 0..self.player.world.scenario.habits.away_times {
            sleep(after).await;
            self.at.absences.fetch_add(1, Ordering::Relaxed);
            self.at.online.send_replace(false);
            sleep(self.player.world.scenario.habits.away_for).await;
            self.at.online.send_replace(true);
        }
    }

    fn absences(&self) -> u32 {
        self.at.absences.load(Ordering::Relaxed)
    }
}

/// Returns the body of a successful response.
fn expect(response: Response) -> Result<Value, GaveUp> {
    if response.is_success() {
        Ok(response.body)
    } else {
        Err(GaveUp(format!("answered with {}", response.describe())))
    }
}
