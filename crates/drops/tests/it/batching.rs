//! Concurrent requests share transactions. Each gets the response that it would get in its own transaction.

use std::collections::BTreeMap;

use drops::orders::PaymentOutcome;
use entitlement::{Action, Change};
use testkit::{Seed, eventually};

use super::*;

testkit::on_all_stores!(
    grouped_webhooks_get_the_same_responses_as_single_ones,
    concurrent_payments_share_a_transaction,
    locked_payment_does_not_delay_the_others,
    grouped_orders_get_the_same_responses_as_single_ones,
);

const TERMS: Terms = Terms { units: 1_000, limit: 2, hold_ms: 10 * MINUTE };
const ROUNDS: u64 = 3;
/// How many players per round have webhooks sent at the same time.
const PLAYERS: usize = 24;

/// The orders and webhooks of one player.
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

    /// Creates the orders of a new player, and the webhooks to send.
    async fn prepare(self, shop: &Shop, drop: DropId) -> WebhookCase {
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
                shop.change_swords(customer, Action::Grant { quantity: None, valid_until: None }, -9).await;
                vec![send(Succeeded)]
            }
            Self::RevokedLater => {
                shop.change_swords(customer, Action::Revoke { quantity: None }, 60_000).await;
                vec![send(Succeeded)]
            }
            Self::Erased => {
                shop.accounts.erase(player.user, "olga").await.unwrap();
                vec![send(Succeeded)]
            }
        };
        WebhookCase { situation: self, orders, webhooks }
    }
}

/// The orders of a player and the webhooks to send about them.
#[derive(Clone, Debug)]
struct WebhookCase {
    situation: Situation,
    orders: Vec<Order>,
    webhooks: Vec<Webhook>,
}

/// The state after all webhooks of a case. The responses are sorted, since webhooks may be received in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Observation {
    responses: Vec<String>,
    /// One per order.
    orders: Vec<ObservedOrder>,
    /// How many units the account owns.
    owned: i64,
    /// 1 if the player is still inside, else 0.
    inside: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ObservedOrder {
    /// State * 100 + version of the order.
    order: i64,
    /// State * 100 + confirmed units of the reservation.
    reservation: i64,
    webhooks: i64,
    surplus: i64,
    published: Vec<String>,
}

fn response(response: &Result<PaymentOutcome, Error>) -> String {
    match response {
        Ok(outcome) => format!("{outcome:?}"),
        Err(error) => error.cause().unwrap_or_else(|| panic!("{error:?}")).to_owned(),
    }
}

impl Shop {
    /// Changes the swords of a player on behalf of another service.
    async fn change_swords(&self, (user, account): (UserId, AccountId), action: Action, after_ms: i64) {
        let change = Change {
            holding: Holding { user, account, resource: "sword".to_owned() },
            action,
            occurred_at: Timestamp::from_millis(NOW + after_ms),
            reference: None,
        };
        self.entitlements.apply("shop", &user.to_string(), &[change]).await.unwrap();
    }

    async fn observe(&self, case: &WebhookCase, mut responses: Vec<String>) -> Observation {
        responses.sort_unstable();
        let first = &case.orders[0];
        let mut orders = Vec::new();
        for order in &case.orders {
            let id = order.id.as_uuid().simple();
            let read = async |text: &str| self.scalar(&format!("SELECT {text} = X'{id}'")).await;
            let reservation = order.reservation.as_uuid().simple();
            let reservation = format!(
                "SELECT state * 100 + confirmed FROM drop_reservations WHERE reservation_id = X'{reservation}'"
            );
            orders.push(ObservedOrder {
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
        Observation { responses, orders, owned: self.owned(first).await, inside: self.scalar(&inside).await }
    }

    /// Sends webhooks so that at least `together` of them share a transaction. Another transaction locks the stock until that many wait
    /// behind the first group. Callers send more webhooks than there are connections, so that the first group cannot take all of them.
    pub(super) async fn send_together(
        &self,
        drop: DropId,
        webhooks: &[Webhook],
        together: usize,
    ) -> Vec<Result<PaymentOutcome, Error>> {
        let mut blocker = self.db.begin().await.unwrap();
        let id = drop.as_uuid().as_bytes().to_vec();
        db::on!(blocker, connection => {
            sqlx::query("UPDATE drop_stock SET version = version WHERE drop_id = ?")
                .bind(id).execute(connection).await.unwrap();
        });
        let releasing = async {
            eventually("payments wait", PATIENCE, async || self.orders.waiting_payments() >= together).await;
            blocker.rollback().await.unwrap();
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

/// Returns the allowed results of a situation: sends its webhooks one by one, in every order.
async fn results_one_by_one(shop: &Shop, drop: DropId, situation: Situation) -> Vec<Observation> {
    let alone = shop.orders.clone().without_batching();
    let mut observed = Vec::new();
    let count = situation.prepare(shop, drop).await.webhooks.len();
    let places: Vec<usize> = (0..count).collect();
    for order in webhooks::permutations(&places) {
        let case = situation.prepare(shop, drop).await;
        let mut responses = Vec::new();
        for at in order {
            responses.push(response(&alone.record(&case.webhooks[at]).await));
        }
        observed.push(shop.observe(&case, responses).await);
    }
    observed
}

async fn grouped_webhooks_get_the_same_responses_as_single_ones(place: &TestDatabase) {
    let (seed, shop) = (Seed::new(), Shop::open(place).await);
    let mut expected: BTreeMap<Situation, Vec<Observation>> = BTreeMap::new();
    let separate = shop.drop_of(TERMS).await;
    for situation in Situation::ALL {
        expected.insert(situation, results_one_by_one(&shop, separate, situation).await);
    }
    shop.assert_sound(separate).await;
    for round in 0..ROUNDS {
        let mut choices = seed.choices(round);
        let drop = shop.drop_of(TERMS).await;
        let mut cases = Vec::new();
        // Every second player pays normally; the others take turns through all situations.
        for n in 0..PLAYERS {
            let at = (round as usize * PLAYERS + n) / 2;
            let situation =
                if n % 2 == 0 { Situation::Paid } else { Situation::ALL[at % Situation::ALL.len()] };
            cases.push(situation.prepare(&shop, drop).await);
        }
        let mut sent: Vec<(usize, Webhook)> = Vec::new();
        for (at, case) in cases.iter().enumerate() {
            sent.extend(case.webhooks.iter().map(|webhook| (at, webhook.clone())));
        }
        choices.shuffle(&mut sent);
        let webhooks: Vec<Webhook> = sent.iter().map(|(_, webhook)| webhook.clone()).collect();
        let responses = shop.send_together(drop, &webhooks, 2).await;
        for (at, case) in cases.iter().enumerate() {
            let of_case = sent.iter().zip(&responses).filter(|((of, _), _)| *of == at);
            let observed = shop.observe(case, of_case.map(|(_, given)| response(given)).collect()).await;
            let expected = &expected[&case.situation];
            assert!(
                expected.contains(&observed),
                "{:?}: {observed:#?}, not one of {expected:#?}",
                case.situation
            );
        }
        shop.assert_sound(drop).await;
        let (sales, transactions) = shop.sales(drop).await;
        eprintln!("{sales} sales in {transactions} transactions");
        assert!(transactions < sales, "payments share transactions");
    }
}

async fn concurrent_payments_share_a_transaction(place: &TestDatabase) {
    const MANY: usize = 40;
    const TOGETHER: usize = 15;
    let shop = Shop::open(place).await;
    let alone = shop.orders.clone().without_batching();
    for is_grouped in [true, false] {
        let drop = shop.drop_of(TERMS).await;
        let mut made = Vec::new();
        for n in 0..MANY {
            let player = shop.customer(&format!("player-{n}")).await;
            made.push(shop.ordered(shop.admit(drop, player).await, 2).await);
        }
        let paid: Vec<Webhook> = made.iter().map(|order| webhook(order, WebhookKind::Succeeded)).collect();
        let responses = if is_grouped {
            shop.send_together(drop, &paid, TOGETHER).await
        } else {
            futures::future::join_all(paid.iter().map(|paid| alone.record(paid))).await
        };
        for response in responses {
            assert_eq!(response.unwrap(), PaymentOutcome::Changed(drops::orders::OrderState::Paid));
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
            "all players have left"
        );
    }
}

async fn locked_payment_does_not_delay_the_others(place: &TestDatabase) {
    if !place.is_server() {
        // SQLite allows one transaction at a time, so no other can hold a lock.
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
    // Another transaction changes ada's entitlements and stays open.
    let blocker = shop.entitlements.begin(&grant(&held), &[]).await.unwrap();
    let mut others = Vec::new();
    while others.len() < 12 {
        let order = shop.ordered(shop.admitted(drop, &format!("player-{}", others.len())).await, 1).await;
        // Skip players who share a lock bucket with ada.
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
    for response in tokio::time::timeout(PATIENCE, sending).await.unwrap() {
        response.unwrap();
    }
    assert!(!waiting.is_finished());
    assert_eq!(shop.stock.levels(drop).await.unwrap().sold, 12);
    blocker.rollback().await.unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(counts(shop.assert_sound(drop).await), (987, 0, 13));
}

async fn grouped_orders_get_the_same_responses_as_single_ones(place: &TestDatabase) {
    let shop = Shop::open(place).await;
    let drop = shop.drop_of(TERMS).await;
    let alone = shop.orders.clone().without_batching();
    let eve = shop.admitted(drop, "eve").await;
    for (orders, name) in [(&shop.orders, "grouped"), (&alone, "alone")] {
        let mut requests = Vec::new();
        for n in 0..24 {
            let player = shop.admitted(drop, &format!("{name}-{n}")).await;
            let held = shop.reserve(player, 2).await.unwrap();
            let request = |quantity| (player.user, held.id, quantity);
            match n % 6 {
                0 => requests.push(request(None)),
                1 => requests.push(request(Some(1))),
                // Two requests for the same reservation make one order.
                2 => requests.extend([request(Some(2)), request(None)]),
                3 => requests.push(request(Some(3))),
                4 => requests.push((eve.user, held.id, None)),
                _ => {
                    shop.stock.release(player.user, held.id).await.unwrap();
                    requests.push(request(None));
                }
            }
        }
        let payments = requests.iter().map(|(user, held, quantity)| orders.pay(*user, *held, *quantity));
        let responses = futures::future::join_all(payments).await;
        let mut counted: BTreeMap<String, usize> = BTreeMap::new();
        let mut made = std::collections::BTreeSet::new();
        for response in responses {
            let text = match response {
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
