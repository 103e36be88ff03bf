//! The profiles that an engine follows, which may change while it runs.

use std::sync::Arc;
use std::time::Duration;

use super::breaker::Breaker;
use super::plugins::{Assigner, MatchFunction, Profile};

/// The profiles of an engine, each with the circuit breaker of its assigner. Profiles with the same assigner share one.
#[derive(Debug, Default)]
pub(super) struct ActiveProfiles {
    pub(super) profiles: Vec<Profile>,
    breakers: Vec<Arc<Breaker>>,
}

impl ActiveProfiles {
    /// Takes over these profiles. A breaker keeps its state if its assigner stays.
    pub(super) fn followed_by(&self, profiles: Vec<Profile>) -> Self {
        let mut breakers: Vec<Arc<Breaker>> = Vec::with_capacity(profiles.len());
        for profile in &profiles {
            let known = profiles.iter().zip(&breakers).find(|(other, _)| is_same(profile, &other.assigner));
            let breaker = known.map(|(_, breaker)| breaker.clone()).unwrap_or_else(|| {
                let users = profiles.iter().filter(|other| is_same(profile, &other.assigner));
                let users = users.map(|other| other.name.clone()).collect();
                let mut earlier = self.profiles.iter().zip(&self.breakers);
                match earlier.find(|(other, _)| is_same(profile, &other.assigner)) {
                    Some((_, breaker)) => Arc::new(breaker.for_profiles(users)),
                    None => Arc::new(Breaker::new(users)),
                }
            });
            breakers.push(breaker);
        }
        Self { profiles, breakers }
    }

    /// Returns the assigner of a profile, and its breaker.
    pub(super) fn assigner(&self, profile: &str) -> Option<(Arc<dyn Assigner>, Arc<Breaker>)> {
        let mut all = self.profiles.iter().zip(&self.breakers);
        let (profile, breaker) = all.find(|(other, _)| *other.name == *profile)?;
        Some((profile.assigner.clone(), breaker.clone()))
    }

    /// Returns how long the players of a match of this profile have to accept it. `None` does not ask them.
    pub(super) fn ready_check(&self, profile: &str) -> Option<Duration> {
        self.profiles.iter().find(|other| *other.name == *profile)?.ready_check
    }

    /// Returns the match function of a profile if it fills matches under way.
    pub(super) fn filling(&self, profile: &str) -> Option<&Arc<dyn MatchFunction>> {
        let profile = self.profiles.iter().find(|other| *other.name == *profile)?;
        profile.backfill.then_some(&profile.function)
    }

    pub(super) fn has_ready_checks(&self) -> bool {
        self.profiles.iter().any(|profile| profile.ready_check.is_some())
    }

    /// Returns whether a match function wants to see all tickets together.
    pub(super) fn meets_all(&self) -> bool {
        self.profiles.iter().any(|profile| profile.function.meets_all())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.profiles.is_empty()
    }
}

fn is_same(profile: &Profile, assigner: &Arc<dyn Assigner>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(&profile.assigner), Arc::as_ptr(assigner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Fifo, StaticList};

    fn profile(name: &str, assigner: &Arc<dyn Assigner>) -> Profile {
        Profile {
            name: name.into(),
            pools: Vec::new(),
            function: Arc::new(Fifo::new(2)),
            assigner: assigner.clone(),
            version: 0,
            max_wait: None,
            ready_check: None,
            backfill: false,
        }
    }

    #[tokio::test]
    async fn breaker_of_an_assigner_outlives_its_profiles() {
        let [failing, other] = [(); 2].map(|()| Arc::new(StaticList::new(Vec::new())) as Arc<dyn Assigner>);
        let active = ActiveProfiles::default().followed_by(vec![profile("a", &failing)]);
        drop(active.assigner("a").unwrap().1.start_call());
        let active =
            active.followed_by(vec![profile("b", &failing), profile("c", &failing), profile("d", &other)]);
        assert!(active.assigner("a").is_none());
        let (_, breaker) = active.assigner("c").unwrap();
        assert_eq!((breaker.failures().0, breaker.allowed_matches()), (1, 0), "it still pauses");
        assert_eq!(breaker.profiles, ["b".into(), "c".into()] as [Arc<str>; 2]);
        assert_eq!(active.assigner("d").unwrap().1.failures().0, 0);
    }
}
