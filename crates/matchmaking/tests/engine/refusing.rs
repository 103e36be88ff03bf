//! Tickets that no match can ever have are refused when they are created.

use std::sync::Arc;
use std::time::Duration;

use base::id::Uuid;
use matchmaking::engine::{Profile, RuleFunction};
use matchmaking::model::Filter;
use matchmaking::{
    Error, JoinRequest, Member, MemberFields, Parties, PartyConfig, Players, QUEUE_FIELD, Queue,
};
use rules::RuleSet;

use crate::on_both_stores;
use crate::plugins::{duels, pool};
use crate::world::World;

on_both_stores! {
    ticket_that_every_profile_refuses_is_not_created,
    player_who_waits_gets_the_ticket_whatever_the_fields,
    party_with_a_member_who_lacks_an_attribute_is_not_queued,
}

const FAIR: &str =
    "name = \"fair\"\n[attributes.skill]\ntype = \"number\"\n[teams.side]\ncount = 2\nmax = 2\n";

fn profile(world: &World, queue: &str, rules: &str) -> Profile {
    let rules = Arc::new(RuleSet::parse(rules).unwrap());
    let filter = Filter::Text { field: QUEUE_FIELD.to_owned(), value: queue.to_owned() };
    let patient = Filter::MinWait(Duration::from_secs(5));
    let function = Arc::new(RuleFunction::new("ranked".into(), rules, world.metrics.clone()));
    Profile { function, pools: vec![pool(vec![filter, patient])], ..duels() }
}

fn players(world: &World) -> Players {
    let queue = |max_party| Queue {
        numbers: vec!["skill".to_owned()],
        allow_other_queues: true,
        max_party,
        ..Queue::default()
    };
    world.players([("ranked".to_owned(), queue(4)), ("other".to_owned(), queue(4))])
}

fn request(queue: &str, skill: Option<f64>) -> JoinRequest {
    let numbers = skill.map(|skill| ("skill".to_owned(), skill)).into_iter().collect();
    JoinRequest { queue: queue.to_owned(), numbers, ..JoinRequest::default() }
}

async fn ticket_that_every_profile_refuses_is_not_created(world: World) {
    let (players, user) = (players(&world), Uuid::from_u128(1));
    let fair = profile(&world, "ranked", FAIR);
    players.set_profiles(std::slice::from_ref(&fair));
    let refused = players.join(user, request("ranked", None)).await.unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
    let expected = format!(
        "no match can have this ticket: rule set fair: player {user}: skill is missing and has no default"
    );
    assert_eq!(refused.to_string(), expected);
    assert!(world.free().await.is_empty());
    // The profile of the other queue is not asked, and a Director may match what no profile admits.
    assert!(players.join(user, request("other", None)).await.unwrap().is_new);
    assert!(players.join(user, request("ranked", Some(1.0))).await.unwrap().is_new);

    // One profile that takes it is enough, and profiles may change at any time.
    let user = Uuid::from_u128(2);
    let any = Profile { pools: fair.pools.clone(), ..duels() };
    players.set_profiles(&[fair.clone(), any]);
    assert!(players.join(user, request("ranked", None)).await.unwrap().is_new);
    players.set_profiles(&[fair]);
    assert!(players.join(Uuid::from_u128(3), request("ranked", None)).await.is_err());
    players.set_profiles(&[profile(&world, "ranked", &FAIR.replace("[teams", "default = 5\n[teams"))]);
    assert!(players.join(Uuid::from_u128(3), request("ranked", None)).await.unwrap().is_new);
}

async fn player_who_waits_gets_the_ticket_whatever_the_fields(world: World) {
    let (players, user) = (players(&world), Uuid::from_u128(1));
    players.set_profiles(&[profile(&world, "ranked", FAIR)]);
    let first = players.join(user, request("ranked", Some(1.0))).await.unwrap();
    let again = players.join(user, request("ranked", None)).await.unwrap();
    assert!(!again.is_new);
    assert_eq!(again.ticket.id, first.ticket.id);
}

async fn party_with_a_member_who_lacks_an_attribute_is_not_queued(world: World) {
    let players = players(&world);
    players.set_profiles(&[profile(&world, "ranked", FAIR)]);
    let config = PartyConfig {
        ttl: Duration::from_secs(600),
        max_members: 4,
        invitation_ttl: Duration::from_secs(60),
    };
    let parties = Parties::new(players, config, world.clock.clone());
    let [leader, second, third] = [1, 2, 3].map(Uuid::from_u128);
    let member = |user: Uuid, skill: Option<f64>| {
        let numbers = skill.map(|skill| ("skill".to_owned(), skill)).into_iter().collect();
        Member { user, name: None, fields: MemberFields { numbers, ..MemberFields::default() } }
    };
    let (party, _) = parties.create(member(leader, Some(1.0))).await.unwrap();
    parties.join(member(second, None), &party.code).await.unwrap();
    let refused = parties.queue(leader, "ranked", None).await.unwrap_err().to_string();
    let expected = format!("rule set fair: player {second}: skill is missing");
    assert!(refused.contains(&expected), "{refused}");

    let fields = member(second, Some(2.0)).fields;
    parties.set_fields(second, &fields).await.unwrap();
    let queued = parties.queue(leader, "ranked", None).await.unwrap();
    assert!(queued.is_new);
    parties.set_fields(second, &MemberFields::default()).await.unwrap();
    let again = parties.queue(leader, "ranked", None).await.unwrap();
    assert_eq!((again.is_new, again.ticket.id), (false, queued.ticket.id));

    parties.set_fields(second, &fields).await.unwrap();
    parties.cancel(leader).await.unwrap();
    parties.join(member(third, Some(3.0)), &party.code).await.unwrap();
    let refused = parties.queue(leader, "ranked", None).await.unwrap_err().to_string();
    assert!(refused.contains("rule set fair: a party of 3 is larger than 2"), "{refused}");
}
