use super::*;

/// A game at a time of its own.
struct Table {
    duel: Duel,
    now: Timestamp,
    random: fastrand::Rng,
}

impl Table {
    /// Begins a game with both players present.
    fn set() -> Self {
        let now = Timestamp::from_millis(0);
        let mut duel = Duel::new(Rules::default(), now);
        Seat::BOTH.into_iter().for_each(|seat| duel.connect(seat));
        Self { duel, now, random: fastrand::Rng::with_seed(7) }
    }

    /// Begins a game whose players are ready.
    fn begun() -> Self {
        let mut table = Self::set();
        Seat::BOTH.into_iter().for_each(|seat| table.act(seat, Action::Ready));
        table
    }

    fn act(&mut self, seat: Seat, action: Action) {
        self.duel.act(seat, action, self.now);
        self.duel.advance(self.now, &mut self.random);
    }

    fn press(&mut self, seat: Seat) {
        self.act(seat, Action::Press { round: self.duel.round() });
    }

    fn pass(&mut self, duration: Duration) {
        self.now = self.now.after(duration);
        self.duel.advance(self.now, &mut self.random);
    }

    /// Waits for the next change that needs no player.
    fn wait(&mut self) -> Phase {
        self.now = self.duel.next_change();
        assert!(self.duel.advance(self.now, &mut self.random), "{:?}", self.duel);
        self.duel.phase()
    }

    fn wait_for_green(&mut self) {
        while !matches!(self.duel.phase(), Phase::Green { .. }) {
            self.wait();
        }
    }

    fn points(&self) -> [u8; 2] {
        Seat::BOTH.map(|seat| self.duel.player(seat).points)
    }
}

#[test]
fn faster_player_wins_three_rounds_and_the_game() {
    let mut table = Table::begun();
    for points in 1..=3 {
        table.wait_for_green();
        table.pass(Duration::from_millis(230));
        table.press(Seat::Second);
        let after = Duration::from_millis(230);
        assert_eq!(table.duel.phase(), Phase::Scored(Round::Faster { seat: Seat::Second, after }));
        // The other player was slower.
        table.press(Seat::First);
        assert_eq!(table.points(), [0, points]);
    }
    assert_eq!(table.wait(), Phase::Over { winner: Some(Seat::Second), ending: Ending::Points });
}

#[test]
fn press_before_green_gives_the_point_away() {
    let mut table = Table::begun();
    table.press(Seat::First);
    assert_eq!(table.duel.phase(), Phase::Scored(Round::TooEarly { seat: Seat::First }));
    assert_eq!(table.points(), [0, 1]);
}

#[test]
fn press_of_an_earlier_round_has_no_effect() {
    let mut table = Table::begun();
    table.wait_for_green();
    table.press(Seat::First);
    table.wait();
    assert_eq!((table.duel.phase(), table.duel.round()), (Phase::Steady, 2));
    table.act(Seat::Second, Action::Press { round: 1 });
    assert_eq!((table.duel.phase(), table.points()), (Phase::Steady, [1, 0]));
}

#[test]
fn game_begins_when_both_are_here_and_ready() {
    let mut table = Table::set();
    table.act(Seat::First, Action::Ready);
    table.duel.disconnect(Seat::First, table.now);
    table.act(Seat::Second, Action::Ready);
    assert_eq!(table.duel.phase(), Phase::Gathering, "one player is away");
    table.duel.connect(Seat::First);
    table.pass(Duration::ZERO);
    assert_eq!(table.duel.phase(), Phase::Steady);
}

#[test]
fn game_without_a_second_player_ends_without_a_result() {
    let mut table = Table::set();
    table.act(Seat::First, Action::Ready);
    let over = table.wait();
    assert_eq!(over, Phase::Over { winner: None, ending: Ending::NobodyCame });
    assert!(!Ending::NobodyCame.is_result());
}

#[test]
fn reload_is_no_forfeit_and_a_longer_absence_is() {
    let mut table = Table::begun();
    let away = Rules::default().away;
    table.duel.disconnect(Seat::First, table.now);
    table.pass(away - Duration::from_millis(1));
    table.duel.connect(Seat::First);
    table.pass(away);
    assert!(!table.duel.is_over());

    // A second page of the same player counts as presence.
    table.duel.connect(Seat::First);
    table.duel.disconnect(Seat::First, table.now);
    table.pass(away);
    assert!(!table.duel.is_over());

    table.duel.disconnect(Seat::First, table.now);
    table.pass(away);
    assert_eq!(table.duel.phase(), Phase::Over { winner: Some(Seat::Second), ending: Ending::Forfeit });
}

#[test]
fn game_that_both_players_leave_has_no_winner() {
    let mut table = Table::begun();
    Seat::BOTH.into_iter().for_each(|seat| table.duel.disconnect(seat, table.now));
    table.pass(Rules::default().away);
    assert_eq!(table.duel.phase(), Phase::Over { winner: None, ending: Ending::Deserted });
}

#[test]
fn game_of_idle_players_ends_in_a_draw() {
    let mut table = Table::begun();
    while !table.duel.is_over() {
        table.wait();
    }
    assert_eq!(table.duel.phase(), Phase::Over { winner: None, ending: Ending::Draw });
    assert_eq!(table.duel.round(), Rules::default().max_rounds);
}

#[test]
fn wait_for_green_is_random_within_its_bounds() {
    let waits: Vec<Duration> = (0..50)
        .map(|seed| {
            let mut table = Table::begun();
            table.random = fastrand::Rng::with_seed(seed);
            table.press(Seat::First);
            table.wait();
            table.now.distance(table.duel.ends_at())
        })
        .collect();
    let (shortest, longest) = Rules::default().steady;
    assert!(waits.iter().all(|wait| (shortest..=longest).contains(wait)), "{waits:?}");
    let spread = waits.iter().max().unwrap().saturating_sub(*waits.iter().min().unwrap());
    assert!(spread > (longest - shortest) / 2, "{waits:?}");
}
