//! Checks of a drop that hold at every moment, after each round, and at the end.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use drops::EndMode;
use drops::orders::{OrderState, PaymentOutcome};
use testkit::eventually;

use super::super::*;
use super::facts::Fact;
use super::process::{CAPACITY, LIMIT, Process};
use super::steps::LEAVER_INTERVAL;
use crate::events::events;
use crate::kendall::kendall_tau;

const ADMITTED: &str = "playhouse.drop.admitted.v1";
const WAIT_ENDED: &str = "playhouse.drop.wait_ended.v1";
/// The number of the state "waiting" in `drop_entries`.
const WAITING: i32 = 0;
/// The test fails with fewer admissions or sales than this, since it would prove little.
const MIN_ADMITTED: usize = 25;
const MIN_PAID: usize = 5;

/// The facts that processes have reported about a drop, and totals for the report.
#[derive(Default)]
pub(super) struct History {
    facts: Vec<Fact>,
    /// The join number of each known admission.
    numbers: HashMap<String, i64>,
    admitted: usize,
    /// How many admissions have a known join number. A join that its client gave up may be admitted and replaced unseen.
    ordered: usize,
    paid: usize,
}

/// A row of `drop_entries`.
struct EntryRow {
    user: UserId,
    state: i32,
    number: i64,
    admission: String,
}

impl History {
    pub(super) fn add(&mut self, facts: Vec<Fact>) {
        for fact in &facts {
            if let Fact::Joined { admission, number, .. } = fact {
                let before = self.numbers.insert(admission.to_string(), *number);
                assert!(before.is_none_or(|before| before == *number), "an admission has one number");
            }
        }
        self.facts.extend(facts);
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { facts, admitted, ordered, paid, .. } = self;
        let facts = facts.len();
        write!(f, "{facts} facts, {admitted} admissions ({ordered} with their number), {paid} paid orders")
    }
}

impl Process {
    /// Checks what holds at every moment. Each check is one statement, so that it sees one snapshot of the database.
    pub(super) async fn audit(&self) {
        self.shop.assert_sound(self.drop).await;
        let [owned, sold] = self
            .numbers(
                "SELECT CAST(COALESCE((SELECT SUM(quantity) FROM entitlements), 0) AS SIGNED), \
                 (SELECT sold FROM drop_stock WHERE drop_id = ?)",
            )
            .await[0];
        assert_eq!(owned, sold, "every sold unit is owned");
        let [inside, _] =
            self.numbers("SELECT COUNT(*), 0 FROM drop_entries WHERE drop_id = ? AND state = 1").await[0];
        assert!(inside <= CAPACITY, "{inside} players are inside");
        let units = self
            .numbers(
                "SELECT CAST(SUM(CASE WHEN state = 0 THEN quantity ELSE confirmed END) AS SIGNED), 0 \
                 FROM drop_reservations WHERE drop_id = ? GROUP BY user_id",
            )
            .await;
        for [taken, _] in units {
            assert!(taken <= LIMIT, "a player has or holds {taken} units");
        }
    }

    /// Runs a query that returns rows of two numbers.
    async fn numbers(&self, text: &'static str) -> Vec<[i64; 2]> {
        let mut connection = self.shop.db.connection().await.unwrap();
        let rows: Vec<(i64, i64)> = db::on!(connection, raw => {
            sqlx::query_as(text).bind(self.drop.as_uuid().as_bytes().to_vec()).fetch_all(raw).await.unwrap()
        });
        rows.into_iter().map(<[i64; 2]>::from).collect()
    }

    async fn rows(&self) -> Vec<EntryRow> {
        let mut connection = self.shop.db.connection().await.unwrap();
        let rows: Vec<(Vec<u8>, i32, i64, Vec<u8>)> = db::on!(connection, raw => {
            sqlx::query_as("SELECT user_id, state, number, admission_id FROM drop_entries WHERE drop_id = ?")
                .bind(self.drop.as_uuid().as_bytes().to_vec())
                .fetch_all(raw)
                .await
                .unwrap()
        });
        let id = |bytes: &[u8]| base::id::Uuid::from_slice(bytes).unwrap();
        let row = |(user, state, number, admission): (Vec<u8>, i32, i64, Vec<u8>)| EntryRow {
            user: UserId::from_uuid(id(&user)),
            state,
            number,
            admission: id(&admission).to_string(),
        };
        rows.into_iter().map(row).collect()
    }

    async fn waiting(&self) -> BTreeSet<UserId> {
        let waits = |row: &EntryRow| row.state == WAITING;
        self.rows().await.into_iter().filter(waits).map(|row| row.user).collect()
    }
}

/// Checks the effects of acknowledged requests, while no other process runs.
pub(super) async fn check_after_round(process: &Process, history: &mut History) {
    process.audit().await;
    let rows = process.rows().await;
    for row in &rows {
        history.numbers.insert(row.admission.clone(), row.number);
    }
    let of_user: HashMap<UserId, &EntryRow> = rows.iter().map(|row| (row.user, row)).collect();
    let admitted = published_admissions(process).await;
    let unique: HashSet<&String> = admitted.iter().collect();
    assert_eq!(unique.len(), admitted.len(), "no player is admitted twice");
    for fact in &history.facts {
        let Fact::Joined { player, admission, number } = fact else { continue };
        let row = of_user.get(&process.players[*player].0);
        let row = row.unwrap_or_else(|| panic!("player {player} is lost: {fact:?}"));
        assert!(row.number >= *number, "player {player} has an older place than acknowledged: {fact:?}");
        let admission = admission.to_string();
        let is_kept = row.admission == admission || unique.contains(&admission);
        assert!(is_kept || player % LEAVER_INTERVAL == 0, "the place of player {player} is lost: {fact:?}");
    }
    // Admissions are in the order of joins, across all processes.
    let known: Vec<i64> = admitted.iter().filter_map(|id| history.numbers.get(id)).copied().collect();
    assert!((kendall_tau(&known) - 1.0).abs() < f64::EPSILON, "not in the order of joining: {known:?}");
    (history.admitted, history.ordered) = (admitted.len(), known.len());
}

/// Returns the ids of all published admissions, in order.
async fn published_admissions(process: &Process) -> Vec<String> {
    let events = events(&process.shop.db, ADMITTED).await;
    events.iter().map(|event| event["admission_id"].as_str().unwrap().to_owned()).collect()
}

/// Admits all waiting players, then compares line, orders, events and entitlements.
pub(super) async fn check_at_end(process: &Process, history: &mut History, mut choices: fastrand::Rng) {
    let Process { shop, drops, room, line, drop, .. } = process;
    // A killed process may have left the drop paused.
    let _ = drops.resume(*drop).await;
    drops.everyone_waits(*drop, false).await.unwrap();
    eventually("all reservations expire", PATIENCE, async || {
        shop.stock.expire(100).await.unwrap();
        shop.stock.levels(*drop).await.unwrap().reserved == 0
    })
    .await;
    repeat_webhooks(process, history, &mut choices).await;
    eventually("all players are admitted", PATIENCE, async || {
        room.tick().await.unwrap();
        let waiting = process.waiting().await;
        if waiting.is_empty() { Ok(()) } else { Err(format!("{waiting:?}")) }
    })
    .await;
    check_after_round(process, history).await;
    let published: HashSet<String> = published_admissions(process).await.into_iter().collect();
    for fact in &history.facts {
        let Fact::Joined { player, admission, .. } = fact else { continue };
        let is_admitted = published.contains(&admission.to_string());
        assert!(is_admitted || player % LEAVER_INTERVAL == 0, "player {player} was never admitted: {fact:?}");
    }
    room.reconcile().await.unwrap();
    assert_eq!(line.len(*drop).await.unwrap(), 0, "the line has only waiting players");
    compare_orders(process, history).await;
    close_drop(process).await;
    let History { admitted, ordered, paid, .. } = *history;
    assert!(admitted >= MIN_ADMITTED && paid >= MIN_PAID, "too little happened: {history}");
    assert!(2 * ordered >= admitted, "only {ordered} of {admitted} admissions have a known join number");
}

/// Sends all acknowledged webhooks again, in random order. None has an effect.
async fn repeat_webhooks(process: &Process, history: &History, choices: &mut fastrand::Rng) {
    let mut sent: Vec<Webhook> = Vec::new();
    for fact in &history.facts {
        let Fact::Recorded { id, kind, order, payment, amount } = fact else { continue };
        sent.push(Webhook {
            id: id.clone(),
            kind: WebhookKind::parse(kind).unwrap(),
            order: OrderId::from_uuid(*order),
            payment: payment.clone(),
            amount: *amount,
            currency: "EUR".to_owned(),
        });
    }
    choices.shuffle(&mut sent);
    for webhook in &sent {
        let outcome = process.shop.orders.record(webhook).await.unwrap();
        assert!(matches!(outcome, PaymentOutcome::Repeated(_)), "{webhook:?}: {outcome:?}");
    }
}

/// Compares orders with their events, with the acknowledged webhooks, and with the players' entitlements.
async fn compare_orders(process: &Process, history: &mut History) {
    let published = process.shop.all_published().await;
    let (mut succeeded, mut refunds) = (BTreeSet::new(), BTreeSet::new());
    for fact in &history.facts {
        match fact {
            Fact::Recorded { kind, order, .. } if kind == WebhookKind::Succeeded.as_str() => {
                succeeded.insert(OrderId::from_uuid(*order));
            }
            Fact::RefundBegun { order } => {
                refunds.insert(OrderId::from_uuid(*order));
            }
            Fact::Recorded { .. } | Fact::Joined { .. } => {}
        }
    }
    let mut orders = BTreeMap::new();
    for (user, account) in &process.players {
        let of_player = process.shop.orders.list(*user, None, 1_000).await.unwrap();
        let paid = of_player.iter().filter(|order| order.state == OrderState::Paid);
        let units: i64 = paid.map(|order| order.quantity).sum();
        assert!(units <= LIMIT, "{user} has bought {units}");
        let holding = Holding { user: *user, account: *account, resource: "sword".to_owned() };
        let owned = match process.shop.entitlements.get(&holding).await {
            Ok(view) => view.quantity.unwrap_or_default(),
            Err(entitlement::Error::NotFound(_)) => 0,
            Err(error) => panic!("{error:?}"),
        };
        assert_eq!(owned, units, "{user} owns exactly the paid units");
        orders.extend(of_player.into_iter().map(|order| (order.id, order)));
    }
    for order in orders.values() {
        let states = &published[&order.id.to_string()];
        assert_eq!(states.len() as i64, order.version, "one event per change: {states:?}");
        assert_eq!(states.last().map(String::as_str), Some(order.state.as_str()));
        let paid = states.iter().filter(|state| *state == OrderState::Paid.as_str()).count();
        assert_eq!(paid, usize::from(order.granted_at.is_some()), "one event per sale: {order:?}");
        history.paid += paid;
    }
    for id in succeeded {
        let state = orders[&id].state;
        let is_known = match state {
            OrderState::Paid | OrderState::RefundDue => true,
            OrderState::Refunded => refunds.contains(&id),
            OrderState::Pending | OrderState::Failed => false,
        };
        assert!(is_known, "an acknowledged payment is lost: {:?}", orders[&id]);
    }
}

/// Closes the drop while players wait. Checks that each of them is notified once.
async fn close_drop(process: &Process) {
    let Process { shop, drops, room, drop, .. } = process;
    drops.pause(*drop).await.unwrap();
    for player in 0..process.players.len() {
        process.join(player).await;
    }
    let waiting = process.waiting().await;
    drops.close(*drop, EndMode::Forced).await.unwrap();
    assert_eq!(room.end_waiting().await.unwrap(), waiting.len());
    assert_eq!(room.end_waiting().await.unwrap(), 0);
    let notified: Vec<UserId> = events(&shop.db, WAIT_ENDED)
        .await
        .iter()
        .map(|event| event["user_id"].as_str().unwrap().parse().unwrap())
        .collect();
    let unique: BTreeSet<UserId> = notified.iter().copied().collect();
    assert_eq!((notified.len(), &unique), (waiting.len(), &waiting), "every waiting player is notified once");
    assert!(process.waiting().await.is_empty());
    process.audit().await;
}
