//! Requests that arrive together: each gets the answer that it would get alone.

use std::collections::BTreeMap;

use drops::orders::Outcome;
use entitlement::{Action, Change};
use testkit::{Seed, eventually};

use super::*;

testkit::on_all_stores!(
    webhooks_of_a_group_get_the_answers_that_they_get_alone,
    payments_that_arrive_together_share_a_transaction,
    a_group_waits_for_nobody_elses_lock,
    orders_of_a_group_are_those_that_they_are_alone,
);

const TERMS: Terms = Terms { units: 1_000, limit: 2, hold_ms: 10 * MINUTE };
const ROUNDS: u64 = 3;
/// How many players of each round send webhooks at once.
const PLAYERS: usize = 24;

/// What happens to the orders of one player.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Situation {
    Paid,
    PartPaid,
    TwoOrders,
    SameWebhookTwice,
    TwoWebhooks,
    TwoPayments,
    IdOfAnotherOrder,
    KnownBefore,
    WrongAmount,
    WrongAmountFirst,
    UnknownOrder,
    Failed,
    PaidAndFailed,
    Refunded,
    PaidAndRefunded,
    PaidFailedAndRefunded,
    Late,
    LateTwice,
    LateOverLimit,
    OwnedUncounted,
    RevokedLater,
    Erased,
}

impl Situation {
    const ALL: [Self; 22] = [
        Self::Paid,
        Self::PartPaid,
        Self::TwoOrders,
        Self::SameWebhookTwice,
        Self::TwoWebhooks,
        Self::TwoPayments,
        Self::IdOfAnotherOrder,
        Self::KnownBefore,
        Self::WrongAmount,
        Self::WrongAmountFirst,
        Self::UnknownOrder,
        Self::Failed,
        Self::PaidAndFailed,
        Self::Refunded,
        Self::PaidAndRefunded,
        Self::PaidFailedAndRefunded,
        Self::Late,
        Self::LateTwice,
        Self::LateOverLimit,
        Self::OwnedUncounted,
        Self::RevokedLater,
        Self::Erased,
    ];

    /// Prepares the orders of a new player, and the webhooks that are sent.
    async fn prepare(self, shop: &Shop, drop: DropId) -> Scene {
        use WebhookKind::{Failed, Refunded, Succeeded};
        let customer = shop.customer(&format!("player-{}", fastrand::u64(..))).await;
        let player = shop.admit(drop, customer).await;
        let quantity = if matches!(self, Self::TwoOrders | Self::IdOfAnotherOrder) { 1 } else { 2 };
        let held = shop.reserve(player, quantity).await.unwrap();
        let part = (self == Self::PartPaid).then_some(1);
        let order = shop.orders.pay(player.user, held.id, part).await.unwrap();
        let send = |kind| webhook(&order, kind);
        let wrong = || Webhook { amount: order.amount + 1, ..send(Succeeded) };
        let mut orders = vec![order.clone()];
        let webhooks = match self {
            Self::Paid | Self::PartPaid => vec![send(Succeeded)],
            Self::TwoOrders | Self::IdOfAnotherOrder => {
                orders.push(shop.ordered(player, 1).await);
                let (first, mut second) = (send(Succeeded), webhook(&orders[1], Succeeded));
                if self == Self::IdOfAnotherOrder {
                    second.id.clone_from(&first.id);
                }
                vec![first, second]
            }
            Self::SameWebhookTwice => vec![send(Succeeded); 2],
            Self::TwoWebhooks => vec![send(Succeeded), send(Succeeded)],
            Self::TwoPayments => {
                vec![send(Succeeded), Webhook { payment: "pay_2".to_owned(), ..send(Succeeded) }]
            }
            Self::KnownBefore => {
                let known = send(Succeeded);
                shop.orders.record(&known).await.unwrap();
                vec![known]
            }
            Self::WrongAmount => vec![wrong()],
            Self::WrongAmountFirst => vec![wrong(), send(Succeeded)],
            Self::UnknownOrder => vec![Webhook { order: OrderId::generate(), ..send(Succeeded) }],
            Self::Failed => vec![send(Failed)],
            Self::PaidAndFailed => vec![send(Succeeded), send(Failed)],
            Self::Refunded => vec![send(Refunded)],
            Self::PaidAndRefunded => vec![send(Succeeded), send(Refunded)],
            Self::PaidFailedAndRefunded => vec![send(Succeeded), send(Failed), send(Refunded)],
            Self::Late | Self::LateTwice | Self::LateOverLimit => {
                shop.stock.release(player.user, held.id).await.unwrap();
                if self == Self::LateOverLimit {
                    shop.reserve(player, 1).await.unwrap();
                }
                (0..if self == Self::LateTwice { 2 } else { 1 }).map(|_| send(Succeeded)).collect()
            }
            Self::OwnedUncounted => {
                shop.change(customer, Action::Grant { quantity: None, valid_until: None }, -9).await;
                vec![send(Succeeded)]
            }
            Self::RevokedLater => {
                shop.change(customer, Action::Revoke { quantity: None }, 60_000).await;
                vec![send(Succeeded)]
            }
            Self::Erased => {
                shop.accounts.erase(player.user, "olga").await.unwrap();
                vec![send(Succeeded)]
            }
        };
        Scene { situation: self, orders, webhooks }
    }
}

/// The orders of a player and what the provider says of them.
#[derive(Clone, Debug)]
struct Scene {
    situation: Situation,
    orders: Vec<Order>,
    webhooks: Vec<Webhook>,
}

/// All that can be seen of a scene when it is over. Webhooks may be received in any order, so their answers have none.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    answers: Vec<String>,
    /// Of each order.
    orders: Vec<SeenOrder>,
    /// How many units the account has.
    owned: i64,
    /// Whether the player is still inside.
    inside: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenOrder {
    /// State and version.
    order: i64,
    /// State and confirmed units of the reservation.
    reservation: i64,
    webhooks: i64,
    surplus: i64,
    published: Vec<String>,
}

fn answer(answer: &Result<Outcome, Error>) -> String {
    match answer {
        Ok(outcome) => format!("{outcome:?}"),
        Err(error) => error.cause().unwrap_or_else(|| panic!("{error:?}")).to_owned(),
    }
}

impl Shop {
    /// What another shop does to the swords of a player.
    async fn change(&self, (user, account): (UserId, AccountId), action: Action, after_ms: i64) {
        let change = Change {
            holding: Holding { user, account, resource: "sword".to_owned() },
            action,
            occurred_at: Timestamp::from_millis(NOW + after_ms),
            reference: None,
        };
        self.entitlements.apply("shop", &user.to_string(), &[change]).await.unwrap();
    }

    async fn see(&self, scene: &Scene, mut answers: Vec<String>) -> Seen {
        answers.sort_unstable();
        let first = &scene.orders[0];
        let mut orders = Vec::new();
        for order in &scene.orders {
            let id = order.id.as_uuid().simple();
            let read = async |text: &str| self.scalar(&format!("SELECT {text} = X'{id}'")).await;
            let reservation = order.reservation.as_uuid().simple();
            let reservation = format!(
                "SELECT state * 100 + confirmed FROM drop_reservations WHERE reservation_id = X'{reservation}'"
            );
            orders.push(SeenOrder {
                order: read("state * 100 + version FROM drop_orders WHERE order_id").await,
                reservation: self.scalar(&reservation).await,
                webhooks: read("COUNT(*) FROM drop_payment_webhooks WHERE order_id").await,
                surplus: read("COUNT(*) FROM drop_surplus_payments WHERE state = 0 AND order_id").await,
                published: self.published(order.id).await,
            });
        }
        let inside = format!(
            "SELECT COUNT(*) FROM drop_entries WHERE state = 1 AND drop_id = X'{}' AND user_id = X'{}'",
            first.drop.as_uuid().simple(),
            first.user.as_uuid().simple()
        );
        Seen { answers, orders, owned: self.owned(first).await, inside: self.scalar(&inside).await }
    }

    /// Sends webhooks, of which at least `together` share a transaction: somebody holds the stock until they have arrived behind the
    /// first group. There are more of them than connections, so that the first group cannot have taken all of them.
    pub(super) async fn send_together(
        &self,
        drop: DropId,
        webhooks: &[Webhook],
        together: usize,
    ) -> Vec<Result<Outcome, Error>> {
        let mut stranger = self.db.begin().await.unwrap();
        let id = drop.as_uuid().as_bytes().to_vec();
        db::on!(stranger, connection => {
            sqlx::query("UPDATE drop_stock SET version = version WHERE drop_id = ?")
                .bind(id).execute(connection).await.unwrap();
        });
        let releasing = async {
            eventually("payments wait", PATIENCE, async || self.orders.waiting_payments() >= together).await;
            stranger.rollback().await.unwrap();
        };
        let sending = futures::future::join_all(webhooks.iter().map(|webhook| self.orders.record(webhook)));
        tokio::join!(sending, releasing).0
    }

    /// Counts the sales in the ledger of a drop, and the transactions that made them.
    pub(super) async fn sales(&self, drop: DropId) -> (i64, i64) {
        let id = drop.as_uuid().simple();
        let count = async |what: &str| {
            let of = format!("FROM drop_stock_ledger WHERE kind = 5 AND drop_id = X'{id}'");
            self.scalar(&format!("SELECT COUNT({what}) {of}")).await
        };
        (count("*").await, count("DISTINCT version").await)
    }
}

/// What a situation may come to: the webhooks one by one, in all orders.
async fn one_by_one(shop: &Shop, drop: DropId, situation: Situation) -> Vec<Seen> {
    let alone = shop.orders.clone().one_by_one();
    let mut seen = Vec::new();
    let count = situation.prepare(shop, drop).await.webhooks.len();
    let places: Vec<usize> = (0..count).collect();
    for order in webhooks::permutations(&places) {
        let scene = situation.prepare(shop, drop).await;
        let mut answers = Vec::new();
        for at in order {
            answers.push(answer(&alone.record(&scene.webhooks[at]).await));
        }
        seen.push(shop.see(&scene, answers).await);
    }
    seen
}

async fn webhooks_of_a_group_get_the_answers_that_they_get_alone(place: &SqlPlace) {
    let (seed, shop) = (Seed::new(), Shop::open(place).await);
    let mut expected: BTreeMap<Situation, Vec<Seen>> = BTreeMap::new();
    let twin = shop.drop_of(TERMS).await;
    for situation in Situation::ALL {
        expected.insert(situation, one_by_one(&shop, twin, situation).await);
    }
    shop.assert_sound(twin).await;
    for round in 0..ROUNDS {
        let mut choices = seed.choices(round);
        let drop = shop.drop_of(TERMS).await;
        let mut scenes = Vec::new();
        // All situations in turn, among others that are plain.
        for n in 0..PLAYERS {
            let at = (round as usize * PLAYERS + n) / 2;
            let situation =
                if n % 2 == 0 { Situation::Paid } else { Situation::ALL[at % Situation::ALL.len()] };
            scenes.push(situation.prepare(&shop, drop).await);
        }
        let mut sent: Vec<(usize, Webhook)> = Vec::new();
        for (at, scene) in scenes.iter().enumerate() {
            sent.extend(scene.webhooks.iter().map(|webhook| (at, webhook.clone())));
        }
        choices.shuffle(&mut sent);
        let webhooks: Vec<Webhook> = sent.iter().map(|(_, webhook)| webhook.clone()).collect();
        let answers = shop.send_together(drop, &webhooks, 2).await;
        for (at, scene) in scenes.iter().enumerate() {
            let of_scene = sent.iter().zip(&answers).filter(|((of, _), _)| *of == at);
            let seen = shop.see(scene, of_scene.map(|(_, given)| answer(given)).collect()).await;
            let expected = &expected[&scene.situation];
            assert!(expected.contains(&seen), "{:?}: {seen:#?}, not one of {expected:#?}", scene.situation);
        }
        shop.assert_sound(drop).await;
        let (sales, transactions) = shop.sales(drop).await;
        eprintln!("{sales} sales in {transactions} transactions");
        assert!(transactions < sales, "payments share transactions");
    }
}

async fn payments_that_arrive_together_share_a_transaction(place: &SqlPlace) {
    const MANY: usize = 40;
    const TOGETHER: usize = 15;
    let shop = Shop::open(place).await;
    let alone = shop.orders.clone().one_by_one();
    for is_grouped in [true, false] {
        let drop = shop.drop_of(TERMS).await;
        let mut made = Vec::new();
        for n in 0..MANY {
            let player = shop.customer(&format!("player-{n}")).await;
            made.push(shop.ordered(shop.admit(drop, player).await, 2).await);
        }
        let paid: Vec<Webhook> = made.iter().map(|order| webhook(order, WebhookKind::Succeeded)).collect();
        let answers = if is_grouped {
            shop.send_together(drop, &paid, TOGETHER).await
        } else {
            futures::future::join_all(paid.iter().map(|paid| alone.record(paid))).await
        };
        for answer in answers {
            assert_eq!(answer.unwrap(), Outcome::Changed(drops::orders::OrderState::Paid));
        }
        let (sales, transactions) = shop.sales(drop).await;
        assert_eq!(sales, MANY as i64);
        if is_grouped {
            assert!(transactions <= sales - TOGETHER as i64 + 1, "{transactions} transactions");
        } else {
            assert_eq!(transactions, sales);
        }
        assert_eq!(counts(shop.assert_sound(drop).await), (1_000 - 2 * sales, 0, 2 * sales));
        assert_eq!(
            shop.scalar("SELECT COUNT(*) FROM drop_entries WHERE state = 1").await,
            0,
            "all have left"
        );
    }
}

async fn a_group_waits_for_nobody_elses_lock(place: &SqlPlace) {
    if !place.is_server() {
        // A transaction of somebody else is the only one there.
        return;
    }
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let held = shop.ordered(shop.admitted(drop, "ada").await, 1).await;
    let grant = |order: &Order| {
        [Change {
            holding: Holding { user: order.user, account: order.account, resource: "sword".to_owned() },
            action: Action::Grant { quantity: Some(1), valid_until: None },
            occurred_at: Timestamp::from_millis(NOW),
            reference: None,
        }]
    };
    // Somebody changes what ada has, and takes their time.
    let stranger = shop.entitlements.begin(&grant(&held), &[]).await.unwrap();
    let mut others = Vec::new();
    while others.len() < 12 {
        let order = shop.ordered(shop.admitted(drop, &format!("player-{}", others.len())).await, 1).await;
        // Some of them may share a bucket of the locks with ada.
        if let Ok(free) = shop.entitlements.begin_shared(&grant(&order), Duration::from_millis(200)).await {
            free.rollback().await.unwrap();
            others.push(order);
        }
    }
    let paid = webhook(&held, WebhookKind::Succeeded);
    let waiting = tokio::spawn({
        let (orders, paid) = (shop.orders.clone(), paid.clone());
        async move { orders.record(&paid).await }
    });
    let sending = others.iter().map(|order| webhook(order, WebhookKind::Succeeded));
    let sending: Vec<Webhook> = sending.collect();
    let sending = futures::future::join_all(sending.iter().map(|webhook| shop.orders.record(webhook)));
    for answer in tokio::time::timeout(PATIENCE, sending).await.unwrap() {
        answer.unwrap();
    }
    assert!(!waiting.is_finished());
    assert_eq!(shop.stock.levels(drop).await.unwrap().sold, 12);
    stranger.rollback().await.unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(counts(shop.assert_sound(drop).await), (987, 0, 13));
}

async fn orders_of_a_group_are_those_that_they_are_alone(place: &SqlPlace) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let alone = shop.orders.clone().one_by_one();
    let eve = shop.admitted(drop, "eve").await;
    for (orders, name) in [(&shop.orders, "grouped"), (&alone, "alone")] {
        let mut asked = Vec::new();
        for n in 0..24 {
            let player = shop.admitted(drop, &format!("{name}-{n}")).await;
            let held = shop.reserve(player, 2).await.unwrap();
            let again = |quantity| (player.user, held.id, quantity);
            match n % 6 {
                0 => asked.push(again(None)),
                1 => asked.push(again(Some(1))),
                // Twice the same is one order.
                2 => asked.extend([again(Some(2)), again(None)]),
                3 => asked.push(again(Some(3))),
                4 => asked.push((eve.user, held.id, None)),
                _ => {
                    shop.stock.release(player.user, held.id).await.unwrap();
                    asked.push(again(None));
                }
            }
        }
        let paying = asked.iter().map(|(user, held, quantity)| orders.pay(*user, *held, *quantity));
        let answers = futures::future::join_all(paying).await;
        let mut counted: BTreeMap<String, usize> = BTreeMap::new();
        let mut made = std::collections::BTreeSet::new();
        for answer in answers {
            let text = match answer {
                Ok(order) => {
                    assert_eq!(order.amount, order.quantity * PRICE);
                    assert_eq!(shop.published(order.id).await, ["PENDING"]);
                    made.insert(order.id);
                    format!("{} units", order.quantity)
                }
                Err(error) => error.cause().unwrap_or_else(|| panic!("{error:?}")).to_owned(),
            };
            *counted.entry(text).or_default() += 1;
        }
        let expected = [
            ("1 units", 4),
            ("2 units", 12),
            ("drops:invalid", 4),
            ("drops:no-such-reservation", 4),
            ("drops:reservation-ended", 4),
        ];
        let expected = expected.map(|(text, count)| (text.to_owned(), count));
        assert_eq!(counted, BTreeMap::from(expected), "{name}");
        assert_eq!(made.len(), 12, "{name}");
    }
    assert_eq!(shop.scalar("SELECT COUNT(*) FROM drop_orders").await, 24);
}
