//! Parties: nobody is in two of them, and a party queues as one ticket.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use base::id::Uuid;
use bytes::Bytes;
use futures::future::join_all;
use matchmaking::model::{Moment, ReadyCheckId, TicketId};
use matchmaking::store::{AnswerOutcome, NewReadyCheck, OpenOutcome, ReadyAnswer, ReadyState, TicketReason};
use matchmaking::{
    Error, JoinedTicket, Member, MemberFields, Parties, PartyConfig, PlayerParty, PlayerState, PlayerTicket,
    Players, Queue, Refusal,
};
use testkit::{Redis, Seed, eventually, need};

use crate::setup::{PATIENCE, Setup, Tickets, to, user};

for_every_store! {
    players_join_by_code_and_by_invitation,
    user_is_in_one_party_under_concurrency,
    party_fills_up_exactly_under_concurrency,
    party_queues_as_one_ticket_that_all_members_see,
    member_who_waits_elsewhere_is_named,
    leaving_and_kicking_cancel_the_ticket,
    party_leaves_its_ready_check_as_a_whole,
    queued_party_cannot_be_joined,
    queueing_again_returns_the_ticket_and_the_match,
    absence_of_one_member_cancels_the_ticket,
    kicked_member_cannot_return_with_the_old_code,
    party_expires_without_changes,
    random_changes_keep_every_party_sound,
}

const TTL: Duration = Duration::from_secs(86_400);

fn member(number: u128) -> Member {
    Member { user: user(number), name: Some(format!("player {number}")), ..Member::default() }
}

fn rated(number: u128, mmr: f64) -> Member {
    let fields = MemberFields { numbers: [("mmr".to_owned(), mmr)].into(), ..MemberFields::default() };
    Member { fields, ..member(number) }
}

fn queue() -> Queue {
    Queue { numbers: vec!["mmr".to_owned()], max_party: 3, ..Queue::default() }
}

/// The use cases of a process.
#[derive(Clone)]
struct Process {
    players: Players,
    parties: Parties,
}

fn process_with(tickets: &Tickets, ttl: Duration, queue: &Queue) -> Process {
    let players = tickets.players([("trio", queue.clone()), ("duel", Queue::default())]);
    let config = PartyConfig { ttl, max_members: 3, invitation_ttl: Duration::from_secs(60) };
    let parties = Parties::new(players.clone(), config, tickets.clock.clone());
    Process { players, parties }
}

fn process(tickets: &Tickets) -> Process {
    process_with(tickets, TTL, &queue())
}

impl Process {
    /// Creates a party of these players; the first one leads it.
    async fn party(&self, members: impl IntoIterator<Item = Member>) -> PlayerParty {
        let mut members = members.into_iter();
        let mut party = self.parties.create(members.next().unwrap()).await.unwrap().0;
        for member in members {
            party = self.parties.join(member, &party.code).await.unwrap();
        }
        party
    }

    async fn party_of(&self, number: u128) -> Option<PlayerParty> {
        self.parties.of(user(number)).await.unwrap().party
    }

    async fn queue(&self, number: u128) -> Result<JoinedTicket, Error> {
        self.parties.queue(user(number), "trio", None).await
    }

    async fn tickets(&self, number: u128) -> Vec<PlayerTicket> {
        self.players.tickets(user(number)).await.unwrap()
    }
}

fn users(party: &PlayerParty) -> Vec<Uuid> {
    party.members.iter().map(|member| member.user).collect()
}

fn refusal<T: std::fmt::Debug>(done: Result<T, Error>) -> Refusal {
    match done {
        Err(Error::Party(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

async fn players_join_by_code_and_by_invitation(setup: Setup) {
    let tickets = setup.open().await;
    let [one, two] = [process(&tickets), process(&tickets.elsewhere().await)];
    let (party, is_new) = one.parties.create(member(0)).await.unwrap();
    assert!(is_new && party.leader == user(0));
    let (again, is_new) = two.parties.create(member(0)).await.unwrap();
    assert!(!is_new && again == party, "a repeated request finds the party");

    let code = format!(" {} ", party.code.to_lowercase());
    let joined = two.parties.join(member(1), &code).await.unwrap();
    assert_eq!(users(&joined), [user(0), user(1)]);
    assert_eq!(joined.members[1].name.as_deref(), Some("player 1"));
    assert_eq!(two.parties.join(member(1), &party.code).await.unwrap(), joined, "joining twice is fine");
    for wrong in ["", "O0O0O0", "AAAAAA", "code"] {
        assert_eq!(refusal(one.parties.join(member(2), wrong).await), Refusal::WrongCode);
    }
    assert_eq!(refusal(one.parties.create(member(1)).await), Refusal::InAnotherParty);

    assert_eq!(refusal(one.parties.accept(member(2), party.id.as_str()).await), Refusal::NotInvited);
    let invited = two.parties.invite(user(1), user(2)).await.unwrap();
    assert_eq!(invited.invited, [user(2)]);
    let invitations = one.parties.of(user(2)).await.unwrap().invitations;
    assert_eq!((&invitations[0].party, invitations[0].leader.user), (&party.id, user(0)));
    two.parties.decline(user(2), party.id.as_str()).await.unwrap();
    assert!(one.parties.of(user(2)).await.unwrap().invitations.is_empty());
    one.parties.invite(user(0), user(2)).await.unwrap();
    let full = two.parties.accept(member(2), party.id.as_str()).await.unwrap();
    assert_eq!((users(&full), full.invited), (vec![user(0), user(1), user(2)], Vec::new()));
    assert!(one.parties.of(user(2)).await.unwrap().invitations.is_empty());
    assert_eq!(refusal(one.parties.join(member(3), &party.code).await), Refusal::Full(3));

    let led = one.parties.hand_over(user(0), user(2)).await.unwrap();
    assert_eq!(led.leader, user(2));
    let fields = MemberFields { numbers: [("mmr".to_owned(), 7.0)].into(), ..MemberFields::default() };
    let changed = one.parties.set_fields(user(1), &fields).await.unwrap();
    assert_eq!(changed.members[1].fields, fields);
    let unknown = MemberFields { tags: vec!["typo".to_owned()], ..MemberFields::default() };
    let Err(Error::Invalid(text)) = one.parties.set_fields(user(1), &unknown).await else { panic!() };
    assert!(text.contains("typo"), "{text}");

    for number in [2, 0, 1] {
        one.parties.leave(user(number)).await.unwrap();
        assert_eq!(two.party_of(number).await, None);
        two.parties.leave(user(number)).await.unwrap();
    }
    assert_eq!(refusal(one.parties.join(member(3), &party.code).await), Refusal::WrongCode);
    assert_eq!(refusal(one.parties.kick(user(0), user(1)).await), Refusal::NoParty);
    if tickets.is_in_redis() {
        assert_eq!(tickets.keys().await, Vec::<String>::new(), "nothing is left of a party");
    }
}

async fn user_is_in_one_party_under_concurrency(setup: Setup) {
    let tickets = setup.open().await;
    let processes = [process(&tickets), process(&tickets.elsewhere().await)];
    for round in 0..5_u128 {
        let base = round * 10;
        let first = processes[0].party([member(base)]).await;
        let second = processes[1].party([member(base + 1)]).await;
        let joining = (0..8).map(|at: usize| {
            let (process, code) = (processes[at % 2].clone(), [&first, &second][at / 2 % 2].code.clone());
            tokio::spawn(async move { process.parties.join(member(base + 2), &code).await })
        });
        let joined: Vec<_> = join_all(joining).await.into_iter().map(Result::unwrap).collect();
        let mine = processes[0].party_of(base + 2).await.unwrap();
        for done in joined {
            match done {
                Ok(party) => assert_eq!(party.id, mine.id),
                done => assert_eq!(refusal(done), Refusal::InAnotherParty),
            }
        }
        let sizes =
            [base, base + 1].map(async |leader| processes[1].party_of(leader).await.unwrap().members.len());
        let sizes = join_all(sizes).await;
        assert_eq!(sizes.iter().sum::<usize>(), 3, "{sizes:?}");
    }
}

async fn party_fills_up_exactly_under_concurrency(setup: Setup) {
    let tickets = setup.open().await;
    let processes = [process(&tickets), process(&tickets.elsewhere().await)];
    let party = processes[0].party([member(0)]).await;
    let joining = (1..20_u128).map(|number| {
        let (process, code) = (processes[usize::from(number % 2 == 0)].clone(), party.code.clone());
        tokio::spawn(async move { process.parties.join(member(number), &code).await })
    });
    let joined = join_all(joining).await.into_iter().map(Result::unwrap);
    let (joined, refused): (Vec<_>, Vec<_>) = joined.partition(Result::is_ok);
    assert_eq!((joined.len(), refused.len()), (2, 17));
    for refused in refused {
        assert_eq!(refusal(refused), Refusal::Full(3));
    }
}

async fn party_queues_as_one_ticket_that_all_members_see(setup: Setup) {
    let tickets = setup.open().await;
    let [one, two] = [process(&tickets), process(&tickets.elsewhere().await)];
    one.party([rated(0, 100.0), rated(1, 300.0), member(2)]).await;
    assert_eq!(refusal(two.queue(1).await), Refusal::NotLeader);
    assert_eq!(refusal(two.queue(9).await), Refusal::NoParty);
    let too_large = refusal(one.parties.queue(user(0), "duel", None).await);
    assert_eq!(too_large, Refusal::TooLarge { queue: "duel".to_owned(), max: 1, members: 3 });
    let JoinedTicket { ticket, is_new } = one.queue(0).await.unwrap();
    assert!(is_new);
    assert_eq!(tickets.all().await, std::slice::from_ref(&ticket.id), "one ticket for all");
    for number in 0..3 {
        assert_eq!(two.tickets(number).await, std::slice::from_ref(&ticket));
        let party = two.party_of(number).await.unwrap();
        assert_eq!(party.ticket.unwrap().id, ticket.id.as_str());
        // Nobody queues without the party meanwhile.
        let Err(Error::OtherQueue { .. }) = two.players.join(user(number), to("duel")).await else {
            panic!()
        };
        assert_eq!(two.players.join(user(number), to("trio")).await.unwrap().ticket.id, ticket.id);
    }
    assert!(matches!(two.players.ticket(user(3), ticket.id.as_str()).await, Err(Error::NotFound(_))));
    // Match functions see every player; pools see the average.
    let stored = tickets.read(std::slice::from_ref(&ticket.id)).await.unwrap().remove(0);
    assert_eq!(stored.members, [user(0), user(1), user(2)]);
    assert_eq!(stored.fields.doubles["mmr"], 200.0);
    assert!(stored.extensions.contains_key(matchmaking::engine::PLAYERS_EXTENSION));

    tickets.play("match", &[&ticket]).await;
    for number in 0..3 {
        let [mine] = &two.tickets(number).await[..] else { panic!() };
        assert_eq!(mine.state, PlayerState::Assigned);
        assert_eq!(mine.assignment.as_ref().unwrap().connection, "match");
        assert_eq!(two.party_of(number).await.unwrap().ticket, None, "the party waits no longer");
    }
    let Err(Error::AlreadyAssigned(_)) = one.parties.cancel(user(1)).await else { panic!() };
    // Who has a match keeps it after leaving.
    one.parties.leave(user(2)).await.unwrap();
    assert_eq!(two.tickets(2).await[0].state, PlayerState::Assigned);
}

async fn member_who_waits_elsewhere_is_named(setup: Setup) {
    let tickets = setup.open().await;
    let [one, two] = [process(&tickets), process(&tickets.elsewhere().await)];
    one.party([member(0), member(1)]).await;
    for queue in ["duel", "trio"] {
        let alone = two.players.join(user(1), to(queue)).await.unwrap().ticket;
        let expected = Refusal::MemberWaitsElsewhere {
            user: user(1),
            queue: queue.to_owned(),
            ticket: alone.id.clone(),
        };
        assert_eq!(refusal(one.queue(0).await), expected);
        assert_eq!(one.party_of(0).await.unwrap().ticket, None);
        two.players.leave(user(1), alone.id.as_str()).await.unwrap();
    }
    one.queue(0).await.unwrap();
    assert_eq!(tickets.all().await.len(), 1);
}

async fn leaving_and_kicking_cancel_the_ticket(setup: Setup) {
    let tickets = setup.open().await;
    let [one, two] = [process(&tickets), process(&tickets.elsewhere().await)];
    one.party([member(0), member(1), member(2)]).await;
    for round in 0..4 {
        let ticket = one.queue(0).await.unwrap().ticket;
        match round {
            0 => two.parties.leave(user(2)).await.unwrap(),
            1 => drop(two.parties.kick(user(0), user(1)).await.unwrap()),
            2 => two.parties.cancel(user(0)).await.unwrap(),
            // Any member may cancel like the player of a ticket.
            _ => two.players.leave(user(0), ticket.id.as_str()).await.unwrap(),
        }
        assert_eq!(tickets.all().await, Vec::<TicketId>::new());
        for number in 0..3 {
            assert_eq!(one.tickets(number).await, []);
        }
        assert_eq!(one.party_of(0).await.unwrap().ticket, None);
    }
    one.parties.cancel(user(0)).await.unwrap();
    one.queue(0).await.unwrap();
    one.parties.leave(user(0)).await.unwrap();
    assert_eq!(tickets.all().await, Vec::<TicketId>::new(), "the last one takes the ticket along");
}

/// Opens a ready check of these tickets with their players.
pub(crate) async fn ask(tickets: &Tickets, asked: &[(&TicketId, &[u128])]) {
    let claim = tickets.fetch(&"engine".into(), 100).await.unwrap().claim;
    let players = |(id, numbers): &(&TicketId, &[u128])| {
        ((*id).clone(), numbers.iter().map(|number| user(*number)).collect::<Vec<Uuid>>())
    };
    let check = NewReadyCheck {
        id: ReadyCheckId::generate(Moment::from(tickets.clock.now())),
        claim,
        tickets: asked.iter().map(players).collect(),
        time: Duration::from_secs(50),
        encoded_match: Bytes::from_static(b"the match"),
    };
    assert_eq!(tickets.open_ready_checks(&[check]).await.unwrap(), [OpenOutcome::Opened]);
}

async fn party_leaves_its_ready_check_as_a_whole(setup: Setup) {
    let tickets = setup.open().await;
    let [one, two] = [process(&tickets), process(&tickets.elsewhere().await)];
    let party = one.party([member(0), member(1)]).await;
    let alone = one.players.join(user(2), to("duel")).await.unwrap().ticket.id;
    for round in 0..4 {
        let pair = one.queue(0).await.unwrap().ticket.id;
        ask(&tickets, &[(&pair, &[0, 1]), (&alone, &[2])]).await;
        let accepted = two.players.accept(user(0), pair.as_str()).await.unwrap();
        assert_eq!((accepted.state, accepted.ready_check.unwrap().players), (PlayerState::ReadyCheck, 3));
        let seen = two.tickets(1).await.remove(0).ready_check.unwrap();
        assert_eq!((seen.accepted, seen.has_accepted), (1, false), "each member answers");
        assert_eq!(two.queue(0).await.unwrap().ticket.state, PlayerState::ReadyCheck, "a repeated request");
        assert_eq!(one.party_of(1).await.unwrap().ticket.unwrap().id, pair.as_str());
        match round {
            0 => two.players.decline(user(1), pair.as_str()).await.unwrap(),
            1 => two.parties.cancel(user(1)).await.unwrap(),
            2 => two.parties.leave(user(1)).await.unwrap(),
            _ => drop(two.parties.kick(user(0), user(1)).await.unwrap()),
        }
        assert!(one.tickets(0).await.is_empty() && one.tickets(1).await.is_empty());
        let late = tickets.answer_ready_check(&alone, user(2), ReadyAnswer::Accept).await.unwrap();
        assert_eq!(late, AnswerOutcome::NoCheck);
        let kept = one.tickets(2).await.remove(0);
        assert_eq!(
            (kept.state, kept.reason),
            (PlayerState::Waiting, Some(TicketReason::NotEveryoneAccepted))
        );
        let free = tickets.take(100).await;
        assert_eq!(free, std::slice::from_ref(&alone), "the other player keeps the place");
        tickets.release(&free).await.unwrap();
        assert_eq!(tickets.due_ready_checks(100).await.unwrap().open, 0);
        let states = tickets.ready_states(std::slice::from_ref(&pair)).await.unwrap().states;
        let declined = vec![(pair, ReadyState::Left(TicketReason::Declined))];
        assert_eq!(states, if round == 0 { declined } else { Vec::new() });
        if round == 2 {
            one.parties.join(member(1), &party.code).await.unwrap();
        }
    }
    assert_eq!(users(&one.party_of(0).await.unwrap()), [user(0)]);
    assert_eq!(one.party_of(0).await.unwrap().id, party.id);
}

async fn queued_party_cannot_be_joined(setup: Setup) {
    let tickets = setup.open().await;
    let process = process(&tickets);
    let party = process.party([member(0)]).await;
    process.parties.invite(user(0), user(1)).await.unwrap();
    process.queue(0).await.unwrap();
    assert_eq!(refusal(process.parties.join(member(1), &party.code).await), Refusal::Queued);
    assert_eq!(refusal(process.parties.accept(member(1), party.id.as_str()).await), Refusal::Queued);
    process.parties.invite(user(0), user(2)).await.unwrap();
    assert_eq!(tickets.all().await.len(), 1, "an invitation keeps the ticket");
    process.parties.cancel(user(0)).await.unwrap();
    process.parties.accept(member(1), party.id.as_str()).await.unwrap();
}

async fn queueing_again_returns_the_ticket_and_the_match(setup: Setup) {
    let tickets = setup.open().await;
    let [one, two] = [process(&tickets), process(&tickets.elsewhere().await)];
    one.party([member(0), member(1)]).await;
    let queueing = (0..20).map(|at| {
        let process = [&one, &two][at % 2].clone();
        tokio::spawn(async move { process.queue(0).await.unwrap() })
    });
    let queued: Vec<_> = join_all(queueing).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(queued.iter().filter(|joined| joined.is_new).count(), 1);
    let first = queued[0].ticket.clone();
    assert!(queued.iter().all(|joined| joined.ticket.id == first.id));
    tickets.play("one", &[&first]).await;
    let again = two.queue(0).await.unwrap();
    assert_eq!((again.is_new, again.ticket.state), (false, PlayerState::Assigned));
    let replaces = Some(first.id.clone());
    let second = two.parties.queue(user(0), "trio", replaces.clone()).await.unwrap();
    assert!(second.is_new);
    let third = one.parties.queue(user(0), "trio", replaces).await.unwrap();
    assert_eq!((third.is_new, third.ticket.id), (false, second.ticket.id.clone()));
    assert_eq!(one.tickets(1).await.len(), 1, "the old match does not come back");
    assert_eq!(tickets.all().await, [second.ticket.id]);
}

async fn absence_of_one_member_cancels_the_ticket(setup: Setup) {
    const GONE: Duration = Duration::from_millis(900);
    let tickets = setup.open().await;
    let queue = Queue { cancel_when_gone: Some(GONE), ..queue() };
    let process = process_with(&tickets, TTL, &queue);
    process.party([member(0), member(1)]).await;
    let here = process.players.mark_present(user(0));
    let also_here = process.players.mark_present(user(1));
    process.queue(0).await.unwrap();
    // While both are here, reports postpone the end.
    let start = tickets.clock.now();
    eventually("time passed", PATIENCE, async || {
        tickets.pass(Duration::from_millis(10));
        assert_eq!(process.players.tick().await.unwrap(), 0);
        tickets.clock.now().distance(start) > GONE * 2
    })
    .await;
    drop(also_here);
    eventually("the ticket is cancelled", PATIENCE, async || {
        tickets.pass(Duration::from_millis(10));
        process.players.tick().await.unwrap() == 1
    })
    .await;
    drop(here);
    assert_eq!(tickets.all().await, Vec::<TicketId>::new());
    assert_eq!(process.tickets(0).await, []);
    assert_eq!(process.party_of(0).await.unwrap().members.len(), 2, "the party stays");
}

async fn kicked_member_cannot_return_with_the_old_code(setup: Setup) {
    let tickets = setup.open().await;
    let process = process(&tickets);
    let party = process.party([member(0), member(1)]).await;
    assert_eq!(refusal(process.parties.kick(user(1), user(0)).await), Refusal::NotLeader);
    let left = process.parties.kick(user(0), user(1)).await.unwrap();
    assert_ne!(left.code, party.code);
    assert_eq!(refusal(process.parties.join(member(1), &party.code).await), Refusal::WrongCode);
    process.parties.join(member(1), &left.code).await.unwrap();
}

async fn party_expires_without_changes(setup: Setup) {
    let tickets = setup.open().await;
    let ttl = Duration::from_secs(2);
    let process = process_with(&tickets, ttl, &queue());
    let party = process.party([member(0), member(1)]).await;
    process.parties.invite(user(0), user(2)).await.unwrap();
    eventually("the party is gone", PATIENCE, async || {
        tickets.pass(Duration::from_millis(50));
        process.party_of(0).await.is_none()
    })
    .await;
    assert_eq!(process.parties.of(user(2)).await.unwrap().invitations, []);
    assert_eq!(refusal(process.parties.join(member(3), &party.code).await), Refusal::WrongCode);
    process.party([member(1), member(0)]).await;
}

#[tokio::test]
async fn changes_with_a_lost_reply_are_applied_once() {
    let redis = need!(Redis::private().await);
    let tickets = Setup::script(&redis).open().await;
    let process = process(&tickets);
    let mut raw = tickets.raw().await;
    let mut cut = async || raw.ask::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    for number in (0..20).step_by(2) {
        cut().await;
        let (party, _) = process.parties.create(member(number)).await.unwrap();
        cut().await;
        let joined = process.parties.join(member(number + 1), &party.code).await.unwrap();
        assert_eq!(users(&joined), [user(number), user(number + 1)]);
        cut().await;
        let ticket = process.queue(number).await.unwrap().ticket;
        assert_eq!(process.queue(number).await.unwrap().ticket, ticket);
        cut().await;
        process.parties.leave(user(number)).await.unwrap();
        assert_eq!(process.tickets(number + 1).await, []);
    }
}

/// Players of two processes do whatever they like at the same time. Afterwards every pointer, party and ticket agree.
async fn random_changes_keep_every_party_sound(setup: Setup) {
    const PLAYERS: u128 = 6;
    let tickets = setup.open().await;
    let processes = Arc::new([process(&tickets), process(&tickets.elsewhere().await)]);
    let steps = if tickets.setup.is_slow() { 8 } else { 40 };
    let seed = Seed::new();
    let playing = (0..PLAYERS).map(|number| {
        let (processes, mut choices) = (processes.clone(), seed.choices(u64::try_from(number).unwrap()));
        tokio::spawn(async move {
            for step in 0..steps {
                let Process { parties, players } = &processes[step % 2];
                let other = choices.u128(..PLAYERS);
                let (me, them) = (user(number), user(other));
                let theirs = parties.of(them).await.unwrap().party;
                let done = match choices.u8(..10) {
                    0 => parties.create(member(number)).await.map(drop),
                    1..=3 => match theirs {
                        Some(party) => parties.join(member(number), &party.code).await.map(drop),
                        None => Ok(()),
                    },
                    4 => parties.leave(me).await,
                    5 => parties.kick(me, them).await.map(drop),
                    6 => parties.hand_over(me, them).await.map(drop),
                    7 => parties.queue(me, "trio", None).await.map(drop),
                    8 => parties.cancel(me).await,
                    _ => players.join(me, to("duel")).await.map(drop),
                };
                match done {
                    Ok(()) | Err(Error::Party(_) | Error::OtherQueue { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
        })
    });
    for done in join_all(playing).await {
        done.unwrap();
    }

    let mut parties: HashMap<String, PlayerParty> = HashMap::new();
    let mut of_player: BTreeMap<u128, String> = BTreeMap::new();
    for number in 0..PLAYERS {
        if let Some(party) = processes[0].party_of(number).await {
            of_player.insert(number, party.id.to_string());
            parties.insert(party.id.to_string(), party);
        }
    }
    for (id, party) in &parties {
        assert!(party.members.len() <= 3 && users(party).contains(&party.leader));
        let expected: Vec<Uuid> =
            of_player.iter().filter(|(_, own)| *own == id).map(|(number, _)| user(*number)).collect();
        let mut listed = users(party);
        listed.sort_unstable();
        assert_eq!(listed, expected);
    }
    // Every waiting ticket belongs to one player alone, or to all members of a party and nobody else.
    let waiting = tickets.all().await;
    let mut seen = HashSet::new();
    for stored in tickets.read(&waiting).await.unwrap() {
        for player in stored.users() {
            assert!(seen.insert(player), "{player} waits twice");
        }
        if !stored.members.is_empty() {
            let party = parties
                .values()
                .find(|party| party.ticket.as_ref().is_some_and(|ticket| ticket.id == stored.id.as_str()));
            assert_eq!(users(party.unwrap()), stored.members);
        }
    }
}
