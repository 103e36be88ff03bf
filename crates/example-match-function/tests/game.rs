//! Tests of the example.

use std::time::Duration;

use base::{Clock, Timestamp};
use example_match_function::{Game, SkillTeams};
use matchmaking::engine::{MatchFunction, Pools};
use matchmaking::model::{Moment, Ticket, TicketId};

fn game(servers: u16) -> (Game, Clock) {
    let clock = Clock::manual(Timestamp::from_millis(1_800_000_000_000));
    (Game::new(&clock, servers), clock)
}

#[tokio::test]
async fn similar_players_match_at_once_and_others_after_waiting() {
    let (game, clock) = game(10);
    let near =
        [game.join(1500.0, &[Game::DUEL]).await.unwrap(), game.join(1600.0, &[Game::DUEL]).await.unwrap()];
    let far =
        [game.join(2000.0, &[Game::DUEL]).await.unwrap(), game.join(2200.0, &[Game::DUEL]).await.unwrap()];
    assert_eq!(game.tick().await.unwrap().assigned, 2);
    assert!(game.server(&near[0]).await.unwrap().is_some());
    assert_eq!(game.server(&near[0]).await.unwrap(), game.server(&near[1]).await.unwrap());
    clock.advance(Duration::from_secs(1));
    assert_eq!(game.tick().await.unwrap().assigned, 0);
    clock.advance(Duration::from_millis(1_100));
    assert_eq!(game.tick().await.unwrap().assigned, 2);
    assert!(game.server(&far[0]).await.unwrap().is_some());
    assert_eq!(game.server(&far[0]).await.unwrap(), game.server(&far[1]).await.unwrap());
    assert_ne!(game.server(&far[0]).await.unwrap(), game.server(&near[0]).await.unwrap());
}

#[tokio::test]
async fn longest_waiting_player_wins_a_contested_ticket() {
    let (game, _) = game(10);
    let first = game.join(1500.0, &[Game::TWO_VS_TWO]).await.unwrap();
    let mut others = Vec::new();
    for kinds in [&[Game::TWO_VS_TWO] as &[&str], &[Game::TWO_VS_TWO], &[Game::TWO_VS_TWO, Game::DUEL]] {
        others.push(game.join(1580.0, kinds).await.unwrap());
    }
    // A closer match, but its other player joined last.
    let last = game.join(1580.0, &[Game::DUEL]).await.unwrap();
    assert_eq!(game.tick().await.unwrap().assigned, 4);
    assert!(game.server(&first).await.unwrap().is_some());
    assert_eq!(game.server(&others[2]).await.unwrap(), game.server(&first).await.unwrap());
    assert_eq!(game.server(&last).await.unwrap(), None);
}

#[tokio::test]
async fn players_wait_while_no_server_is_free() {
    let (game, _) = game(1);
    for _ in 0..4 {
        game.join(1500.0, &[Game::DUEL]).await.unwrap();
    }
    let tick = game.tick().await.unwrap();
    assert_eq!((tick.assigned, tick.released, tick.failures), (2, 2, 0));
}

#[tokio::test]
async fn teams_are_balanced_and_tickets_without_skill_are_left_out() {
    let ticket = |skill: f64| {
        let mut ticket = Ticket { id: TicketId::generate(Moment::default()), ..Ticket::default() };
        ticket.fields.doubles.insert(SkillTeams::FIELD.to_owned(), skill);
        ticket.into()
    };
    let function = SkillTeams { teams: 2, players_per_team: 2, window: 1000.0, window_per_second: 0.0 };
    let skills = [1.0, f64::NAN, 4.0, 2.0, f64::INFINITY, 3.0];
    let pools = Pools {
        profile: "test".into(),
        now: Moment::default(),
        pools: vec![(Default::default(), skills.map(ticket).to_vec())],
    };
    let proposals = function.make_matches(&pools).await.unwrap();
    assert_eq!(proposals.len(), 1);
    let line_up = proposals[0].tickets.iter().map(|ticket| ticket.fields.doubles[SkillTeams::FIELD]);
    assert_eq!(line_up.collect::<Vec<_>>(), [4.0, 1.0, 3.0, 2.0]);
}
