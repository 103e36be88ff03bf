//! Why a ticket waits, for operators: as data, and from it as sentences.

use std::sync::Arc;

use base::Timestamp;
use serde::Serialize;

use crate::admin::TicketState;
use crate::engine::Profile;
use crate::model::{Moment, Pool, Ticket};
use crate::store::AssignerFailure;

/// How many tickets of a pool, the oldest, are compared with one at most.
pub(crate) const COMPARED: usize = 1_000;

/// Tickets to compare one with.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    /// Those that a pool of the ticket admits, the oldest first.
    pub(crate) tickets: Vec<Arc<Ticket>>,
    /// Whether every ticket in matchmaking was looked at.
    pub(crate) is_all: bool,
}

/// Why a ticket is not assigned.
#[derive(Clone, Debug, Serialize)]
pub struct WhyReport {
    pub ticket_id: String,
    pub state: TicketState,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<f64>,
    /// The queue that its player joined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// How many tickets are in matchmaking.
    pub in_matchmaking: u64,
    /// How many of them, the oldest, were read to find those of the same pools.
    pub compared: usize,
    /// What keeps it from every match, whatever the others are.
    pub obstacles: Vec<Obstacle>,
    /// How it fares in each profile.
    pub profiles: Vec<ProfileWhy>,
    /// The assigners of these profiles that failed the last time.
    pub assigner_failures: Vec<AssignerFailure>,
    /// All of this in sentences.
    pub lines: Vec<String>,
}

/// A reason that does not depend on other tickets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Obstacle {
    pub code: ObstacleCode,
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ObstacleCode {
    /// No process runs an engine.
    NoEngine,
    /// Engines fetch nothing, because too many matches are unrecorded.
    HeldBack,
    /// An engine has fetched it.
    Fetched,
    /// The players of its match are asked whether they are ready.
    ReadyCheck,
    /// A Director holds it.
    HeldByDirector,
    /// The process that was asked knows no profiles.
    NoProfiles,
    /// No pool of any profile admits it.
    NoProfileAdmits,
    Expired,
    Deindexed,
    Unreadable,
}

/// How a ticket fares in one profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfileWhy {
    pub profile: String,
    /// The match function.
    pub function: String,
    /// Whether one of its pools admits the ticket.
    pub admits: bool,
    /// The waiting time from which a ticket counts as starving.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait_seconds: Option<f64>,
    /// Whether the ticket has waited for longer.
    pub is_starving: bool,
    pub pools: Vec<PoolWhy>,
}

/// How a ticket fares in one pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolWhy {
    pub pool: String,
    /// The filters that keep the ticket out. If there are any, nothing else is known.
    pub excluded_by: Vec<String>,
    /// How many other tickets the pool admits.
    pub others: usize,
    /// Whether it may admit more: these are the oldest.
    pub is_sample: bool,
    /// How many tickets a match has, if that is fixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    /// How many of them there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<usize>,
    /// What the rule set says, if the profile has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<RuleSetWhy>,
    /// What another match function says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What a rule set says about a ticket.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleSetWhy {
    pub rule_set: Arc<str>,
    /// The version label of the rule set.
    pub version: Option<Arc<str>>,
    #[serde(flatten)]
    pub why: rules::Why,
}

impl WhyReport {
    /// Renders the sentences from the other fields.
    pub(crate) fn with_lines(self, now: Timestamp) -> Self {
        let obstacles = self.obstacles.iter().map(|obstacle| obstacle.detail.clone());
        let profiles = self.profiles.iter().flat_map(ProfileWhy::lines);
        let failures = self.assigner_failures.iter().map(|failure| describe_failure(failure, now));
        let lines = obstacles.chain(profiles).chain(failures).collect();
        Self { lines, ..self }
    }
}

impl ProfileWhy {
    /// Explains, pool by pool, what keeps a ticket out of a match of this profile.
    pub(crate) fn new(profile: &Profile, ticket: &Ticket, sample: &Sample, now: Moment) -> Self {
        let pool = |pool: &Arc<Pool>| PoolWhy::new(profile, pool, ticket, sample, now);
        let pools: Vec<PoolWhy> = profile.pools.iter().map(pool).collect();
        let admits = pools.iter().any(|pool| pool.excluded_by.is_empty());
        Self {
            profile: profile.name.to_string(),
            function: profile.function.name().to_owned(),
            admits,
            max_wait_seconds: profile.max_wait.map(|wait| wait.as_secs_f64()),
            is_starving: admits && profile.max_wait.is_some_and(|wait| ticket.created.age(now) > wait),
            pools,
        }
    }

    fn lines(&self) -> Vec<String> {
        let of_pool = |pool: &PoolWhy| {
            let place = format!("profile {}, pool {}", self.profile, pool.pool);
            let prefixed = |line: String| format!("{place}: {line}");
            pool.lines().into_iter().map(prefixed).collect::<Vec<String>>()
        };
        let mut lines: Vec<String> = self.pools.iter().flat_map(of_pool).collect();
        if let Some(max_wait) = self.max_wait_seconds.filter(|_| self.is_starving) {
            let profile = &self.profile;
            lines.push(format!("profile {profile}: it has waited for longer than max_wait ({max_wait} s)"));
        }
        lines
    }
}

impl PoolWhy {
    fn new(profile: &Profile, pool: &Pool, ticket: &Ticket, sample: &Sample, now: Moment) -> Self {
        let excluded_by: Vec<String> = pool.obstacles(ticket, now).map(ToString::to_string).collect();
        let mut this = Self {
            pool: pool.name.clone(),
            excluded_by,
            others: 0,
            is_sample: false,
            size: profile.function.size(),
            found: None,
            rules: None,
            notes: Vec::new(),
        };
        if this.excluded_by.is_empty() {
            let admitted = sample.tickets.iter().filter(|other| pool.admits(other, now));
            let admitted: Vec<Arc<Ticket>> = admitted.take(COMPARED).cloned().collect();
            this.is_sample = !sample.is_all || admitted.len() == COMPARED;
            this.others = admitted.iter().filter(|other| other.id != ticket.id).count();
            this.found = this.size.map(|size| size.min(this.others + 1));
            this.rules = profile.function.why(ticket, &admitted, now);
            if this.rules.is_none() {
                this.notes = profile.function.explain(ticket, &admitted, now);
            }
        }
        this
    }

    fn lines(&self) -> Vec<String> {
        if !self.excluded_by.is_empty() {
            let filters: Vec<String> = self.excluded_by.iter().map(|filter| format!("`{filter}`")).collect();
            return vec![format!("excluded by {}", filters.join(", "))];
        }
        let count = base::counted(self.others as u64, "other ticket");
        let sample = if self.is_sample { " (the oldest)" } else { "" };
        let found = match (self.found, self.size) {
            (Some(found), Some(size)) => format!("; {found} of {size} found"),
            _ => String::new(),
        };
        let first = format!("admitted, with {count}{sample}{found}");
        let rules = self.rules.iter().flat_map(|rules| rules.why.lines());
        std::iter::once(first).chain(rules).chain(self.notes.iter().cloned()).collect()
    }
}

/// Describes the failure, how often it happened, and when the next attempt is.
pub(crate) fn describe_failure(failure: &AssignerFailure, now: Timestamp) -> String {
    let AssignerFailure { profile, cause, failures, .. } = failure;
    let seconds = |millis: i64| millis.max(0) / 1000;
    let ago = seconds(now.as_millis() - failure.failed_at);
    let next = seconds(failure.next_at - now.as_millis());
    let times = if *failures == 1 { "once".to_owned() } else { format!("{failures} times in a row") };
    format!(
        "profile {profile}: a match was found, but the last attempt to get a server failed {ago} s ago: {cause} \
         (failed {times}; the next attempt is in {next} s)"
    )
}
