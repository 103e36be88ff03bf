//! What must be true of a drop at every moment, after each round, and at the end.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use drops::Ending;
use drops::orders::{OrderState, Outcome};
use testkit::eventually;

use super::super::*;
use super::facts::Fact;
use super::steps::LEAVING;
use super::world::{CAPACITY, LIMIT, World};
use crate::events::events;
use crate::kendall::kendall_tau;

const ADMITTED: &str = "playhouse.drop.admitted.v1";
const WAIT_ENDED: &str = "playhouse.drop.wait_ended.v1";
/// The number of the state in a row.
const WAITING: i32 = 0;
/// Fewer admissions and sales than this would prove little.
const LEAST_ADMITTED: usize = 25;
const LEAST_PAID: usize = 5;

/// What is known about a drop from outside.
#[derive(Default)]
pub(super) struct Witness {
    facts: Vec<Fact>,
    /// The number of the join of each admission that was seen.
    numbers: HashMap<String, i64>,
    admitted: usize,
    /// How many of them have a number that is known. A join that was given up may be admitted and replaced before anybody sees it.
    ordered: usize,
    paid: usize,
}

/// An entry as it is stored.
struct Row {
    user: UserId,
    state: i32,
    number: i64,
    admission: String,
}

impl Witness {
    pub(super) fn heard(&mut self, facts: Vec<Fact>) {
        for fact in &facts {
            if let Fact::Joined { admission, number, .. } = fact {
                let before = self.numbers.insert(admission.to_string(), *number);
                assert!(before.is_none_or(|before| before == *number), "an admission has one number");
            }
        }
        self.facts.extend(facts);
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { facts, admitted, ordered, paid, .. } = self;
        let facts = facts.len();
        write!(
            f,
            "{facts} facts, {admitted} admissions ({ordered} with their number), {paid} orders that were paid"
        )
    }
}

impl World {
    /// Checks what must be true at every moment. Each check is one statement, so that it sees one state of the database.
    pub(super) async fn audit(&self) {
        self.shop.assert_sound(self.drop).await;
        let [owned, sold] = self
            .numbers(
                "SELECT CAST(COALESCE((SELECT SUM(quantity) FROM entitlements), 0) AS SIGNED), \
                 (SELECT sold FROM drop_stock WHERE drop_id = ?)",
            )
            .await[0];
        assert_eq!(owned, sold, "what is sold is owned");
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

    /// Reads rows of two numbers.
    async fn numbers(&self, text: &'static str) -> Vec<[i64; 2]> {
        let mut connection = self.shop.db.connection().await.unwrap();
        let rows: Vec<(i64, i64)> = db::on!(connection, raw => {
            sqlx::query_as(text).bind(self.drop.as_uuid().as_bytes().to_vec()).fetch_all(raw).await.unwrap()
        });
        rows.into_iter().map(<[i64; 2]>::from).collect()
    }

    async fn rows(&self) -> Vec<Row> {
        let mut connection = self.shop.db.connection().await.unwrap();
        let rows: Vec<(Vec<u8>, i32, i64, Vec<u8>)> = db::on!(connection, raw => {
            sqlx::query_as("SELECT user_id, state, number, admission_id FROM drop_entries WHERE drop_id = ?")
                .bind(self.drop.as_uuid().as_bytes().to_vec())
                .fetch_all(raw)
                .await
                .unwrap()
        });
        let id = |bytes: &[u8]| base::id::Uuid::from_slice(bytes).unwrap();
        let row = |(user, state, number, admission): (Vec<u8>, i32, i64, Vec<u8>)| Row {
            user: UserId::from_uuid(id(&user)),
            state,
            number,
            admission: id(&admission).to_string(),
        };
        rows.into_iter().map(row).collect()
    }

    async fn waiting(&self) -> BTreeSet<UserId> {
        let waits = |row: &Row| row.state == WAITING;
        self.rows().await.into_iter().filter(waits).map(|row| row.user).collect()
    }
}

/// Checks what was acknowledged, while nothing else runs.
pub(super) async fn after_a_round(world: &World, witness: &mut Witness) {
    world.audit().await;
    let rows = world.rows().await;
    for row in &rows {
        witness.numbers.insert(row.admission.clone(), row.number);
    }
    let of_user: HashMap<UserId, &Row> = rows.iter().map(|row| (row.user, row)).collect();
    let admitted = admitted(world).await;
    let unique: HashSet<&String> = admitted.iter().collect();
    assert_eq!(unique.len(), admitted.len(), "nobody is admitted twice");
    for fact in &witness.facts {
        let Fact::Joined { player, admission, number } = fact else { continue };
        let row = of_user.get(&world.players[*player].0);
        let row = row.unwrap_or_else(|| panic!("player {player} is lost: {fact:?}"));
        assert!(row.number >= *number, "player {player} has an older place than was acknowledged: {fact:?}");
        let admission = admission.to_string();
        let is_kept = row.admission == admission || unique.contains(&admission);
        assert!(is_kept || player % LEAVING == 0, "the place of player {player} is lost: {fact:?}");
    }
    // First come, first served, over all processes.
    let known: Vec<i64> = admitted.iter().filter_map(|id| witness.numbers.get(id)).copied().collect();
    assert!((kendall_tau(&known) - 1.0).abs() < f64::EPSILON, "not in the order of joining: {known:?}");
    (witness.admitted, witness.ordered) = (admitted.len(), known.len());
}

/// The admissions that were announced, in order.
async fn admitted(world: &World) -> Vec<String> {
    let events = events(&world.shop.db, ADMITTED).await;
    events.iter().map(|event| event["admission_id"].as_str().unwrap().to_owned()).collect()
}

/// Lets everything come to an end, and compares all there is.
pub(super) async fn at_the_end(world: &World, witness: &mut Witness, mut choices: fastrand::Rng) {
    let World { shop, drops, room, line, drop, .. } = world;
    // Whatever a killed process has left.
    let _ = drops.resume(*drop).await;
    drops.everyone_waits(*drop, false).await.unwrap();
    eventually("everything that is held expires", PATIENCE, async || {
        shop.stock.expire(100).await.unwrap();
        shop.stock.levels(*drop).await.unwrap().reserved == 0
    })
    .await;
    repeat_webhooks(world, witness, &mut choices).await;
    eventually("everybody is admitted", PATIENCE, async || {
        room.tick().await.unwrap();
        let waiting = world.waiting().await;
        if waiting.is_empty() { Ok(()) } else { Err(format!("{waiting:?}")) }
    })
    .await;
    after_a_round(world, witness).await;
    let announced: HashSet<String> = admitted(world).await.into_iter().collect();
    for fact in &witness.facts {
        let Fact::Joined { player, admission, .. } = fact else { continue };
        let is_admitted = announced.contains(&admission.to_string());
        assert!(is_admitted || player % LEAVING == 0, "player {player} was never admitted: {fact:?}");
    }
    room.reconcile().await.unwrap();
    assert_eq!(line.len(*drop).await.unwrap(), 0, "nobody is in the line who does not wait");
    compare_orders(world, witness).await;
    end_the_drop(world).await;
    let Witness { admitted, ordered, paid, .. } = *witness;
    assert!(admitted >= LEAST_ADMITTED && paid >= LEAST_PAID, "too little happened: {witness}");
    assert!(2 * ordered >= admitted, "the order of {ordered} of {admitted} is known");
}

/// The provider sends all webhooks again that were acknowledged, in any order. Nothing changes.
async fn repeat_webhooks(world: &World, witness: &Witness, choices: &mut fastrand::Rng) {
    let mut sent: Vec<Webhook> = Vec::new();
    for fact in &witness.facts {
        let Fact::Recorded { id, kind, order, payment, amount } = fact else { continue };
        sent.push(Webhook {
            id: id.clone(),
            kind: WebhookKind::from_word(kind).unwrap(),
            order: OrderId::from_uuid(*order),
            payment: payment.clone(),
            amount: *amount,
            currency: "EUR".to_owned(),
        });
    }
    choices.shuffle(&mut sent);
    for webhook in &sent {
        let outcome = world.shop.orders.record(webhook).await.unwrap();
        assert!(matches!(outcome, Outcome::Repeated(_)), "{webhook:?}: {outcome:?}");
    }
}

/// Compares orders with their events, with what the provider was told, and with what players own.
async fn compare_orders(world: &World, witness: &mut Witness) {
    let published = world.shop.all_published().await;
    let (mut succeeded, mut refunds) = (BTreeSet::new(), BTreeSet::new());
    for fact in &witness.facts {
        match fact {
            Fact::Recorded { kind, order, .. } if kind == WebhookKind::Succeeded.word() => {
                succeeded.insert(OrderId::from_uuid(*order));
            }
            Fact::RefundBegun { order } => {
                refunds.insert(OrderId::from_uuid(*order));
            }
            Fact::Recorded { .. } | Fact::Joined { .. } => {}
        }
    }
    let mut orders = BTreeMap::new();
    for (user, account) in &world.players {
        let of_player = world.shop.orders.list(*user, None, 1_000).await.unwrap();
        let paid = of_player.iter().filter(|order| order.state == OrderState::Paid);
        let units: i64 = paid.map(|order| order.quantity).sum();
        assert!(units <= LIMIT, "{user} has bought {units}");
        let holding = Holding { user: *user, account: *account, resource: "sword".to_owned() };
        let owned = match world.shop.entitlements.get(&holding).await {
            Ok(view) => view.quantity.unwrap_or_default(),
            Err(entitlement::Error::Unknown(_)) => 0,
            Err(error) => panic!("{error:?}"),
        };
        assert_eq!(owned, units, "{user} owns what was paid for");
        orders.extend(of_player.into_iter().map(|order| (order.id, order)));
    }
    for order in orders.values() {
        let states = &published[&order.id.to_string()];
        assert_eq!(states.len() as i64, order.version, "one event for each change: {states:?}");
        assert_eq!(states.last().map(String::as_str), Some(order.state.word()));
        let paid = states.iter().filter(|state| *state == OrderState::Paid.word()).count();
        assert_eq!(paid, usize::from(order.granted_at.is_some()), "one event for what was sold: {order:?}");
        witness.paid += paid;
    }
    for id in succeeded {
        let state = orders[&id].state;
        let is_known = match state {
            OrderState::Paid | OrderState::RefundDue => true,
            OrderState::Refunded => refunds.contains(&id),
            OrderState::Pending | OrderState::Failed => false,
        };
        assert!(is_known, "a payment that was acknowledged is forgotten: {:?}", orders[&id]);
    }
}

/// Closes the drop while players wait: each of them is notified once.
async fn end_the_drop(world: &World) {
    let World { shop, drops, room, drop, .. } = world;
    drops.pause(*drop).await.unwrap();
    for player in 0..world.players.len() {
        world.join(player).await;
    }
    let waiting = world.waiting().await;
    drops.close(*drop, Ending::Forced).await.unwrap();
    assert_eq!(room.end_waiting().await.unwrap(), waiting.len());
    assert_eq!(room.end_waiting().await.unwrap(), 0);
    let notified: Vec<UserId> = events(&shop.db, WAIT_ENDED)
        .await
        .iter()
        .map(|event| event["user_id"].as_str().unwrap().parse().unwrap())
        .collect();
    let once: BTreeSet<UserId> = notified.iter().copied().collect();
    assert_eq!((notified.len(), &once), (waiting.len(), &waiting), "who waited is notified once");
    assert!(world.waiting().await.is_empty());
    world.audit().await;
}
