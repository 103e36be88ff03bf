//! The live topic of this service.

use live::{Player, Topic};

/// A player has a new ticket.
#[derive(Debug)]
pub enum TicketCreated {}

impl Topic for TicketCreated {
    type Key = Player;
    type Message = ();
    const NAME: &'static str = "tickets";
}
