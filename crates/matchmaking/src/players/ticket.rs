//! A ticket as its player sees it, and how a player's request becomes a ticket.

use std::collections::BTreeMap;

use base::Timestamp;
use base::id::Uuid;
use buffa::{Message, MessageField};
use proto::openmatch;
use serde_json::{Map, Value, json};

use super::{MEMBERS_FIELD, QUEUE_FIELD, Queue, USER_FIELD, WaitEstimate, list};
use crate::engine::PLAYERS_EXTENSION;
use crate::error::Error;
use crate::model::{SearchFields, TicketId};
use crate::parties::{Member, MemberFields};
use crate::store::{ReadyState, StoredTicket, TicketReason};
use crate::wire;

/// The state of a ticket, as its player sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlayerState {
    Waiting,
    /// A match was found, and its players are asked whether they are ready.
    ReadyCheck,
    Assigned,
    /// Cancelled or expired. Only watchers see this state; for other calls the ticket does not exist.
    Gone,
}

impl PlayerState {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Waiting => "WAITING",
            Self::ReadyCheck => "READY_CHECK",
            Self::Assigned => "ASSIGNED",
            Self::Gone => "GONE",
        }
    }
}

/// The server that a player connects to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlayerAssignment {
    pub connection: String,
    /// Further data from the assigner, in Open Match's JSON form.
    pub extensions: Map<String, Value>,
}

/// The ready check of a ticket, as its player sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlayerReadyCheck {
    /// When players who have not answered lose their place.
    pub expires_at: Timestamp,
    /// How many players have accepted.
    pub accepted: u32,
    /// How many players are asked.
    pub players: u32,
    /// Whether this player has accepted.
    pub has_accepted: bool,
}

/// A ticket as its player sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlayerTicket {
    pub id: TicketId,
    pub queue: String,
    pub state: PlayerState,
    pub created_at: Timestamp,
    /// When a waiting ticket expires.
    pub expires_at: Option<Timestamp>,
    pub assignment: Option<PlayerAssignment>,
    /// How much longer it waits, if that can be said.
    pub estimate: Option<WaitEstimate>,
    /// The ready check of the ticket while it is in one.
    pub ready_check: Option<PlayerReadyCheck>,
    /// Why the ticket is gone, or waits again after a ready check.
    pub reason: Option<TicketReason>,
}

impl PlayerTicket {
    /// Reads the ticket of this player. Returns `None` if it does not exist or belongs to another player.
    pub(crate) fn decode(user: Uuid, id: &TicketId, found: &StoredTicket) -> Option<Self> {
        let data = openmatch::Ticket::decode_from_slice(found.data.as_ref()?).ok()?;
        if data.id != id.as_str() || !wire::is_ticket_of(&data, user) {
            return None;
        }
        let queue = data.search_fields.as_option().and_then(|fields| fields.string_args.get(QUEUE_FIELD));
        let created_at = data.create_time.as_option().map(wire::moment_from_timestamp).unwrap_or_default();
        let created_at = Timestamp::from_millis(created_at.micros() / 1_000);
        let ttl = data.persistent_field.get(wire::TTL).and_then(wire::duration_from_any);
        let ticket = Self {
            id: id.clone(),
            queue: queue.cloned().unwrap_or_default(),
            state: PlayerState::Waiting,
            created_at,
            expires_at: ttl.map(|ttl| created_at.after(ttl)),
            assignment: None,
            estimate: None,
            ready_check: None,
            reason: None,
        };
        let assignment = found.assignment.as_ref();
        let assignment = assignment.and_then(|data| openmatch::Assignment::decode_from_slice(data).ok());
        Some(match assignment {
            None => ticket,
            Some(assignment) => ticket.assigned(user, assignment),
        })
    }

    fn assigned(self, user: Uuid, assignment: openmatch::Assignment) -> Self {
        let extensions = wire::extensions_of_player(assignment.extensions.into_iter().collect(), user);
        let assignment = PlayerAssignment { connection: assignment.connection, extensions };
        let (state, assignment) = (PlayerState::Assigned, Some(assignment));
        Self { state, expires_at: None, assignment, estimate: None, ready_check: None, reason: None, ..self }
    }

    /// Applies an encoded `WatchAssignmentsResponse`. Returns `None` if it changes nothing.
    pub(super) fn assigned_by(&self, user: Uuid, response: &[u8]) -> Option<Self> {
        let mut response = openmatch::WatchAssignmentsResponse::decode_from_slice(response).ok()?;
        let ticket = self.clone().assigned(user, response.assignment.take().unwrap_or_default());
        (ticket != *self).then_some(ticket)
    }

    /// Returns the ticket after it was cancelled, or has expired: then the reason may be missing.
    pub(super) fn gone(&self, reason: Option<TicketReason>, now: Timestamp) -> Self {
        let has_expired = self.expires_at.is_some_and(|expires_at| expires_at <= now);
        let reason = reason.or(has_expired.then_some(TicketReason::Expired));
        let (state, assignment) = (PlayerState::Gone, None);
        Self {
            state,
            expires_at: None,
            assignment,
            estimate: None,
            ready_check: None,
            reason,
            ..self.clone()
        }
    }

    /// Returns the ticket with the state of its ready check. An assigned ticket stays as it is.
    pub(super) fn with_ready(self, user: Uuid, ready: &ReadyState) -> Self {
        if self.assignment.is_some() {
            return self;
        }
        match ready {
            ReadyState::Open(check) => {
                let check = PlayerReadyCheck {
                    expires_at: check.expires_at,
                    accepted: check.accepted,
                    players: check.players,
                    has_accepted: check.answers.contains(&(user, true)),
                };
                let (state, ready_check) = (PlayerState::ReadyCheck, Some(check));
                Self { state, estimate: None, ready_check, reason: None, ..self }
            }
            ReadyState::Assigned => self,
            ReadyState::Over(reason) => {
                Self { state: PlayerState::Waiting, ready_check: None, reason: *reason, ..self }
            }
            // It was cancelled after it was read.
            ReadyState::Left(reason) => {
                let (state, reason) = (PlayerState::Gone, Some(*reason));
                Self { state, expires_at: None, estimate: None, ready_check: None, reason, ..self }
            }
        }
    }
}

impl Queue {
    /// Returns the search fields of a player's ticket. Refuses fields that the queue does not accept.
    pub(super) fn fields(
        &self,
        name: &str,
        numbers: BTreeMap<String, f64>,
        mut strings: BTreeMap<String, String>,
        tags: Vec<String>,
    ) -> Result<SearchFields, Error> {
        let refusal = format!("the queue {name} does not accept");
        self.check_fields([&refusal, "it accepts"], numbers.keys(), strings.keys(), &tags)?;
        if let Some((field, _)) = numbers.iter().find(|(_, value)| !value.is_finite()) {
            return Err(Error::Invalid(format!("{field} must be a number")));
        }
        strings.insert(QUEUE_FIELD.to_owned(), name.to_owned());
        Ok(SearchFields { doubles: numbers, strings, tags })
    }

    /// Refuses fields that are not in the lists of this queue. The texts say what is refused, and what precedes
    /// the accepted fields.
    pub(crate) fn check_fields<'a>(
        &self,
        texts: [&str; 2],
        numbers: impl IntoIterator<Item = &'a String>,
        strings: impl IntoIterator<Item = &'a String>,
        tags: impl IntoIterator<Item = &'a String>,
    ) -> Result<(), Error> {
        refuse_others(texts, "number", &self.numbers, numbers)?;
        refuse_others(texts, "string", &self.strings, strings)?;
        refuse_others(texts, "tag", &self.tags, tags)
    }

    /// Builds the ticket of a party, without id and creation time. Each member has the fields that this queue accepts. Pools
    /// filter by the average of their numbers, the leader's texts, and the tags that all have.
    pub(crate) fn party_ticket(
        &self,
        name: &str,
        members: &[Member],
        leader: Uuid,
    ) -> Result<openmatch::Ticket, Error> {
        let mut numbers = BTreeMap::new();
        for field in &self.numbers {
            let values = members.iter().filter_map(|member| member.fields.numbers.get(field));
            let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
            if count > 0 {
                numbers.insert(field.clone(), sum / f64::from(count));
            }
        }
        let of_leader = members.iter().find(|member| member.user == leader);
        let strings = of_leader.into_iter().flat_map(|leader| leader.fields.strings.clone());
        let strings = strings.filter(|(field, _)| self.strings.contains(field)).collect();
        let has_all = |tag: &&String| members.iter().all(|member| member.fields.tags.contains(tag));
        let tags = self.tags.iter().filter(has_all).cloned().collect();
        let mut ticket = self.ticket(leader, self.fields(name, numbers, strings, tags)?);
        let ids: Vec<String> = members.iter().map(|member| member.user.to_string()).collect();
        ticket.persistent_field.insert(MEMBERS_FIELD.to_owned(), wire::text_to_any(&ids.join(" ")));
        let players: Vec<Value> = members.iter().map(|member| self.party_player(member)).collect();
        if let Some(players) = wire::json_to_any(&Value::Array(players)) {
            ticket.extensions.insert(PLAYERS_EXTENSION.to_owned(), players);
        }
        Ok(ticket)
    }

    /// Describes a member of a party for match functions.
    fn party_player(&self, member: &Member) -> Value {
        let MemberFields { numbers, strings, tags } = &member.fields;
        let numbers: BTreeMap<_, _> =
            numbers.iter().filter(|(field, _)| self.numbers.contains(field)).collect();
        let strings: BTreeMap<_, _> =
            strings.iter().filter(|(field, _)| self.strings.contains(field)).collect();
        let tags: Vec<_> = tags.iter().filter(|tag| self.tags.contains(tag)).collect();
        json!({ "id": member.user.to_string(), "numbers": numbers, "strings": strings, "tags": tags })
    }

    /// Builds a ticket of this player, without id and creation time.
    pub(super) fn ticket(&self, user: Uuid, fields: SearchFields) -> openmatch::Ticket {
        let mut ticket = openmatch::Ticket {
            search_fields: MessageField::some(wire::fields_to_wire(fields)),
            ..Default::default()
        };
        let owner = wire::text_to_any(&user.to_string());
        ticket.persistent_field.insert(USER_FIELD.to_owned(), owner);
        if let Some(ttl) = self.ticket_ttl {
            ticket.persistent_field.insert(wire::TTL.to_owned(), wire::duration_to_any(ttl));
        }
        ticket
    }
}

fn refuse_others<'a>(
    [refusal, accepts]: [&str; 2],
    kind: &str,
    allowed: &[String],
    given: impl IntoIterator<Item = &'a String>,
) -> Result<(), Error> {
    match given.into_iter().find(|given| !allowed.contains(given)) {
        None => Ok(()),
        Some(odd) => {
            let allowed = list(allowed);
            Err(Error::Invalid(format!("{refusal} the {kind} {odd:?}; {accepts} {allowed}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;

    #[test]
    fn ticket_of_a_party_has_the_average_the_leaders_texts_and_the_common_tags() {
        let queue = Queue {
            numbers: vec!["mmr".to_owned()],
            strings: vec!["region".to_owned()],
            tags: vec!["beta".to_owned(), "voice".to_owned()],
            ..Queue::default()
        };
        let member = |user: u128, mmr: f64, region: &str, tags: &[&str]| Member {
            user: Uuid::from_u128(user),
            name: None,
            fields: MemberFields {
                numbers: [("mmr".to_owned(), mmr), ("other".to_owned(), 1.0)].into(),
                strings: [("region".to_owned(), region.to_owned())].into(),
                tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            },
        };
        let members = [member(1, 100.0, "eu", &["beta"]), member(2, 200.0, "us", &["voice", "beta"])];
        let mut ticket = queue.party_ticket("trio", &members, Uuid::from_u128(2)).unwrap();
        ticket.id = "t1".to_owned();
        let id = TicketId::parse("t1").unwrap();
        let read = wire::decode_ticket(id.clone(), &ticket.encode_to_bytes()).unwrap();
        assert_eq!(read.fields.doubles, [("mmr".to_owned(), 150.0)].into());
        assert_eq!((&*read.fields.strings["region"], &*read.fields.strings["queue"]), ("us", "trio"));
        assert_eq!(read.fields.tags, ["beta"]);
        assert_eq!(read.users().collect::<Vec<_>>(), [Uuid::from_u128(1), Uuid::from_u128(2)]);
        let players = wire::any_to_json(&read.extensions[PLAYERS_EXTENSION]).unwrap();
        let first = json!({
            "id": Uuid::from_u128(1).to_string(), "numbers": { "mmr": 100.0 }, "strings": { "region": "eu" },
            "tags": ["beta"],
        });
        assert_eq!(players[0], first);
        let found = StoredTicket { data: Some(ticket.encode_to_bytes()), assignment: None };
        let visible = |user| PlayerTicket::decode(Uuid::from_u128(user), &id, &found).is_some();
        assert_eq!([1, 2, 3].map(visible), [true, true, false]);
    }

    #[test]
    fn player_sees_the_connection_and_all_extensions() {
        let (user, id) = (Uuid::from_u128(1), TicketId::parse("t1").unwrap());
        let fields = Queue::default().fields("duel", BTreeMap::new(), BTreeMap::new(), Vec::new()).unwrap();
        let mut ticket = Queue::default().ticket(user, fields);
        ticket.id = id.to_string();
        let mut assignment = openmatch::Assignment { connection: "here".to_owned(), ..Default::default() };
        assignment.extensions.insert("map".to_owned(), wire::text_to_any("dust"));
        let own = buffa_types::google::protobuf::Any {
            type_url: "example.com/Own".to_owned(),
            value: Bytes::from_static(b"\xff\x00"),
            ..Default::default()
        };
        assignment.extensions.insert("own".to_owned(), own);
        let found = StoredTicket {
            data: Some(ticket.encode_to_bytes()),
            assignment: Some(assignment.encode_to_bytes()),
        };
        let read = PlayerTicket::decode(user, &id, &found).unwrap();
        let assignment = read.assignment.unwrap();
        assert_eq!(assignment.connection, "here");
        let text = "type.googleapis.com/google.protobuf.StringValue";
        let expected = json!({
            "map": { "@type": text, "value": assignment.extensions["map"]["value"] },
            "own": { "@type": "example.com/Own", "value": "/wA=" },
        });
        assert_eq!(Value::Object(assignment.extensions), expected);
        assert_eq!(PlayerTicket::decode(Uuid::from_u128(2), &id, &found), None);
    }
}
