//! Tickets and matches, as the matchmaking rules see them.

mod backfill;
mod id;
mod party;
mod pool;
mod ready;

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use base::Timestamp;
use base::id::Uuid;
use bytes::Bytes;

pub use backfill::BackfillId;
pub use party::PartyId;
pub use pool::{Bounds, Filter, Pool};
pub use ready::ReadyCheckId;

/// The id of a ticket. Ids created here have 20 characters; other programs may use other forms.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(Arc<str>);

impl TicketId {
    pub const MAX_LENGTH: usize = 100;
    /// The digits of generated ids.
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    /// Redis keys that share a namespace with tickets in every program that uses this layout. No ticket may have such
    /// an id.
    const RESERVED: [&str; 13] = [
        "allTickets",
        "proposed_ticket_ids",
        "fetchTicketsLock",
        "ticketQueue",
        "matchEvents",
        "idleEngines",
        "presence",
        "assignerFailures",
        "claimNumber",
        "backfillAcks",
        "ticketChanges",
        "readyChecks",
        "readyRevision",
    ];

    /// Generates an id for a ticket created at this moment.
    pub fn generate(created: Moment) -> Self {
        Self(generate_id(created).into())
    }

    /// Returns the second at which a ticket with a [generated](Self::generate) id was created. Other programs choose other ids.
    pub(crate) fn created(&self) -> Option<Moment> {
        let digit = |byte: u8| Self::ALPHABET.iter().position(|known| *known == byte);
        let digits: Vec<usize> = self.0.bytes().map(digit).collect::<Option<_>>()?;
        // 96 bits are 19 digits and one bit.
        let is_generated = digits.len() == 20 && digits[19] & 15 == 0;
        let first_35_bits = digits.iter().take(7).fold(0, |bits, digit| bits << 5 | *digit as i64);
        is_generated.then(|| Moment::from_nanos((first_35_bits >> 3) * 1_000_000_000))
    }

    /// Parses an id from outside. Returns `None` if it could not be a ticket's key.
    pub fn parse(text: &str) -> Option<Self> {
        let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let fits = (1..=Self::MAX_LENGTH).contains(&text.len()) && text.chars().all(sound);
        (fits && !Self::RESERVED.contains(&text)).then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Generates an id in the form that Open Match servers use. Four bytes hold the second, so that ids sort by age. Eight
/// bytes are random, so that nobody can guess an id.
fn generate_id(created: Moment) -> String {
    let seconds = created.nanos() / 1_000_000_000;
    let random: [u8; 16] = *uuid::Uuid::new_v4().as_bytes();
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&u32::try_from(seconds).unwrap_or(u32::MAX).to_be_bytes());
    // The middle bytes of a version 4 UUID hold its version, so use the others.
    bytes[4..8].copy_from_slice(&random[..4]);
    bytes[8..].copy_from_slice(&random[12..]);
    let digit = |at: usize| {
        let bit = at * 5;
        let pair = u16::from_be_bytes([bytes[bit / 8], bytes.get(bit / 8 + 1).copied().unwrap_or(0)]);
        char::from(TicketId::ALPHABET[usize::from(pair >> (11 - bit % 8)) & 31])
    };
    (0..20).map(digit).collect()
}

impl Borrow<str> for TicketId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TicketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TicketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TicketId({})", self.0)
    }
}

/// A point in time with the precision of tickets: nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(i64);

impl Moment {
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    pub const fn from_micros(micros: i64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    pub const fn nanos(self) -> i64 {
        self.0
    }

    pub const fn micros(self) -> i64 {
        self.0 / 1_000
    }

    /// Returns how much time has passed since this moment.
    pub fn age(self, now: Self) -> Duration {
        Duration::from_nanos(now.0.saturating_sub(self.0).try_into().unwrap_or(0))
    }

    pub fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by.as_nanos().try_into().unwrap_or(i64::MAX)))
    }
}

impl From<Timestamp> for Moment {
    fn from(time: Timestamp) -> Self {
        Self(time.as_millis().saturating_mul(1_000_000))
    }
}

/// One player, or one group of players, who want a match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ticket {
    pub id: TicketId,
    pub created: Moment,
    /// The player who owns the ticket. `None` for tickets of Open Match clients that name no player.
    pub user: Option<Uuid>,
    /// All players of a party's ticket; `user` is one of them. Empty for other tickets.
    pub members: Vec<Uuid>,
    /// When the ticket's data expires. `None` if the ticket has no TTL.
    pub expires: Option<Moment>,
    pub fields: SearchFields,
    /// Data for match functions and assigners.
    pub extensions: BTreeMap<String, Any>,
}

impl Default for TicketId {
    fn default() -> Self {
        Self(Arc::from(""))
    }
}

impl Ticket {
    /// Returns the players of this ticket, as far as they are known.
    pub fn users(&self) -> impl Iterator<Item = Uuid> + '_ {
        let of_party = self.members.iter().copied();
        of_party.chain(self.user.filter(|user| !self.members.contains(user)))
    }
}

/// The fields that pools filter by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SearchFields {
    pub doubles: BTreeMap<String, f64>,
    pub strings: BTreeMap<String, String>,
    pub tags: Vec<String>,
}

/// A message whose type only its reader knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Any {
    pub type_url: String,
    pub value: Bytes,
}

/// Where the players of a match connect to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assignment {
    pub connection: String,
    /// Data for all players of the match.
    pub extensions: BTreeMap<String, Any>,
    /// Data for the player of one ticket; no other player receives it. It replaces extensions of the same name.
    pub of_ticket: BTreeMap<TicketId, BTreeMap<String, Any>>,
    /// Data for one player. The other members of their party do not receive it. It replaces both of the above.
    pub of_player: BTreeMap<Uuid, BTreeMap<String, Any>>,
}

impl Assignment {
    pub fn new(connection: impl Into<String>) -> Self {
        Self { connection: connection.into(), ..Self::default() }
    }
}

base::typed_id!(
    /// The id of a match, and of the event that announces it.
    MatchId
);

/// Tickets that a match function wants to play together. If two proposals contain the same ticket, the higher score
/// wins.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    pub tickets: Vec<Arc<Ticket>>,
    pub score: f64,
    /// The teams, if the match function makes teams.
    pub lineup: Option<Arc<Lineup>>,
}

/// The teams of a match, and the rules that made it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lineup {
    pub rule_set: Arc<str>,
    /// The pool that its tickets are from.
    pub pool: Arc<str>,
    /// The version label of the rule set.
    pub version: Option<Arc<str>>,
    /// The name of the definition that the rule set comes from, and its version: 0 for the one of the configuration.
    pub definition: Option<(Arc<str>, i64)>,
    pub teams: Vec<Team>,
    /// The roles of a ticket's players, if the teams have roles.
    pub roles: HashMap<TicketId, Vec<Arc<str>>>,
    /// The regions that suit all players, with their average latency in milliseconds, the best first.
    pub regions: Vec<(Arc<str>, f64)>,
}

/// One team of a match.
#[derive(Clone, Debug, PartialEq)]
pub struct Team {
    pub name: Arc<str>,
    pub tickets: Vec<TicketId>,
    /// How many more players it has room for.
    pub open: usize,
}

impl Lineup {
    /// Returns how many more players the match has room for.
    pub fn open(&self) -> usize {
        self.teams.iter().map(|team| team.open).sum()
    }
}

impl Proposal {
    pub fn new(tickets: Vec<Arc<Ticket>>) -> Self {
        Self { tickets, score: 0.0, lineup: None }
    }
}

/// A proposal with an id, its profile and its match function.
#[derive(Clone, Debug, PartialEq)]
pub struct Match {
    pub id: MatchId,
    pub profile: Arc<str>,
    /// The version of the profile's definition: 0 for the one of the configuration.
    pub profile_version: i64,
    pub function: Arc<str>,
    pub proposal: Proposal,
    /// The backfill that is created with the match, if the profile asks for one and the match has room.
    pub backfill: Option<BackfillId>,
}

impl Deref for Match {
    type Target = Proposal;

    fn deref(&self) -> &Proposal {
        &self.proposal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_twenty_characters_sort_by_second_and_are_unique() {
        let at = |seconds: i64| TicketId::generate(Moment::from_nanos(seconds * 1_000_000_000));
        let ids: std::collections::HashSet<TicketId> = (0..10_000).map(|_| at(1_800_000_000)).collect();
        assert_eq!(ids.len(), 10_000);
        for id in &ids {
            assert_eq!(id.as_str().len(), 20);
            assert!(id.as_str().bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'v').contains(&byte)));
            assert!(at(1_799_999_999) < *id && *id < at(1_800_000_001));
        }
    }

    #[test]
    fn generated_id_contains_the_second_of_its_creation() {
        for second in [0, 1, 1_800_000_000, i64::from(u32::MAX)] {
            let created = Moment::from_nanos(second * 1_000_000_000);
            assert_eq!(TicketId::generate(created).created(), Some(created));
        }
        for other in ["cq1abc", "dbt8pcfejq8o287bsa01", "DBT8PCFEJQ8O287BSA0G", "dbt8pcfejq8o287bsa0g0"] {
            assert_eq!(TicketId::parse(other).and_then(|id| id.created()), None, "{other}");
        }
    }

    #[test]
    fn parsed_ids_are_safe_in_keys_and_logs() {
        assert!(TicketId::parse("cq1abc").is_some());
        for bad in [
            "",
            "a b",
            "a\nb",
            "ä",
            "assign:a",
            "wake:a",
            "allTickets",
            "ticketQueue",
            "presence",
            "assignerFailures",
            "backfillAcks",
            "ticketChanges",
            "readyChecks",
            "readyRevision",
            "player:a",
            &"x".repeat(101),
        ] {
            assert!(TicketId::parse(bad).is_none(), "{bad:?}");
        }
    }
}
