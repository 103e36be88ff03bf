//! Ready checks: a match whose players are asked first.

use std::time::Duration;

use base::id::Uuid;
use bytes::Bytes;
use futures::StreamExt;
use http_server::Connection;
use matchmaking::model::{Moment, ReadyCheckId, TicketId};
use matchmaking::store::{
    AnswerOutcome, AssignOutcome, Claim, DeleteOutcome, DueChecks, NewReadyCheck, OpenOutcome, ReadyAnswer,
    ReadyCheck, ReadyState, TicketReason,
};
use matchmaking::{PlayerState, PlayerTicket, Players, Queue};
use runtime::Drain;
use testkit::{Redis, eventually, need};

use crate::setup::{PATIENCE, Setup, Tickets, group, sorted, to, user};

for_every_store! {
    accepted_match_is_taken_once_and_assigned,
    decline_cancels_one_ticket_and_releases_the_others_to_their_place,
    silent_player_is_cancelled_at_the_deadline,
    answer_after_the_deadline_does_not_count,
    cancelled_ticket_ends_its_check,
    absent_player_ends_the_check,
    expired_ticket_ends_its_check_early,
    released_ticket_breaks_its_check,
    only_players_of_the_check_can_answer,
    all_players_of_a_ticket_have_to_accept,
    check_is_refused_under_an_old_claim_or_for_a_ticket_that_left,
    engine_that_died_with_an_accepted_match_is_fenced_off,
    check_of_an_assigned_match_is_removed_after_a_crash,
    unassigned_match_returns_to_the_queue,
    tickets_outlive_the_death_of_all_engines,
    stream_reports_each_step,
}

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(50);
/// The step of the manual clock.
const STEP: Duration = Duration::from_millis(50);

/// A store with waiting players.
pub(crate) struct Waiting {
    pub(crate) tickets: Tickets,
    pub(crate) players: Players,
    /// The tickets, oldest first. Player `n` has ticket `n`.
    pub(crate) ids: Vec<TicketId>,
}

impl Waiting {
    async fn new(setup: &Setup, count: u128) -> Self {
        Self::in_queue(setup, count, Queue::default()).await
    }

    async fn in_queue(setup: &Setup, count: u128, queue: Queue) -> Self {
        let tickets = setup.open().await;
        let players = tickets.players([("duel", queue)]);
        let mut ids = Vec::new();
        for number in 0..count {
            ids.push(players.join(user(number), to("duel")).await.unwrap().ticket.id);
        }
        Self { tickets, players, ids }
    }

    /// Fetches all tickets, opens a check of the first `count` ones, and releases the others.
    async fn open(&self, count: usize, time: Duration) -> ReadyCheckId {
        let claim = self.tickets.fetch(&"engine".into(), 100).await.unwrap().claim;
        let check = self.check(0..count, claim, time);
        assert_eq!(
            self.tickets.open_ready_checks(std::slice::from_ref(&check)).await.unwrap(),
            [OpenOutcome::Opened]
        );
        self.tickets.release_claim(claim, &self.ids).await.unwrap();
        check.id
    }

    fn check(&self, numbers: impl IntoIterator<Item = usize>, claim: Claim, time: Duration) -> NewReadyCheck {
        let of = |number: usize| (self.ids[number].clone(), vec![user(number as u128)]);
        let id = ReadyCheckId::generate(Moment::from(self.tickets.clock.now()));
        let encoded_match = Bytes::from_static(b"the match");
        NewReadyCheck { id, claim, tickets: numbers.into_iter().map(of).collect(), time, encoded_match }
    }

    async fn answer(&self, number: usize, answer: ReadyAnswer) -> AnswerOutcome {
        self.tickets.answer_ready_check(&self.ids[number], user(number as u128), answer).await.unwrap()
    }

    async fn accept(&self, number: usize) -> AnswerOutcome {
        self.answer(number, ReadyAnswer::Accept).await
    }

    async fn due(&self) -> DueChecks {
        self.tickets.due_ready_checks(100).await.unwrap()
    }

    async fn state(&self, number: usize) -> Option<ReadyState> {
        let mut states = self.tickets.ready_states(&self.ids[number..=number]).await.unwrap().states;
        states.pop().map(|(_, state)| state)
    }

    /// Returns the tickets that an engine can fetch now, oldest first.
    async fn free(&self) -> Vec<TicketId> {
        let ids = self.tickets.take(100).await;
        self.tickets.release(&ids).await.unwrap();
        ids
    }

    async fn exists(&self, number: usize) -> bool {
        self.tickets.find(&self.ids[number]).await.unwrap().data.is_some()
    }

    fn ids(&self, numbers: impl IntoIterator<Item = usize>) -> Vec<TicketId> {
        numbers.into_iter().map(|number| self.ids[number].clone()).collect()
    }

    /// Lets time pass until the condition holds.
    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        eventually(what, PATIENCE, async || {
            self.tickets.pass(STEP);
            holds().await
        })
        .await;
    }

    async fn seen(&self, number: usize) -> PlayerTicket {
        self.players.ticket(user(number as u128), self.ids[number].as_str()).await.unwrap()
    }
}

/// Runs each step on every branch that touches keys.
pub(crate) async fn run_every_step(tickets: &Tickets) {
    tickets.release_all().await.unwrap();
    let players = tickets.players([("checked", Queue::default())]);
    let mut ids = Vec::new();
    for number in 0..4 {
        ids.push(players.join(user(number), to("checked")).await.unwrap().ticket.id);
    }
    let waiting = Waiting { tickets: tickets.clone(), players, ids };
    waiting.open(4, LONG).await;
    waiting.accept(1).await;
    assert!(waiting.state(0).await.is_some());
    assert_eq!(waiting.answer(0, ReadyAnswer::Decline).await, AnswerOutcome::Left);
    let ask = async |numbers: &[usize]| {
        let claim = tickets.fetch(&"engine".into(), 100).await.unwrap().claim;
        let check = waiting.check(numbers.iter().copied(), claim, LONG);
        assert_eq!(tickets.open_ready_checks(&[check]).await.unwrap(), [OpenOutcome::Opened]);
        tickets.release_claim(claim, &waiting.ids).await.unwrap();
        for number in numbers {
            waiting.accept(*number).await;
        }
    };
    ask(&[1, 2, 3]).await;
    tickets.delete(&waiting.ids[1]).await.unwrap();
    ask(&[2, 3]).await;
    let due = waiting.due().await;
    let mut made = group("checked", waiting.ids([2, 3]));
    made.claim = Some(due.claim);
    assert_eq!(tickets.assign(&[made]).await.unwrap(), [AssignOutcome::Assigned]);
    tickets.close_ready_checks(due.claim, &[due.accepted[0].id.clone()]).await.unwrap();
    assert_eq!(waiting.accept(2).await, AnswerOutcome::Assigned);
}

/// Returns an open check.
fn open(outcome: AnswerOutcome) -> ReadyCheck {
    match outcome {
        AnswerOutcome::Open(check) => check,
        other => panic!("{other:?}"),
    }
}

fn over(reason: TicketReason) -> Option<ReadyState> {
    Some(ReadyState::Over(Some(reason)))
}

async fn accepted_match_is_taken_once_and_assigned(setup: Setup) {
    let waiting = Waiting::new(&setup, 3).await;
    let before = waiting.tickets.clock.now();
    let id = waiting.open(2, LONG).await;
    assert_eq!(waiting.free().await, waiting.ids([2]), "tickets of a check are not handed out");
    assert_eq!(waiting.tickets.all().await, waiting.ids, "tickets of a check keep their place");
    let (first, third) = (waiting.seen(0).await, waiting.seen(2).await);
    assert_eq!((first.state, third.state), (PlayerState::ReadyCheck, PlayerState::Waiting));
    let check = first.ready_check.unwrap();
    assert_eq!((check.accepted, check.players, check.has_accepted), (0, 2, false));
    let time = check.expires_at.distance(before);
    assert!(time >= LONG && time < LONG + PATIENCE, "{time:?}");

    for _ in 0..2 {
        let check = open(waiting.accept(0).await);
        assert_eq!((check.accepted, check.players), (1, 2), "an answer counts once");
        assert_eq!((check.id, check.answers), (id.clone(), vec![(user(0), true)]));
    }
    assert!(waiting.due().await.accepted.is_empty());
    let (accepted, silent) = (waiting.seen(0).await.ready_check, waiting.seen(1).await.ready_check);
    assert_eq!((accepted.unwrap().has_accepted, silent.unwrap().has_accepted), (true, false));
    assert_eq!(open(waiting.accept(1).await).accepted, 2);
    assert_eq!(waiting.answer(1, ReadyAnswer::Decline).await, AnswerOutcome::NoCheck, "too late");

    let other = waiting.tickets.elsewhere().await;
    let (ours, theirs) = tokio::join!(waiting.due(), other.due_ready_checks(100));
    let mut taken = [ours, theirs.unwrap()].into_iter().filter(|due| !due.accepted.is_empty());
    let (due, none) = (taken.next().unwrap(), taken.next());
    assert!(none.is_none(), "{none:?}");
    let accepted = &due.accepted[0];
    assert_eq!((accepted.id.clone(), accepted.tickets.clone()), (id.clone(), waiting.ids([0, 1])));
    assert_eq!((&accepted.encoded_match[..], accepted.times_taken), (&b"the match"[..], 1));
    let mut made = group("made", accepted.tickets.clone());
    made.claim = Some(due.claim);
    assert_eq!(waiting.tickets.assign(&[made]).await.unwrap(), [AssignOutcome::Assigned]);
    waiting.tickets.close_ready_checks(due.claim, &[id]).await.unwrap();
    assert_eq!(waiting.due().await.open, 0);
    assert_eq!(waiting.accept(1).await, AnswerOutcome::Assigned, "a repeated request");
    assert_eq!(waiting.answer(1, ReadyAnswer::Decline).await, AnswerOutcome::NoCheck);
    assert_eq!(waiting.seen(1).await.state, PlayerState::Assigned);
    assert_eq!(waiting.free().await, waiting.ids([2]));
}

async fn decline_cancels_one_ticket_and_releases_the_others_to_their_place(setup: Setup) {
    let waiting = Waiting::new(&setup, 4).await;
    waiting.open(3, LONG).await;
    waiting.accept(2).await;
    for _ in 0..2 {
        assert_eq!(waiting.answer(1, ReadyAnswer::Decline).await, AnswerOutcome::Left);
    }
    assert_eq!(waiting.accept(0).await, AnswerOutcome::NoCheck);
    assert!(!waiting.exists(1).await);
    assert_eq!(waiting.free().await, waiting.ids([0, 2, 3]));
    for number in [0, 2] {
        assert_eq!(waiting.state(number).await, over(TicketReason::NotEveryoneAccepted));
        let seen = waiting.seen(number).await;
        assert_eq!((seen.state, seen.ready_check), (PlayerState::Waiting, None));
        assert_eq!(seen.reason, Some(TicketReason::NotEveryoneAccepted));
    }
    assert_eq!(waiting.state(1).await, Some(ReadyState::Left(TicketReason::Declined)));
    assert_eq!(waiting.due().await.open, 0);
    // The player may wait again, behind the others.
    let again = waiting.players.join(user(1), to("duel")).await.unwrap();
    assert!(again.is_new);
    assert_eq!(waiting.tickets.all().await.last(), Some(&again.ticket.id));
    waiting.players.decline(user(1), waiting.ids[1].as_str()).await.unwrap();
    assert!(waiting.players.decline(user(0), waiting.ids[1].as_str()).await.is_err(), "not theirs");
}

async fn silent_player_is_cancelled_at_the_deadline(setup: Setup) {
    let waiting = Waiting::new(&setup, 4).await;
    let time = Duration::from_millis(900);
    waiting.open(3, time).await;
    waiting.accept(1).await;
    let start = waiting.tickets.clock.now();
    waiting.until("the check ends", async || waiting.due().await.ended == 1).await;
    let took = waiting.tickets.clock.now().distance(start);
    assert!(waiting.tickets.is_in_redis() || took + STEP >= time, "{took:?}");
    assert_eq!([waiting.exists(0).await, waiting.exists(2).await], [false, false]);
    assert_eq!(waiting.free().await, waiting.ids([1, 3]));
    assert_eq!(waiting.state(0).await, Some(ReadyState::Left(TicketReason::NoAnswer)));
    assert_eq!(waiting.state(1).await, over(TicketReason::NotEveryoneAccepted));
    assert_eq!(waiting.state(3).await, None);
}

async fn answer_after_the_deadline_does_not_count(setup: Setup) {
    let waiting = Waiting::new(&setup, 2).await;
    waiting.open(2, Duration::from_millis(400)).await;
    waiting.accept(1).await;
    waiting.until("the time is up", async || waiting.accept(1).await == AnswerOutcome::NoCheck).await;
    assert_eq!(waiting.accept(0).await, AnswerOutcome::NoCheck);
    assert_eq!([waiting.exists(0).await, waiting.exists(1).await], [false, true]);
    assert_eq!(waiting.free().await, waiting.ids([1]));
}

async fn cancelled_ticket_ends_its_check(setup: Setup) {
    let waiting = Waiting::new(&setup, 3).await;
    waiting.open(3, LONG).await;
    waiting.accept(0).await;
    assert_eq!(waiting.tickets.delete(&waiting.ids[1]).await.unwrap(), DeleteOutcome::Deleted);
    assert_eq!(waiting.free().await, waiting.ids([0, 2]));
    assert_eq!(waiting.state(2).await, over(TicketReason::NotEveryoneAccepted));
    assert_eq!(waiting.accept(2).await, AnswerOutcome::NoCheck);

    // Also once everybody has accepted, and while an engine makes the match.
    let claim = waiting.tickets.fetch(&"engine".into(), 100).await.unwrap().claim;
    let check = waiting.check([0, 2], claim, LONG);
    waiting.tickets.open_ready_checks(&[check]).await.unwrap();
    for number in [0, 2] {
        waiting.accept(number).await;
    }
    let due = waiting.due().await;
    assert_eq!(due.accepted.len(), 1);
    waiting.tickets.delete(&waiting.ids[0]).await.unwrap();
    assert_eq!(waiting.free().await, waiting.ids([2]));
    let mut made = group("made", waiting.ids([0, 2]));
    made.claim = Some(due.claim);
    let outcome = waiting.tickets.assign(&[made]).await.unwrap();
    assert_eq!(outcome, [AssignOutcome::Refused(waiting.ids[0].clone())]);
}

async fn absent_player_ends_the_check(setup: Setup) {
    let queue = Queue { cancel_when_gone: Some(Duration::from_millis(900)), ..Queue::default() };
    let waiting = Waiting::in_queue(&setup, 2, queue).await;
    let _present = waiting.players.mark_present(user(1));
    waiting.open(2, LONG).await;
    waiting.until("the absent one is cancelled", async || waiting.players.tick().await.unwrap() == 1).await;
    assert_eq!(waiting.free().await, waiting.ids([1]));
    assert_eq!(waiting.state(1).await, over(TicketReason::NotEveryoneAccepted));
}

async fn expired_ticket_ends_its_check_early(setup: Setup) {
    let tickets = setup.open().await;
    let brief = Queue { ticket_ttl: Some(Duration::from_secs(2)), ..Queue::default() };
    let players = tickets.players([("brief", brief), ("duel", Queue::default())]);
    let mut ids = Vec::new();
    for (number, queue) in [(0, "brief"), (1, "duel"), (2, "duel")] {
        ids.push(players.join(user(number), to(queue)).await.unwrap().ticket.id);
    }
    let waiting = Waiting { tickets, players, ids };
    waiting.open(3, LONG).await;
    waiting.accept(1).await;
    waiting.until("the check ends", async || waiting.due().await.ended == 1).await;
    assert!(!waiting.exists(0).await);
    assert_eq!(waiting.free().await, waiting.ids([1, 2]), "a silent player has time until the deadline");
    assert_eq!(waiting.state(0).await, Some(ReadyState::Left(TicketReason::Expired)));
}

async fn released_ticket_breaks_its_check(setup: Setup) {
    let waiting = Waiting::new(&setup, 3).await;
    waiting.open(3, LONG).await;
    waiting.tickets.release(&waiting.ids([1])).await.unwrap();
    assert_eq!(waiting.free().await, waiting.ids([1]));
    assert_eq!(waiting.state(1).await, None);
    assert_eq!(waiting.accept(0).await, AnswerOutcome::NoCheck);
    assert_eq!(waiting.free().await, waiting.ids([0, 1, 2]));
    // The ticket may be in another check by then.
    waiting.open(3, LONG).await;
    waiting.tickets.release(&waiting.ids([0])).await.unwrap();
    waiting.open(1, LONG).await;
    assert_eq!(waiting.accept(2).await, AnswerOutcome::NoCheck);
    assert_eq!(waiting.free().await, waiting.ids([1, 2]));
    assert_eq!(open(waiting.accept(0).await).players, 1, "the newer check is untouched");
}

async fn only_players_of_the_check_can_answer(setup: Setup) {
    let waiting = Waiting::new(&setup, 3).await;
    assert_eq!(waiting.accept(0).await, AnswerOutcome::NoCheck);
    waiting.open(2, LONG).await;
    assert_eq!(waiting.accept(2).await, AnswerOutcome::NoCheck);
    for stranger in [user(1), user(2), Uuid::new_v4()] {
        for answer in [ReadyAnswer::Accept, ReadyAnswer::Decline] {
            let outcome =
                waiting.tickets.answer_ready_check(&waiting.ids[0], stranger, answer).await.unwrap();
            assert_eq!(outcome, AnswerOutcome::NoCheck);
        }
        assert!(waiting.players.accept(stranger, waiting.ids[0].as_str()).await.is_err());
        assert!(waiting.players.decline(stranger, waiting.ids[0].as_str()).await.is_err());
    }
    assert_eq!(open(waiting.accept(0).await).accepted, 1);
}

async fn all_players_of_a_ticket_have_to_accept(setup: Setup) {
    let waiting = Waiting::new(&setup, 2).await;
    let claim = waiting.tickets.fetch(&"engine".into(), 100).await.unwrap().claim;
    let mut check = waiting.check([0, 1], claim, LONG);
    check.tickets[0].1.push(user(10));
    waiting.tickets.open_ready_checks(&[check]).await.unwrap();
    waiting.accept(1).await;
    assert_eq!(open(waiting.accept(0).await).accepted, 2);
    assert!(waiting.due().await.accepted.is_empty());
    let answer = waiting.tickets.answer_ready_check(&waiting.ids[0], user(10), ReadyAnswer::Accept).await;
    let check = open(answer.unwrap());
    assert_eq!((check.accepted, check.players), (3, 3));
    assert_eq!(check.answers, [(user(0), true), (user(10), true)]);
    assert_eq!(waiting.due().await.accepted.len(), 1);
}

async fn check_is_refused_under_an_old_claim_or_for_a_ticket_that_left(setup: Setup) {
    let waiting = Waiting::new(&setup, 6).await;
    let old = waiting.tickets.fetch(&"engine".into(), 2).await.unwrap().claim;
    waiting.tickets.release(&waiting.ids).await.unwrap();
    let claim = waiting.tickets.fetch(&"engine".into(), 100).await.unwrap().claim;
    waiting.tickets.delete(&waiting.ids[3]).await.unwrap();
    waiting.tickets.release_claim(claim, &waiting.ids([5])).await.unwrap();
    let checks = [
        waiting.check([0, 1], old, LONG),
        waiting.check([2, 3], claim, LONG),
        waiting.check([4, 5], claim, LONG),
        waiting.check([1, 2], claim, LONG),
        waiting.check([2, 4], claim, LONG),
    ];
    let outcomes = waiting.tickets.open_ready_checks(&checks).await.unwrap();
    let expected = [
        OpenOutcome::Stale(waiting.ids[0].clone()),
        OpenOutcome::Refused(waiting.ids[3].clone()),
        OpenOutcome::Refused(waiting.ids[5].clone()),
        OpenOutcome::Opened,
        OpenOutcome::Stale(waiting.ids[2].clone()),
    ];
    assert_eq!(outcomes, expected);
    waiting.tickets.release_claim(claim, &waiting.ids).await.unwrap();
    assert_eq!(waiting.free().await, waiting.ids([0, 4, 5]), "a refused check changes nothing");
}

async fn engine_that_died_with_an_accepted_match_is_fenced_off(setup: Setup) {
    let setup = setup.with(|rules| rules.pending_timeout = Duration::from_secs(4));
    let waiting = Waiting::new(&setup, 2).await;
    let id = waiting.open(2, Duration::from_secs(4)).await;
    for number in [0, 1] {
        waiting.accept(number).await;
    }
    let first = waiting.due().await;
    assert_eq!(first.accepted.len(), 1);
    let second = std::sync::Mutex::new(DueChecks::default());
    waiting
        .until("another engine takes it", async || {
            let due = waiting.due().await;
            let is_taken = !due.accepted.is_empty();
            *second.lock().unwrap() = due;
            is_taken
        })
        .await;
    let second = second.into_inner().unwrap();
    assert_eq!((second.accepted[0].times_taken, &second.accepted[0].id), (2, &id));
    assert_eq!(waiting.tickets.take(10).await, [], "no engine gets them in between");

    let [late, made] = [first.claim, second.claim].map(|claim| {
        let mut made = group(&claim.to_string(), waiting.ids.clone());
        made.claim = Some(claim);
        made
    });
    let outcome = waiting.tickets.assign(&[late]).await.unwrap();
    assert_eq!(outcome, [AssignOutcome::Stale(waiting.ids[0].clone())]);
    waiting.tickets.close_ready_checks(first.claim, &[id]).await.unwrap();
    assert!(matches!(waiting.state(0).await, Some(ReadyState::Open(_))));
    assert_eq!(waiting.tickets.assign(&[made]).await.unwrap(), [AssignOutcome::Assigned]);
}

async fn check_of_an_assigned_match_is_removed_after_a_crash(setup: Setup) {
    let setup = setup.with(|rules| rules.pending_timeout = Duration::from_secs(2));
    let waiting = Waiting::new(&setup, 3).await;
    waiting.open(2, Duration::from_secs(2)).await;
    for number in [0, 1] {
        waiting.accept(number).await;
    }
    let due = waiting.due().await;
    let mut made = group("made", waiting.ids([0, 1]));
    made.claim = Some(due.claim);
    waiting.tickets.assign(&[made]).await.unwrap();
    // It dies before it closes the check.
    waiting.until("the check is removed", async || waiting.due().await.open == 0).await;
    assert_eq!(waiting.free().await, waiting.ids([2]));
    for number in [0, 1] {
        assert_eq!(waiting.tickets.connection_of(&waiting.ids[number]).await.unwrap(), "made");
    }
}

async fn unassigned_match_returns_to_the_queue(setup: Setup) {
    let waiting = Waiting::new(&setup, 3).await;
    let id = waiting.open(2, LONG).await;
    for number in [0, 1] {
        waiting.accept(number).await;
    }
    let due = waiting.due().await;
    // Its engine has released one of them, and died.
    waiting.tickets.release_claim(due.claim, &waiting.ids([1])).await.unwrap();
    waiting.tickets.close_ready_checks(due.claim, &[id]).await.unwrap();
    assert_eq!(waiting.free().await, waiting.ids);
    for number in [0, 1] {
        let seen = waiting.seen(number).await;
        assert_eq!((seen.state, seen.reason), (PlayerState::Waiting, None));
    }
}

async fn tickets_outlive_the_death_of_all_engines(setup: Setup) {
    let setup = setup.with(|rules| rules.pending_timeout = Duration::from_secs(1));
    let waiting = Waiting::new(&setup, 2).await;
    waiting.open(2, Duration::from_secs(1)).await;
    waiting.accept(0).await;
    // No engine looks for due checks. The tickets are active again all the same, and the check does not matter any more.
    waiting.until("they are active again", async || waiting.free().await == waiting.ids).await;
    assert_eq!(waiting.accept(1).await, AnswerOutcome::NoCheck);
    waiting.due().await;
    assert_eq!(sorted(waiting.free().await), sorted(waiting.ids.clone()));
}

/// Follows a ticket in a process of its own.
async fn watch(
    waiting: &Waiting,
    number: usize,
) -> impl futures::Stream<Item = PlayerTicket> + Unpin + use<> {
    let tickets = waiting.tickets.elsewhere().await;
    let players = tickets.players([("duel", Queue::default())]);
    let frontend = tickets.frontend.clone();
    tokio::spawn(async move { frontend.run(Drain::new()).await });
    let connection = Connection::new(([127, 0, 0, 1], 1).into(), Drain::new());
    let stream = players.watch(user(number as u128), waiting.ids[number].as_str(), &connection).await;
    // The process lives as long as the stream.
    Box::pin(stream.unwrap().map(move |ticket| {
        let _ = (&players, &connection);
        ticket.unwrap()
    }))
}

/// Returns the first ticket of a stream for which the condition holds.
async fn next_that(
    stream: &mut (impl futures::Stream<Item = PlayerTicket> + Unpin),
    holds: impl Fn(&PlayerTicket) -> bool,
) -> PlayerTicket {
    let next = async {
        loop {
            let ticket = stream.next().await.expect("the stream goes on");
            if holds(&ticket) {
                return ticket;
            }
        }
    };
    tokio::time::timeout(PATIENCE, next).await.expect("it happens in time")
}

async fn stream_reports_each_step(setup: Setup) {
    let waiting = Waiting::new(&setup, 3).await;
    let (mut first, mut second) = (watch(&waiting, 0).await, watch(&waiting, 1).await);
    assert_eq!(first.next().await.unwrap().state, PlayerState::Waiting);
    waiting.open(2, LONG).await;
    let opened = next_that(&mut first, |ticket| ticket.state == PlayerState::ReadyCheck).await;
    assert_eq!(opened.ready_check.unwrap().players, 2);
    waiting.accept(0).await;
    let counted =
        |ticket: &PlayerTicket| ticket.ready_check.as_ref().is_some_and(|check| check.accepted == 1);
    assert!(next_that(&mut first, counted).await.ready_check.unwrap().has_accepted);
    assert!(!next_that(&mut second, counted).await.ready_check.unwrap().has_accepted);
    waiting.answer(1, ReadyAnswer::Decline).await;
    let released = next_that(&mut first, |ticket| ticket.state == PlayerState::Waiting).await;
    assert_eq!(released.reason, Some(TicketReason::NotEveryoneAccepted));
    let left = next_that(&mut second, |ticket| ticket.state == PlayerState::Gone).await;
    assert_eq!(left.reason, Some(TicketReason::Declined));
    assert!(second.next().await.is_none(), "nothing follows");
    // A stream that begins during a check shows it.
    waiting.open(1, LONG).await;
    let begun = watch(&waiting, 0).await.next().await.unwrap();
    assert_eq!(begun.state, PlayerState::ReadyCheck);
    waiting.players.leave(user(0), waiting.ids[0].as_str()).await.unwrap();
    let left = next_that(&mut first, |ticket| ticket.state == PlayerState::Gone).await;
    assert_eq!(left.reason, Some(TicketReason::Cancelled));
}

#[tokio::test(flavor = "multi_thread")]
async fn regular_check_finds_a_lost_update() {
    let redis = need!(Redis::shared().await);
    let waiting = Waiting::new(&Setup::script(redis), 2).await;
    let mut first = watch(&waiting, 0).await;
    waiting.open(2, LONG).await;
    next_that(&mut first, |ticket| ticket.state == PlayerState::ReadyCheck).await;
    // The check ends for this ticket, and no news is published.
    let pointer = waiting.tickets.key(&format!("readyOf:{}", waiting.ids[0]));
    let mut raw = waiting.tickets.raw().await;
    let id: String = raw.ask(&["GET", &pointer]).await;
    raw.ask::<()>(&["DEL", &pointer]).await;
    next_that(&mut first, |ticket| ticket.state == PlayerState::Waiting).await;
    // And begins again.
    raw.ask::<()>(&["INCR", &waiting.tickets.key("readyRevision")]).await;
    raw.ask::<()>(&["SET", &pointer, &id]).await;
    next_that(&mut first, |ticket| ticket.state == PlayerState::ReadyCheck).await;
}
