//! A player: arrives, signs in, buys, plays, goes away and comes back.

mod read_back;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::api::{Call, GaveUp, Response};
use crate::device::{Device, OnEvent};
use crate::history::{Purchase, Ticket, TicketOutcome};
use crate::session::Session;
use crate::world::World;

/// A player who waits for an event of the stream also asks this often, as a careful client does.
const RECHECK: Duration = Duration::from_secs(4);
/// The pause before a player tries again to reserve what is sold out: units of players who do not pay come back.
const SOLD_OUT_PAUSE: Duration = Duration::from_secs(1);

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
    purchase: Option<Purchase>,
    tickets: Vec<Ticket>,
}

/// What this player will do: decided before the start, so that a seed always gives the same plan.
#[derive(Clone, Copy, Debug)]
struct Plan {
    arrives_after: Duration,
    two_devices: bool,
    goes_away_after: Option<Duration>,
    buys: bool,
    is_no_show: bool,
    does_not_pay: bool,
    pays_twice: bool,
    plays: bool,
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
        let (two_devices, away) = (happens(scenario.habits.on_two_devices), happens(scenario.habits.away));
        let (buys, is_no_show) = (happens(scenario.drop.share), happens(scenario.drop.no_show));
        let (does_not_pay, pays_twice) = (happens(scenario.drop.no_payment), happens(0.2));
        let plays = happens(scenario.matchmaking.share);
        let position = number as f64 / f64::from(scenario.players.max(2) - 1);
        Self {
            arrives_after: scenario.arrival.at(position),
            two_devices,
            goes_away_after: away.then(|| Duration::from_millis(random.u64(500..5_000))),
            buys,
            is_no_show,
            does_not_pay,
            pays_twice,
            plays,
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
            purchase: None,
            tickets: Vec::new(),
        }
    }

    /// Walks the whole journey. Streams stay open until [`finish`](Self::finish).
    pub(crate) async fn live(mut self, started: Instant) -> Self {
        sleep_until(started + self.plan.arrives_after).await;
        self.world.api.meter.count(|counts| counts.arrived += 1);
        match self.sign_in().await {
            Err(GaveUp(why)) => self.lost.push(format!("did not sign in: {why}")),
            Ok(signed_in) => {
                let journey = Journey { player: &self, at: &signed_in };
                let (bought, played, ()) = tokio::join!(journey.shop(), journey.play(), journey.go_away());
                match bought {
                    Ok(purchase) => self.purchase = purchase,
                    Err(GaveUp(why)) => self.lost.push(format!("the purchase has no outcome: {why}")),
                }
                let (tickets, failure) = played;
                self.tickets = tickets;
                self.lost.extend(failure.map(|GaveUp(why)| format!("a ticket has no outcome: {why}")));
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
        let devices: Vec<Arc<Device>> =
            (0..1 + usize::from(self.plan.two_devices)).map(|_| Arc::new(Device::new(from))).collect();
        let tasks = devices.iter().map(|device| {
            let events: Arc<dyn OnEvent> = self.events.clone();
            tokio::spawn(device.clone().run(world.clone(), session.clone(), events, receiver.clone()))
        });
        let tasks = tasks.collect();
        Ok(SignedIn { user_id, session, from, devices, tasks, online })
    }
}

/// A player who is signed in, with what they do.
struct Journey<'a> {
    player: &'a Player,
    at: &'a SignedIn,
}

impl Journey<'_> {
    async fn call(&self, call: &Call) -> Result<Response, GaveUp> {
        self.at.session.call(call).await
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

    /// Disconnects all devices for a while.
    async fn go_away(&self) {
        let Some(after) = self.player.plan.goes_away_after else { return };
        sleep(after).await;
        self.at.online.send_replace(false);
        sleep(self.player.world.scenario.habits.away_for).await;
        self.at.online.send_replace(true);
    }

    /// Joins the line of the drop, waits, and buys.
    async fn shop(&self) -> Result<Option<Purchase>, GaveUp> {
        let Some(drop_id) = self.player.world.drop_id.as_ref().filter(|_| self.player.plan.buys) else {
            return Ok(None);
        };
        let of_drop = |rest: &str| format!("/v1/drops/{drop_id}{rest}");
        self.think().await;
        let joined = self.call(&Call::post("join the line", of_drop("/join"))).await?;
        match joined.cause() {
            _ if joined.is_success() => self.player.world.api.meter.count(|counts| counts.joined += 1),
            // The drop ended before the player arrived.
            "not-joinable" => return Ok(Some(Purchase::TooLate)),
            _ => return Err(GaveUp(format!("joining was answered with {}", joined.describe()))),
        }
        let mut changes = self.player.events.changes.subscribe();
        let admission = loop {
            let place = expect(self.call(&Call::get("place", of_drop("/place"))).await?)?;
            match place["state"].as_str().unwrap_or_default() {
                "entered" => break place["admission"]["token"].as_str().unwrap_or_default().to_owned(),
                "expired" => return Ok(Some(Purchase::NotWanted)),
                "left" => return Ok(Some(Purchase::WaitedInVain)),
                _ => self.wait(&mut changes).await?,
            }
        };
        self.player.world.api.meter.count(|counts| counts.admitted += 1);
        if self.player.plan.is_no_show {
            return Ok(Some(Purchase::NotWanted));
        }
        self.think().await;
        self.buy(drop_id, &admission).await.map(Some)
    }

    async fn buy(&self, drop_id: &str, admission: &str) -> Result<Purchase, GaveUp> {
        let order = loop {
            let Some(reservation) = self.reserve(drop_id, admission).await? else {
                return Ok(Purchase::SoldOut);
            };
            if self.player.plan.does_not_pay {
                return Ok(Purchase::NotWanted);
            }
            self.think().await;
            let path = format!("/v1/drops/{drop_id}/reservations/{reservation}/pay");
            let order = self.call(&Call::post("pay", path)).await?;
            match order.cause() {
                _ if order.is_success() => break order.body,
                // An outage can outlast the reservation.
                "reservation-ended" => {}
                _ => return Err(GaveUp(format!("paying was answered with {}", order.describe()))),
            }
        };
        let world = &self.player.world;
        let order_id = order["order_id"].as_str().unwrap_or_default().to_owned();
        let paid =
            world.target.pay(&world.api, &order, self.player.plan.pays_twice, world.clock.now()).await?;
        if !paid.is_success() {
            return Err(GaveUp(format!("the payment of {order_id} was answered with {}", paid.describe())));
        }
        let found = expect(self.call(&Call::get("order", format!("/v1/orders/{order_id}"))).await?)?;
        match found["state"].as_str().unwrap_or_default() {
            "PAID" => {
                world.api.meter.count(|counts| counts.bought += 1);
                Ok(Purchase::Bought { order_id })
            }
            "REFUND_DUE" => Ok(Purchase::RefundDue { order_id }),
            other => Err(GaveUp(format!("the order {order_id} was paid and is {other}"))),
        }
    }

    /// Reserves one unit. Returns none once the player is no longer admitted or the drop has ended.
    async fn reserve(&self, drop_id: &str, admission: &str) -> Result<Option<String>, GaveUp> {
        let body = json!({ "quantity": 1, "admission": admission });
        loop {
            // Retries of one attempt share the key. A new attempt after "sold out" has its own.
            let call = Call::post("reserve", format!("/v1/drops/{drop_id}/reservations"));
            let reserved = self.call(&call.json(&body).key(uuid::Uuid::new_v4().to_string())).await?;
            match reserved.cause() {
                _ if reserved.is_success() => {
                    return Ok(reserved.body["reservation_id"].as_str().map(ToOwned::to_owned));
                }
                "sold-out" => sleep(SOLD_OUT_PAUSE).await,
                "admission-ended" | "not-admitted" | "not-open" => return Ok(None),
                _ => return Err(GaveUp(format!("reserving was answered with {}", reserved.describe()))),
            }
        }
    }

    /// Plays the matches of the scenario. Returns the tickets with an outcome, and why there is none for the last.
    async fn play(&self) -> (Vec<Ticket>, Option<GaveUp>) {
        let mut tickets: Vec<Ticket> = Vec::new();
        let Some(queue) = self.player.world.queue.as_ref().filter(|_| self.player.plan.plays) else {
            return (tickets, None);
        };
        for _ in 0..self.player.world.scenario.matchmaking.matches {
            self.think().await;
            match self.find_match(queue, tickets.last()).await {
                Ok(ticket) => tickets.push(ticket),
                Err(why) => return (tickets, Some(why)),
            }
        }
        (tickets, None)
    }

    async fn find_match(&self, queue: &str, previous: Option<&Ticket>) -> Result<Ticket, GaveUp> {
        let mut body = json!({ "queue": queue });
        if let Some(Ticket { ticket_id, outcome: TicketOutcome::Assigned { .. } }) = previous {
            body["replaces"] = json!(ticket_id);
        }
        let mut changes = self.player.events.changes.subscribe();
        let mut ticket =
            expect(self.call(&Call::post("ticket", "/v1/matchmaking/tickets").json(&body)).await?)?;
        let ticket_id = ticket["ticket_id"].as_str().unwrap_or_default().to_owned();
        let path = format!("/v1/matchmaking/tickets/{ticket_id}");
        let gives_up = Instant::now() + self.player.world.scenario.matchmaking.patience;
        loop {
            if let Some(connection) = ticket["assignment"]["connection"].as_str() {
                self.player.world.api.meter.count(|counts| counts.matched += 1);
                let connection = connection.to_owned();
                return Ok(Ticket { ticket_id, outcome: TicketOutcome::Assigned { connection } });
            }
            if ticket["state"] == "GONE" {
                return Err(GaveUp(format!("{ticket_id} is gone, and the player did not cancel it")));
            }
            if Instant::now() >= gives_up {
                let cancelled = self.call(&Call::new("cancel", Method::DELETE, &path)).await?;
                if cancelled.is_success() {
                    return Ok(Ticket { ticket_id, outcome: TicketOutcome::Cancelled });
                }
                // It was assigned at the same time.
                ticket = expect(self.call(&Call::get("ticket state", &path)).await?)?;
                continue;
            }
            let version = *changes.borrow_and_update();
            self.wait(&mut changes).await?;
            let is_told = *changes.borrow() != version;
            ticket = match self.player.events.ticket(&ticket_id) {
                Some(seen) if is_told => seen,
                _ => expect(self.call(&Call::get("ticket state", &path)).await?)?,
            };
        }
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
