use super::*;

const MATCH: Uuid = Uuid::from_u128(1);

fn rooms(clock: &Clock) -> Rooms {
    Rooms::new(clock.clone(), Rules::default(), 2, fastrand::Rng::with_seed(7))
}

fn players() -> [(String, Option<Uuid>); 2] {
    [("ticket-a", 10), ("ticket-b", 11)]
        .map(|(ticket, user)| (ticket.to_owned(), Some(Uuid::from_u128(user))))
}

fn clock() -> Clock {
    Clock::manual(Timestamp::from_millis(0))
}

/// Plays a game to its end, which the first player wins.
fn win(rooms: &Rooms, clock: &Clock) -> Tick {
    for seat in Seat::BOTH {
        rooms.act(MATCH, seat, Action::Ready).unwrap();
    }
    for round in 1..=3 {
        // Presses of the wrong moment would give points away, so wait for green.
        let green = loop {
            let phase = rooms.state().rooms[&MATCH].duel.phase();
            if matches!(phase, Phase::Green { .. }) {
                break phase;
            }
            let next = rooms.tick().next.unwrap();
            clock.advance(next.distance(clock.now()));
            rooms.tick();
        };
        assert!(matches!(green, Phase::Green { .. }));
        rooms.act(MATCH, Seat::First, Action::Press { round }).unwrap();
    }
    clock.advance(Rules::default().pause);
    rooms.tick()
}

#[test]
fn match_has_one_room_however_often_it_is_requested() {
    let rooms = rooms(&clock());
    let first = rooms.allocate(MATCH, players()).unwrap();
    let again = rooms.allocate(MATCH, players()).unwrap();
    assert_eq!(first.map(|member| member.token), again.map(|member| member.token));
    assert_eq!(rooms.count(), 1);
}

#[test]
fn only_players_of_the_match_get_in() {
    let rooms = rooms(&clock());
    let [ada, grace] = rooms.allocate(MATCH, players()).unwrap();
    let other = Uuid::from_u128(2);
    let [stranger, _] = rooms.allocate(other, players()).unwrap();
    let seat = |token: &str| rooms.authenticate(MATCH, token).map(|(seat, _)| seat);
    assert_eq!((seat(&ada.token), seat(&grace.token)), (Ok(Seat::First), Ok(Seat::Second)));
    for token in ["", "token", &stranger.token] {
        assert_eq!(seat(token), Err(RoomError::NotAPlayer));
    }
    let unknown = rooms.authenticate(Uuid::from_u128(3), &ada.token).map(drop);
    assert_eq!(unknown, Err(RoomError::NoSuchMatch));
}

#[test]
fn full_server_leaves_a_match_out() {
    let rooms = rooms(&clock());
    assert!(rooms.allocate(MATCH, players()).is_some());
    assert!(rooms.allocate(Uuid::from_u128(2), players()).is_some());
    assert!(rooms.allocate(Uuid::from_u128(3), players()).is_none());
}

#[test]
fn abandoned_match_frees_its_room_and_gets_no_other_for_a_while() {
    let clock = clock();
    let rooms = rooms(&clock);
    rooms.allocate(MATCH, players()).unwrap();
    let connection = rooms.connect(MATCH, Seat::First).unwrap();
    rooms.abandon(MATCH);
    assert_eq!((rooms.count(), connection.view()), (0, None));
    assert!(rooms.allocate(MATCH, players()).is_none(), "a late retry of the request");
    clock.advance(REMEMBER_ABANDONED);
    rooms.tick();
    assert!(rooms.state().abandoned.is_empty());
}

#[test]
fn room_that_nobody_reaches_is_freed() {
    let clock = clock();
    let rooms = rooms(&clock);
    rooms.allocate(MATCH, players()).unwrap();
    let Rules { gather, keep, .. } = Rules::default();
    clock.advance(gather);
    let tick = rooms.tick();
    assert_eq!((rooms.count(), tick.results), (1, vec![]), "players who come late see why");
    clock.advance(keep);
    rooms.tick();
    assert_eq!(rooms.count(), 0);
}

#[test]
fn result_is_shown_only_after_it_was_recorded() {
    let clock = clock();
    let rooms = rooms(&clock);
    rooms.allocate(MATCH, players()).unwrap();
    let streams = Seat::BOTH.map(|seat| rooms.connect(MATCH, seat).unwrap());
    let [result] = win(&rooms, &clock).results.try_into().unwrap();
    assert_eq!((result.winner, result.players[0].points), (Some(Seat::First), 3));
    let shown = || serde_json::to_value(streams[0].view().unwrap()).unwrap();
    assert_eq!(shown()["phase"], "deciding");
    clock.advance(Rules::default().keep);
    assert_eq!(
        rooms.tick().results,
        [result],
        "it is offered until it is recorded, also on a disk that stays full"
    );
    rooms.announce(MATCH);
    assert_eq!((&shown()["phase"], &shown()["result"]["winner"]), (&"over".into(), &"first".into()));
    assert_eq!((rooms.tick().results, rooms.count()), (vec![], 0));
}

#[test]
fn one_player_has_a_few_streams_at_most() {
    let rooms = rooms(&clock());
    rooms.allocate(MATCH, players()).unwrap();
    let mut streams: Vec<Connection> =
        (0..MAX_STREAMS).map(|_| rooms.connect(MATCH, Seat::First).unwrap()).collect();
    assert_eq!(rooms.connect(MATCH, Seat::First).map(drop), Err(RoomError::TooManyStreams));
    streams.pop();
    assert!(rooms.connect(MATCH, Seat::First).is_ok());
}
