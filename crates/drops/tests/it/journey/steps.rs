//! The random steps of players, operators, the payment provider and the loops of a process.

use drops::orders::{ListRefunds, Order};
use drops::stock::Adjustment;
use drops::{Eligibility, Join, PlayerStatus};
use fastrand::Rng;

use super::super::*;
use super::facts::Fact;
use super::process::{LIMIT, Process};

/// How long one step may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);
/// Only every fourth player leaves. Each join of the others must end in one admission.
pub(super) const LEAVER_INTERVAL: usize = 4;

/// The steps to choose from. A step that is listed more often is more likely.
const STEPS: [Step; 24] = [
    Step::Join,
    Step::Join,
    Step::Join,
    Step::Leave,
    Step::Cycle,
    Step::Cycle,
    Step::Cycle,
    Step::Buy,
    Step::Buy,
    Step::Buy,
    Step::Buy,
    Step::Buy,
    Step::Webhooks,
    Step::Webhooks,
    Step::Release,
    Step::Expire,
    Step::Expire,
    Step::Adjust,
    Step::Adjust,
    Step::Operate,
    Step::Reconcile,
    Step::EmptyRedis,
    Step::Settle,
    Step::Audit,
];

#[derive(Clone, Copy, Debug)]
enum Step {
    Join,
    Leave,
    Cycle,
    Buy,
    Webhooks,
    Release,
    Expire,
    Adjust,
    Operate,
    Reconcile,
    EmptyRedis,
    Settle,
    Audit,
}

impl Process {
    /// Takes random steps. Some are cancelled half-way, as when a client disconnects.
    pub(super) async fn take_random_steps(&self, mut choices: Rng, steps: usize) {
        for _ in 0..steps {
            let (step, player) = (STEPS[choices.usize(..STEPS.len())], choices.usize(..self.players.len()));
            let gives_up = choices.u8(..5) == 0;
            let timeout = if gives_up { Duration::from_micros(choices.u64(..20_000)) } else { STEP_TIMEOUT };
            let mut own = choices.fork();
            let done = tokio::time::timeout(timeout, self.take(step, player, &mut own)).await;
            assert!(gives_up || done.is_ok(), "{step:?} takes longer than {STEP_TIMEOUT:?}");
        }
    }

    async fn take(&self, step: Step, player: usize, choices: &mut Rng) {
        match step {
            Step::Join => self.join(player).await,
            Step::Leave => {
                let player = player - player % LEAVER_INTERVAL;
                let _ = expected(self.room.leave(self.drop, self.players[player].0).await);
            }
            Step::Cycle => {
                expected(self.room.tick().await);
            }
            Step::Buy => self.buy(player, choices).await,
            Step::Webhooks => {
                for order in self.shop.orders.list(self.players[player].0, None, 3).await.unwrap() {
                    self.send_webhook(&order, choices).await;
                }
            }
            Step::Release => {
                for held in self.shop.stock.held(self.players[player].0, 2).await.unwrap() {
                    expected(self.shop.stock.release(held.user, held.id).await);
                }
            }
            Step::Expire => {
                expected(self.shop.stock.expire(4).await);
            }
            Step::Adjust => {
                let (actor, reason) = ("olga".to_owned(), "journey".to_owned());
                let (by, key) = (choices.i64(-1..=1) | 1, choices.u64(..).to_string());
                expected(self.shop.stock.adjust(self.drop, &Adjustment { by, actor, reason, key }).await);
            }
            Step::Operate => self.operate(choices).await,
            Step::Reconcile => {
                self.room.reconcile().await.unwrap();
            }
            Step::EmptyRedis => self.empty_redis().await,
            Step::Settle => self.settle().await,
            Step::Audit => self.audit().await,
        }
    }

    pub(super) async fn join(&self, player: usize) {
        let (user, account) = self.players[player];
        let join = Join { user, account, eligibility: Eligibility::default() };
        let entry = self.room.join(self.drop, join).await.unwrap();
        let admission = *entry.admission.as_uuid();
        self.fact_log.add(Fact::Joined { player, admission, number: entry.number });
    }

    /// Buys as an admitted player: verifies the admission token, reserves, orders, and usually pays.
    async fn buy(&self, player: usize, choices: &mut Rng) {
        let user = self.players[player].0;
        let PlayerStatus::Entered(admission) = self.room.status(self.drop, user).await.unwrap() else {
            return;
        };
        let now = Timestamp::from_millis(NOW);
        let token = self.tokens.sign(&admission, now);
        let admitted = self.tokens.verify(&token, self.drop, user, now).unwrap();
        let quantity = choices.i64(1..=LIMIT);
        let Some(held) = expected(self.shop.reserve(admitted, quantity).await) else { return };
        let some = choices.bool().then_some(1);
        let Some(order) = expected(self.shop.orders.pay(user, held.id, some).await) else { return };
        for _ in 0..choices.usize(..3) {
            self.send_webhook(&order, choices).await;
        }
    }

    /// Sends a webhook, usually that a payment succeeded, and often one that was sent before.
    async fn send_webhook(&self, order: &Order, choices: &mut Rng) {
        let kind = match choices.u8(..8) {
            0 => WebhookKind::Failed,
            1 => WebhookKind::Refunded,
            _ => WebhookKind::Succeeded,
        };
        let payment = if choices.u8(..8) == 0 { "second" } else { "first" };
        let copy = choices.u8(..2);
        let webhook = Webhook {
            id: format!("msg_{}_{payment}_{}_{copy}", order.id, kind.as_str()),
            payment: format!("{payment}_{}", order.id),
            ..webhook(order, kind)
        };
        if kind == WebhookKind::Refunded {
            self.fact_log.add(Fact::RefundBegun { order: *order.id.as_uuid() });
        }
        if expected(self.shop.orders.record(&webhook).await).is_some() {
            self.fact_log.add(Fact::Recorded {
                id: webhook.id,
                kind: kind.as_str().to_owned(),
                order: *order.id.as_uuid(),
                payment: webhook.payment,
                amount: webhook.amount,
            });
        }
    }

    /// Pauses or resumes the drop as an operator. Resumes more often.
    async fn operate(&self, choices: &mut Rng) {
        let (drops, drop) = (&self.drops, self.drop);
        let done = match choices.u8(..6) {
            0 => drops.pause(drop).await,
            1 => drops.everyone_waits(drop, true).await,
            2 | 3 => drops.everyone_waits(drop, false).await,
            _ => drops.resume(drop).await,
        };
        expected(done);
    }

    async fn settle(&self) {
        let which = ListRefunds { limit: 2, ..ListRefunds::default() };
        for due in expected(self.shop.orders.refunds_due(&which).await).unwrap_or_default().refunds {
            self.fact_log.add(Fact::RefundBegun { order: *due.order.id.as_uuid() });
            expected(self.shop.orders.settle_refund(due.order.id, &due.payment, "olga").await);
        }
    }
}

/// Returns none for refusals, which random steps may cause. Panics on any other error.
fn expected<T>(done: Result<T, Error>) -> Option<T> {
    match done {
        Ok(done) => Some(done),
        Err(
            Error::NotAdmitted
            | Error::AdmissionEnded
            | Error::NotInLine
            | Error::NotOpen(_)
            | Error::WrongState { .. }
            | Error::SoldOut { .. }
            | Error::OverLimit { .. }
            | Error::Invalid { .. }
            | Error::ReservationEnded(_)
            | Error::AlreadyPaid(_)
            | Error::StockInUse { .. }
            | Error::OtherPayment(_)
            | Error::NoRefundDue(_),
        ) => None,
        Err(error) => panic!("{error:?}"),
    }
}
