//! What a service's answer says of each match.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde_json::Value;

use crate::engine::plugins::{Allocated, NotAllocated};
use crate::model::{Assignment, Match, MatchId};

/// How much of an unreadable item is logged.
const SHOWN: usize = 200;

#[derive(Deserialize)]
struct Reply {
    /// Read one by one: an item that cannot be read costs only its own match.
    assignments: Vec<Value>,
}

/// What an item names.
enum Item<'a> {
    Server(MatchId, &'a str),
    /// The match is named, its connection cannot be used.
    Unusable(MatchId),
    /// Names a match that was not asked for.
    Stray,
    /// Nobody can tell which match it is for.
    Anonymous,
}

/// Judges a success item by item. Fails when it is no answer at all: then anything may have been allocated.
pub(super) fn judge(asked: &[Match], text: &[u8]) -> Result<Allocated, NotAllocated> {
    let reply: Reply = serde_json::from_slice(text).map_err(|error| NotAllocated::in_doubt(&error))?;
    // The matches that are named, each with its connection if it can be used.
    let mut named: HashMap<MatchId, Option<&str>> = HashMap::with_capacity(asked.len());
    let known: HashSet<MatchId> = asked.iter().map(|made| made.id).collect();
    let (mut unreadable, mut anonymous) = (0, 0);
    for value in &reply.assignments {
        let is_sound = match item(value, |id| known.contains(id)) {
            Item::Server(id, connection) => match named.entry(id) {
                Entry::Vacant(place) => place.insert(Some(connection)).is_some(),
                Entry::Occupied(mut place) => {
                    // The same server twice is one server. Two servers are none: the service takes both back.
                    let is_repeat = *place.get() == Some(connection);
                    if !is_repeat {
                        place.insert(None);
                    }
                    is_repeat
                }
            },
            Item::Unusable(id) => {
                named.insert(id, None);
                false
            }
            Item::Stray => false,
            Item::Anonymous => {
                anonymous += 1;
                false
            }
        };
        if !is_sound {
            unreadable += 1;
            let shown: String = value.to_string().chars().take(SHOWN).collect();
            tracing::warn!(item = shown, "an assignment cannot be used");
        }
    }
    let mut allocated = Allocated { unreadable, ..Allocated::default() };
    for made in asked {
        match named.get(&made.id) {
            Some(Some(connection)) => allocated.servers.push((made.id, Assignment::to(*connection))),
            Some(None) => allocated.lost.push(made.id),
            // An item that names nobody may have been for this match.
            None if anonymous > 0 => allocated.lost.push(made.id),
            None => {}
        }
    }
    Ok(allocated)
}

fn item(value: &Value, is_asked: impl Fn(&MatchId) -> bool) -> Item<'_> {
    let id = value.get("match_id").and_then(Value::as_str).and_then(|id| id.parse::<MatchId>().ok());
    let Some(id) = id else { return Item::Anonymous };
    if !is_asked(&id) {
        return Item::Stray;
    }
    match value.get("connection").and_then(Value::as_str) {
        // Nowhere is no place to play at.
        None | Some("") => Item::Unusable(id),
        Some(connection) => Item::Server(id, connection),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::Proposal;

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
