//! Reads the response of an assigner's service, match by match.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use base::id::Uuid;
use serde::Deserialize;
use serde_json::Value;

use crate::engine::plugins::{AllocationError, AllocationResponse};
use crate::model::{Any, Assignment, Match, MatchId};
use crate::wire;

/// How many bytes of extensions a player may get. They are stored with the ticket and sent to its player.
const MAX_EXTENSIONS: usize = 16 << 10;

/// How many characters of an unreadable match id are logged.
const LOGGED_CHARS: usize = 50;

#[derive(Deserialize)]
struct Response {
    /// Decoded one by one: an unreadable item affects only its own match.
    assignments: Vec<Value>,
}

/// One item of the response.
enum ResponseItem {
    Server(MatchId, Assignment),
    /// Names a requested match, but its connection or its extensions are unusable.
    Unusable(MatchId, &'static str),
    /// Names a match that was not requested.
    UnknownMatch,
    /// Does not say which match it is for.
    NoMatchId,
}

/// Reads a successful response item by item. Fails if the body is unreadable as a whole: then any match may have a
/// server.
pub(super) fn read_response(requested: &[Match], text: &[u8]) -> Result<AllocationResponse, AllocationError> {
    let response: Response =
        serde_json::from_slice(text).map_err(|error| AllocationError::in_doubt(&error))?;
    // The matches in the response, each with its assignment if that is usable.
    let mut named: HashMap<MatchId, Option<Assignment>> = HashMap::with_capacity(requested.len());
    let known: HashMap<MatchId, &Match> = requested.iter().map(|match_| (match_.id, match_)).collect();
    let (mut unreadable_items, mut without_match_id) = (0, 0);
    for value in &response.assignments {
        let problem = match item(value, &known) {
            ResponseItem::Server(id, assignment) => match named.entry(id) {
                Entry::Vacant(place) => {
                    place.insert(Some(assignment));
                    None
                }
                // The same server twice is one server. Two different servers are both unusable, and the service takes
                // them back.
                Entry::Occupied(place) if place.get().as_ref() == Some(&assignment) => None,
                Entry::Occupied(mut place) => {
                    place.insert(None);
                    Some("another item for the same match differs")
                }
            },
            ResponseItem::Unusable(id, why) => {
                named.insert(id, None);
                Some(why)
            }
            ResponseItem::UnknownMatch => Some("it names a match that was not requested"),
            ResponseItem::NoMatchId => {
                without_match_id += 1;
                Some("its match_id is unreadable")
            }
        };
        if let Some(why) = problem {
            unreadable_items += 1;
            // The rest of the item may contain secrets of players.
            let match_id = value.get("match_id").and_then(Value::as_str).unwrap_or_default();
            let match_id: String = match_id.chars().take(LOGGED_CHARS).collect();
            tracing::warn!(match_id, why, "Ignored an unusable item in an assigner's response");
        }
    }
    let mut allocated = AllocationResponse { unreadable_items, ..AllocationResponse::default() };
    for match_ in requested {
        match named.remove(&match_.id) {
            Some(Some(assignment)) => allocated.servers.push((match_.id, assignment)),
            Some(None) => allocated.unusable.push(match_.id),
            // An item without a match id may have been for this match.
            None if without_match_id > 0 => allocated.unusable.push(match_.id),
            None => {}
        }
    }
    Ok(allocated)
}

fn item(value: &Value, requested: &HashMap<MatchId, &Match>) -> ResponseItem {
    let id = value.get("match_id").and_then(Value::as_str).and_then(|id| id.parse::<MatchId>().ok());
    let Some(id) = id else { return ResponseItem::NoMatchId };
    let Some(match_) = requested.get(&id) else { return ResponseItem::UnknownMatch };
    match assignment(value, match_) {
        Ok(assignment) => ResponseItem::Server(id, assignment),
        Err(why) => ResponseItem::Unusable(id, why),
    }
}

fn assignment(value: &Value, match_: &Match) -> Result<Assignment, &'static str> {
    let connection = match value.get("connection").and_then(Value::as_str) {
        // Players cannot connect to an empty address.
        None | Some("") => return Err("it has no connection"),
        Some(connection) => connection,
    };
    let mut assignment = Assignment { extensions: extensions(value)?, ..Assignment::new(connection) };
    for ticket in list(value, "tickets").ok_or("its tickets are not a list")? {
        let id = ticket.get("id").and_then(Value::as_str);
        let known = match_.tickets.iter().find(|known| Some(known.id.as_str()) == id);
        let known = known.ok_or("it names a ticket of another match")?;
        let own = extensions(ticket)?;
        let of_all = size(&own) + size(&assignment.extensions);
        if of_all > MAX_EXTENSIONS {
            return Err("its extensions are larger than 16 KiB for one player");
        }
        for player in list(ticket, "players").ok_or("the players of a ticket are not a list")? {
            let id = player.get("user_id").and_then(Value::as_str).and_then(|id| Uuid::parse_str(id).ok());
            let user = id.filter(|id| known.users().any(|user| user == *id));
            let user = user.ok_or("it names a player of another ticket")?;
            let own = extensions(player)?;
            if size(&own) + of_all > MAX_EXTENSIONS {
                return Err("its extensions are larger than 16 KiB for one player");
            }
            if assignment.of_player.insert(user, own).is_some() {
                return Err("it names a player twice");
            }
        }
        if assignment.of_ticket.insert(known.id.clone(), own).is_some() {
            return Err("it names a ticket twice");
        }
    }
    if size(&assignment.extensions) > MAX_EXTENSIONS {
        return Err("its extensions are larger than 16 KiB");
    }
    Ok(assignment)
}

/// Returns the items of a list. A missing one is empty.
fn list<'a>(value: &'a Value, name: &str) -> Option<&'a [Value]> {
    match value.get(name) {
        None | Some(Value::Null) => Some(&[]),
        Some(items) => items.as_array().map(Vec::as_slice),
    }
}

fn extensions(value: &Value) -> Result<BTreeMap<String, Any>, &'static str> {
    let given = match value.get("extensions") {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(given) => given.as_object().ok_or("its extensions are not an object")?,
    };
    let read = |(name, value): (&String, &Value)| Some((name.clone(), wire::any_from_json(value)?));
    given.iter().map(read).collect::<Option<_>>().ok_or("an extension has an unknown type")
}

fn size(extensions: &BTreeMap<String, Any>) -> usize {
    extensions.iter().map(|(name, any)| name.len() + any.type_url.len() + any.value.len()).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::model::{Proposal, Ticket, TicketId};

    fn requested() -> [Match; 3] {
        std::array::from_fn(|_| Match {
            id: MatchId::generate(),
            profile: "p".into(),
            profile_version: 0,
            function: "f".into(),
            proposal: Proposal::new(Vec::new()),
            backfill: None,
        })
    }

    fn read_items(requested: &[Match], items: &[Value]) -> (Vec<MatchId>, Vec<MatchId>, u64) {
        let text = json!({ "assignments": items }).to_string();
        let AllocationResponse { servers, unusable, unreadable_items } =
            read_response(requested, text.as_bytes()).unwrap();
        (servers.into_iter().map(|(id, _)| id).collect(), unusable, unreadable_items)
    }

    fn server(match_: &Match, connection: &str) -> Value {
        json!({ "match_id": match_.id.to_string(), "connection": connection })
    }

    #[test]
    fn match_missing_from_a_valid_response_has_no_server() {
        let requested = requested();
        let [a, b, _] = &requested;
        assert_eq!(
            read_items(&requested, &[server(b, "b:1"), server(a, "a:1")]),
            (vec![a.id, b.id], vec![], 0)
        );
        assert_eq!(read_items(&requested, &[]), (vec![], vec![], 0));
    }

    #[test]
    fn unusable_connection_affects_only_its_match() {
        let requested = requested();
        let [a, b, _] = &requested;
        for bad in [json!(""), json!(7), json!(null), json!(["x"])] {
            let item = json!({ "match_id": a.id.to_string(), "connection": bad });
            assert_eq!(read_items(&requested, &[item, server(b, "b:1")]), (vec![b.id], vec![a.id], 1));
        }
    }

    #[test]
    fn item_without_match_id_makes_all_missing_matches_unusable() {
        let requested = requested();
        let [a, b, c] = &requested;
        for bad in [json!(null), json!("x"), json!({}), json!({ "match_id": "x", "connection": "a:1" })] {
            assert_eq!(read_items(&requested, &[server(b, "b:1"), bad]), (vec![b.id], vec![a.id, c.id], 1));
        }
    }

    #[test]
    fn two_servers_for_one_match_are_given_back_and_a_repeated_one_is_used() {
        let requested = requested();
        let [a, b, _] = &requested;
        let same = [server(a, "a:1"), server(b, "b:1"), server(a, "a:1")];
        assert_eq!(read_items(&requested, &same), (vec![a.id, b.id], vec![], 0));
        let different = [server(a, "a:1"), server(b, "b:1"), server(a, "a:2"), server(a, "a:1")];
        let (servers, unusable, unreadable_items) = read_items(&requested, &different);
        assert_eq!((servers, unusable), (vec![b.id], vec![a.id]));
        assert!(unreadable_items > 0);
    }

    #[test]
    fn unknown_match_is_ignored() {
        let requested = requested();
        let [a, ..] = &requested;
        let [other, ..] = self::requested();
        assert_eq!(
            read_items(&requested, &[server(&other, "x:1"), server(a, "a:1")]),
            (vec![a.id], vec![], 1)
        );
    }

    /// Returns the extensions that the players of two tickets get from an item with these parts.
    fn given(parts: &Value) -> Option<[BTreeMap<String, Value>; 2]> {
        wire::register_types();
        let tickets =
            ["t1", "t2"].map(|id| Arc::new(Ticket { id: TicketId::parse(id).unwrap(), ..Ticket::default() }));
        let [mut match_, ..] = requested();
        match_.proposal = Proposal::new(tickets.to_vec());
        let mut item = server(&match_, "a:1");
        item.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
        let text = json!({ "assignments": [item] }).to_string();
        let (_, assignment) = read_response(&[match_], text.as_bytes()).unwrap().servers.pop()?;
        let read = |ticket: &Ticket| {
            let wire = wire::assignment_of_ticket(&assignment, ticket);
            wire.extensions
                .into_iter()
                .map(|(name, any)| (name, serde_json::to_value(any).unwrap()))
                .collect()
        };
        Some(tickets.each_ref().map(|ticket| read(ticket)))
    }

    #[test]
    fn player_gets_the_extensions_of_the_match_and_of_the_ticket() {
        let text = |value: &str| json!({ "@type": "type.googleapis.com/google.protobuf.StringValue", "value": value });
        let parts = json!({
            "extensions": { "map": "dust", "seat": "any" },
            "tickets": [{ "id": "t1", "extensions": { "seat": "1", "admit": { "token": "x", "team": 2 } } }],
        });
        let [first, second] = given(&parts).unwrap();
        assert_eq!(
            (&first["map"], &first["seat"]),
            (&text("dust"), &text("1")),
            "the ticket's extension replaces the match's"
        );
        let value = json!({ "@type": "type.googleapis.com/google.protobuf.Value", "value": { "token": "x", "team": 2.0 } });
        assert_eq!(first["admit"], value);
        assert_eq!(
            second,
            BTreeMap::from([("map".to_owned(), text("dust")), ("seat".to_owned(), text("any"))])
        );
        let typed = json!({ "extensions": { "until": { "@type": "type.googleapis.com/google.protobuf.Duration", "value": "3s" } } });
        assert_eq!(given(&typed).unwrap()[0]["until"], typed["extensions"]["until"]);
        assert_eq!(
            given(&json!({ "extensions": null, "tickets": null })).unwrap(),
            [const { BTreeMap::new() }; 2]
        );
    }

    #[test]
    fn member_of_a_party_gets_extensions_that_the_other_members_do_not_see() {
        wire::register_types();
        let (ada, grace) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let id = TicketId::parse("party").unwrap();
        let party = Arc::new(Ticket { id, members: vec![ada, grace], user: Some(ada), ..Ticket::default() });
        let [mut match_, ..] = requested();
        match_.proposal = Proposal::new(vec![Arc::clone(&party)]);
        let mut item = server(&match_, "a:1");
        item["extensions"] = json!({ "map": "dust", "token": "of the match" });
        let player = |user: Uuid, token: &str| json!({ "user_id": user, "extensions": { "token": token } });
        item["tickets"] =
            json!([{ "id": "party", "players": [player(ada, "for ada"), player(grace, "for grace")] }]);
        let text = |item: &Value| json!({ "assignments": [item] }).to_string();
        let requested = [match_];
        let (_, assignment) =
            read_response(&requested, text(&item).as_bytes()).unwrap().servers.pop().unwrap();
        let stored = wire::assignment_of_ticket(&assignment, &party);
        let seen = |user: Uuid| {
            let extensions = stored.extensions.clone().into_iter().collect();
            let seen = wire::extensions_of_player(extensions, user);
            seen.into_iter().map(|(name, any)| (name, any["value"].clone())).collect::<BTreeMap<_, _>>()
        };
        let expected = |token: &str| {
            BTreeMap::from([("map".to_owned(), json!("dust")), ("token".to_owned(), json!(token))])
        };
        assert_eq!(seen(ada), expected("for ada"));
        assert_eq!(seen(grace), expected("for grace"));
        assert_eq!(seen(Uuid::from_u128(3)), expected("of the match"));

        for bad in [
            json!(7),
            json!([7]),
            json!([{ "user_id": Uuid::from_u128(3) }]),
            json!([player(ada, ""), player(ada, "")]),
            json!([player(ada, &"y".repeat(MAX_EXTENSIONS))]),
        ] {
            item["tickets"][0]["players"] = bad;
            let read = read_response(&requested, text(&item).as_bytes()).unwrap();
            assert_eq!((read.servers.len(), read.unusable.len()), (0, 1), "{item}");
        }
    }

    #[test]
    fn unusable_extensions_affect_only_their_match() {
        for bad in [
            json!({ "extensions": 7 }),
            json!({ "extensions": { "x": { "@type": 7 } } }),
            json!({ "extensions": { "x": { "@type": "type.googleapis.com/google.protobuf.Duration", "value": "long" } } }),
            json!({ "extensions": { "x": "y".repeat(MAX_EXTENSIONS) } }),
            json!({ "tickets": 7 }),
            json!({ "tickets": [7] }),
            json!({ "tickets": [{ "id": "t3" }] }),
            json!({ "tickets": [{ "id": "t1" }, { "id": "t1" }] }),
            json!({ "tickets": [{ "id": "t1", "extensions": [] }] }),
            json!({ "extensions": { "x": "y".repeat(9_000) }, "tickets": [{ "id": "t1", "extensions": { "y": "y".repeat(9_000) } }] }),
        ] {
            assert!(given(&bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn unreadable_response_leaves_all_matches_in_doubt() {
        for text in ["", "no", "[]", "{}", "{\"assignments\": 7}"] {
            assert!(read_response(&requested(), text.as_bytes()).unwrap_err().in_doubt, "{text}");
        }
    }

    #[test]
    fn reading_a_response_never_panics() {
        let requested = requested();
        let samples = [
            json!({ "assignments": [server(&requested[0], "h:1"), { "match_id": "x" }] }).to_string(),
            r#"{"assignments":[null,{"connection":7},[]],"more":{}}"#.to_owned(),
        ];
        testkit::fuzz("assigner-answers", &samples, |input| read_response(&requested, input).is_ok());
    }
}
