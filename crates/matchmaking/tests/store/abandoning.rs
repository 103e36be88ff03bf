//! Abandoned matches can no longer be assigned.

use std::collections::HashSet;
use std::time::Duration;

use matchmaking::model::MatchId;
use matchmaking::store::{AfterNotify, AssignOutcome, AssignmentGroup};
use testkit::{Redis, need};

use crate::setup::{Setup, group, id, ids};

for_every_store! {
    only_the_abandoned_match_is_refused,
    match_assigned_before_the_mark_is_listed_as_unrecorded,
}

/// Returns a match that is refused once it is abandoned.
fn fenced(fence: MatchId, numbers: std::ops::Range<usize>) -> AssignmentGroup {
    AssignmentGroup { fence: Some(fence), ..group(&fence.to_string(), ids(numbers)) }
}

async fn only_the_abandoned_match_is_refused(setup: Setup) {
    let tickets = setup.open().await;
    let other = tickets.elsewhere().await;
    tickets.create_all(0..6).await;
    assert_eq!(tickets.take(6).await.len(), 6);
    let [late, early] = [MatchId::generate(), MatchId::generate()];
    other.mark_abandoned(&[late, MatchId::generate()]).await.unwrap();
    other.mark_abandoned(&[]).await.unwrap();
    let groups = [fenced(late, 0..2), fenced(early, 2..4), group("without a fence", ids(4..6))];
    let expected = [AssignOutcome::Abandoned, AssignOutcome::Assigned, AssignOutcome::Assigned];
    assert_eq!(tickets.assign(&groups).await.unwrap(), expected);
    assert_eq!(tickets.connection_of(&id(0)).await, None, "nothing of it is written");
    tickets.release(&ids(0..6)).await.unwrap();
    assert_eq!(other.take(10).await, ids(0..2), "its tickets go on waiting");
    // The tickets can be assigned in another match.
    assert_eq!(
        tickets.assign(&[fenced(MatchId::generate(), 0..2)]).await.unwrap(),
        [AssignOutcome::Assigned]
    );
}

async fn match_assigned_before_the_mark_is_listed_as_unrecorded(setup: Setup) {
    let tickets = setup.open().await;
    // More batches than are read at once.
    const MATCHES: usize = 120;
    tickets.create_all(0..MATCHES).await;
    let made: Vec<MatchId> = (0..MATCHES).map(|_| MatchId::generate()).collect();
    for (fence, number) in made.iter().zip(0..) {
        let outcomes = tickets.assign(&[fenced(*fence, number..number + 1)]).await.unwrap();
        assert_eq!(outcomes, [AssignOutcome::Assigned]);
    }
    let expected: HashSet<MatchId> = made.into_iter().collect();
    assert_eq!(tickets.elsewhere().await.unrecorded_matches().await.unwrap(), expected);
    let entries = tickets.entries().await;
    tickets.notify(&entries, AfterNotify::Remove).await.unwrap();
    let left = tickets.unrecorded_matches().await.unwrap();
    assert_eq!(left.len(), expected.len() - entries.len());
    assert!(left.is_subset(&expected));
}

#[tokio::test]
async fn abandoned_mark_lives_as_long_as_a_ticket_can() {
    let tickets = Setup::script(need!(Redis::shared().await)).open().await;
    let id = MatchId::generate();
    tickets.mark_abandoned(&[id]).await.unwrap();
    let mut raw = tickets.raw().await;
    let life: u64 = raw.ask(&["PTTL", &tickets.key(&format!("abandoned:{id}"))]).await;
    let day = Duration::from_secs(86_400);
    assert!(life > 86_000_000 && Duration::from_millis(life) <= day, "{life}");
}
