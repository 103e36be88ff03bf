//! What a service's answer says of each match.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::Value;

use crate::engine::plugins::{Allocated, NotAllocated};
use crate::model::{Any, Assignment, Match, MatchId};
use crate::wire;

/// How many bytes of extensions a player can be given. They are kept with the ticket and sent to its player.
const MAX_EXTENSIONS: usize = 16 << 10;

/// How much of a match's id that cannot be read is logged.
const SHOWN: usize = 50;

#[derive(Deserialize)]
struct Reply {
    /// Read one by one: an item that cannot be read costs only its own match.
    assignments: Vec<Value>,
}

/// What an item names.
enum Item {
    Server(MatchId, Assignment),
    /// The match is named, its connection or its extensions cannot be used.
    Unusable(MatchId, &'static str),
    /// Names a match that was not asked for.
    Stray,
    /// Nobody can tell which match it is for.
    Anonymous,
}

/// Judges a success item by item. Fails when it is no answer at all: then anything may have been allocated.
pub(super) fn judge(asked: &[Match], text: &[u8]) -> Result<Allocated, NotAllocated> {
    let reply: Reply = serde_json::from_slice(text).map_err(|error| NotAllocated::in_doubt(&error))?;
    // The matches that are named, each with its assignment if it can be used.
    let mut named: HashMap<MatchId, Option<Assignment>> = HashMap::with_capacity(asked.len());
    let known: HashMap<MatchId, &Match> = asked.iter().map(|made| (made.id, made)).collect();
    let (mut unreadable, mut anonymous) = (0, 0);
    for value in &reply.assignments {
        let fault = match item(value, &known) {
            Item::Server(id, assignment) => match named.entry(id) {
                Entry::Vacant(place) => {
                    place.insert(Some(assignment));
                    None
                }
                // The same server twice is one server. Two servers are none: the service takes both back.
                Entry::Occupied(place) if place.get().as_ref() == Some(&assignment) => None,
                Entry::Occupied(mut place) => {
                    place.insert(None);
                    Some("another item for the same match says something else")
                }
            },
            Item::Unusable(id, why) => {
                named.insert(id, None);
                Some(why)
            }
            Item::Stray => Some("it names a match that was not asked for"),
            Item::Anonymous => {
                anonymous += 1;
                Some("its match_id cannot be read")
            }
        };
        if let Some(why) = fault {
            unreadable += 1;
            // The rest of the item may hold secrets of players.
            let match_id = value.get("match_id").and_then(Value::as_str).unwrap_or_default();
            let match_id: String = match_id.chars().take(SHOWN).collect();
            tracing::warn!(match_id, why, "an assignment cannot be used");
        }
    }
    let mut allocated = Allocated { unreadable, ..Allocated::default() };
    for made in asked {
        match named.remove(&made.id) {
            Some(Some(assignment)) => allocated.servers.push((made.id, assignment)),
            Some(None) => allocated.lost.push(made.id),
            // An item that names nobody may have been for this match.
            None if anonymous > 0 => allocated.lost.push(made.id),
            None => {}
        }
    }
    Ok(allocated)
}

fn item(value: &Value, asked: &HashMap<MatchId, &Match>) -> Item {
    let id = value.get("match_id").and_then(Value::as_str).and_then(|id| id.parse::<MatchId>().ok());
    let Some(id) = id else { return Item::Anonymous };
    let Some(made) = asked.get(&id) else { return Item::Stray };
    match assignment(value, made) {
        Ok(assignment) => Item::Server(id, assignment),
        Err(why) => Item::Unusable(id, why),
    }
}

fn assignment(value: &Value, made: &Match) -> Result<Assignment, &'static str> {
    let connection = match value.get("connection").and_then(Value::as_str) {
        // Nowhere is no place to play at.
        None | Some("") => return Err("it has no connection"),
        Some(connection) => connection,
    };
    let mut assignment = Assignment { extensions: extensions(value)?, ..Assignment::to(connection) };
    let tickets = match value.get("tickets") {
        None | Some(Value::Null) => &[],
        Some(tickets) => tickets.as_array().ok_or("its tickets are no list")?.as_slice(),
    };
    for ticket in tickets {
        let id = ticket.get("id").and_then(Value::as_str);
        let known = made.tickets.iter().find(|known| Some(known.id.as_str()) == id);
        let known = known.ok_or("it has a ticket that is not of its match")?;
        let own = extensions(ticket)?;
        if size(&own) + size(&assignment.extensions) > MAX_EXTENSIONS {
            return Err("its extensions are larger than 16 KiB for one player");
        }
        if assignment.of_ticket.insert(known.id.clone(), own).is_some() {
            return Err("it has a ticket twice");
        }
    }
    if size(&assignment.extensions) > MAX_EXTENSIONS {
        return Err("its extensions are larger than 16 KiB");
    }
    Ok(assignment)
}

fn extensions(value: &Value) -> Result<BTreeMap<String, Any>, &'static str> {
    let given = match value.get("extensions") {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(given) => given.as_object().ok_or("its extensions are no object")?,
    };
    let read = |(name, value): (&String, &Value)| Some((name.clone(), wire::any_from_json(value)?));
    given.iter().map(read).collect::<Option<_>>().ok_or("an extension has a type that cannot be read")
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

    fn asked() -> [Match; 3] {
        std::array::from_fn(|_| Match {
            id: MatchId::generate(),
            profile: "p".into(),
            function: "f".into(),
            proposal: Proposal::new(Vec::new()),
        })
    }

    fn judged(asked: &[Match], items: &[Value]) -> (Vec<MatchId>, Vec<MatchId>, u64) {
        let text = json!({ "assignments": items }).to_string();
        let Allocated { servers, lost, unreadable } = judge(asked, text.as_bytes()).unwrap();
        (servers.into_iter().map(|(id, _)| id).collect(), lost, unreadable)
    }

    fn server(made: &Match, connection: &str) -> Value {
        json!({ "match_id": made.id.to_string(), "connection": connection })
    }

    #[test]
    fn a_match_that_is_left_out_of_a_sound_answer_has_no_server() {
        let asked = asked();
        let [a, b, _] = &asked;
        assert_eq!(judged(&asked, &[server(b, "b:1"), server(a, "a:1")]), (vec![a.id, b.id], vec![], 0));
        assert_eq!(judged(&asked, &[]), (vec![], vec![], 0));
    }

    #[test]
    fn a_connection_that_cannot_be_used_costs_its_match() {
        let asked = asked();
        let [a, b, _] = &asked;
        for bad in [json!(""), json!(7), json!(null), json!(["x"])] {
            let item = json!({ "match_id": a.id.to_string(), "connection": bad });
            assert_eq!(judged(&asked, &[item, server(b, "b:1")]), (vec![b.id], vec![a.id], 1));
        }
    }

    #[test]
    fn an_item_without_a_match_puts_all_unnamed_matches_in_doubt() {
        let asked = asked();
        let [a, b, c] = &asked;
        for bad in [json!(null), json!("x"), json!({}), json!({ "match_id": "x", "connection": "a:1" })] {
            assert_eq!(judged(&asked, &[server(b, "b:1"), bad]), (vec![b.id], vec![a.id, c.id], 1));
        }
    }

    #[test]
    fn two_servers_for_one_match_are_given_back_and_one_named_twice_is_used() {
        let asked = asked();
        let [a, b, _] = &asked;
        let same = [server(a, "a:1"), server(b, "b:1"), server(a, "a:1")];
        assert_eq!(judged(&asked, &same), (vec![a.id, b.id], vec![], 0));
        let different = [server(a, "a:1"), server(b, "b:1"), server(a, "a:2"), server(a, "a:1")];
        let (servers, lost, unreadable) = judged(&asked, &different);
        assert_eq!((servers, lost), (vec![b.id], vec![a.id]));
        assert!(unreadable > 0);
    }

    #[test]
    fn a_match_that_was_not_asked_for_is_ignored() {
        let asked = asked();
        let [a, ..] = &asked;
        let [other, ..] = self::asked();
        assert_eq!(judged(&asked, &[server(&other, "x:1"), server(a, "a:1")]), (vec![a.id], vec![], 1));
    }

    /// What the players of two tickets are given by an item with these parts.
    fn given(parts: &Value) -> Option<[BTreeMap<String, Value>; 2]> {
        wire::register_types();
        let tickets =
            ["t1", "t2"].map(|id| Arc::new(Ticket { id: TicketId::parse(id).unwrap(), ..Ticket::default() }));
        let [mut made, ..] = asked();
        made.proposal = Proposal::new(tickets.to_vec());
        let mut item = server(&made, "a:1");
        item.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
        let text = json!({ "assignments": [item] }).to_string();
        let (_, assignment) = judge(&[made], text.as_bytes()).unwrap().servers.pop()?;
        let read = |id: &TicketId| {
            let wire = wire::assignment_of_ticket(&assignment, id);
            wire.extensions
                .into_iter()
                .map(|(name, any)| (name, serde_json::to_value(any).unwrap()))
                .collect()
        };
        Some(tickets.map(|ticket| read(&ticket.id)))
    }

    #[test]
    fn a_player_is_given_the_extensions_of_the_match_and_their_own() {
        let text = |value: &str| json!({ "@type": "type.googleapis.com/google.protobuf.StringValue", "value": value });
        let parts = json!({
            "extensions": { "map": "dust", "seat": "any" },
            "tickets": [{ "id": "t1", "extensions": { "seat": "1", "admit": { "token": "x", "team": 2 } } }],
        });
        let [first, second] = given(&parts).unwrap();
        assert_eq!(
            (&first["map"], &first["seat"]),
            (&text("dust"), &text("1")),
            "a player's own replaces the match's"
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
    fn extensions_that_cannot_be_used_cost_their_match() {
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
    fn what_is_no_answer_leaves_everything_in_doubt() {
        for text in ["", "no", "[]", "{}", "{\"assignments\": 7}"] {
            assert!(judge(&asked(), text.as_bytes()).unwrap_err().in_doubt, "{text}");
        }
    }

    #[test]
    fn no_answer_breaks_its_judgement() {
        let asked = asked();
        let samples = [
            json!({ "assignments": [server(&asked[0], "h:1"), { "match_id": "x" }] }).to_string(),
            r#"{"assignments":[null,{"connection":7},[]],"more":{}}"#.to_owned(),
        ];
        testkit::fuzz("assigner-answers", &samples, |input| judge(&asked, input).is_ok());
    }
}
