//! The live topic of parties.

use live::{Player, Topic};

/// The party of a player changed, or the invitations to others.
#[derive(Debug)]
pub enum PartyChanged {}

impl Topic for PartyChanged {
    type Key = Player;
    type Message = ();
    const NAME: &'static str = "party";
}
