//! The recorded failures of assigners.

use std::time::Duration;

use matchmaking::store::AssignerFailure;

use crate::setup::Setup;

for_every_store! {
    every_process_sees_an_assigner_failure_until_it_is_cleared,
}

async fn every_process_sees_an_assigner_failure_until_it_is_cleared(setup: Setup) {
    let tickets = setup.open().await;
    let other = tickets.elsewhere().await;
    let failure = |profile: &str, failures: u32| AssignerFailure {
        profile: profile.to_owned(),
        engine: "one".to_owned(),
        cause: "fleet: 500".to_owned(),
        failures,
        failed_at: tickets.clock.now().as_millis() + i64::from(failures),
        next_at: 0,
    };
    let (duel, ranked) = (failure("duel", 1), failure("ranked", 2));
    assert_eq!(other.assigner_failures().await.unwrap(), []);
    for failure in [&duel, &ranked] {
        tickets.set_assigner_failure(&"one".into(), &failure.profile, Some(failure)).await.unwrap();
    }
    assert_eq!(other.assigner_failures().await.unwrap(), [ranked, duel.clone()], "the last one first");
    tickets.set_assigner_failure(&"one".into(), "ranked", None).await.unwrap();
    assert_eq!(other.assigner_failures().await.unwrap(), [duel]);
    if !tickets.is_in_redis() {
        tickets.pass(Duration::from_secs(901));
        assert_eq!(other.assigner_failures().await.unwrap(), [], "what is old is forgotten");
    }
}
