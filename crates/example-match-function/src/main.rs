//! Matches some players and prints the result.

#![expect(clippy::print_stdout, reason = "the output of the example")]

use std::time::Duration;

use base::{Clock, Timestamp};
use example_match_function::Game;
use matchmaking::Error;
use matchmaking::model::TicketId;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let clock = Clock::manual(Timestamp::from_millis(1_800_000_000_000));
    let game = Game::new(&clock, 10);
    let mut players: Vec<(&str, TicketId)> = Vec::new();
    for (name, skill, kinds) in [
        ("Ada", 1500.0, &[Game::DUEL] as &[&str]),
        ("Ben", 1900.0, &[Game::DUEL]),
        ("Cleo", 1520.0, &[Game::DUEL, Game::TWO_VS_TWO]),
        ("Dan", 1510.0, &[Game::TWO_VS_TWO]),
        ("Eve", 1580.0, &[Game::TWO_VS_TWO]),
        ("Finn", 1600.0, &[Game::TWO_VS_TWO]),
        ("Gus", 1650.0, &[Game::DUEL]),
    ] {
        players.push((name, game.join(skill, kinds).await?));
    }
    for second in 0..=10 {
        let tick = game.tick().await?;
        if tick.assigned > 0 {
            println!("after {second:2} s: {} players found a match, {} wait", tick.assigned, tick.released);
        }
        clock.advance(Duration::from_secs(1));
    }
    for (name, ticket) in players {
        match game.server(&ticket).await? {
            Some(server) => println!("{name:5} plays at {server}"),
            None => println!("{name:5} waits"),
        }
    }
    Ok(())
}
