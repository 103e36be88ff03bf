//! The metrics of matchmaking. Metrics that minimatch also has use its names, so that dashboards keep working.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::store::ready::EndCause;

/// The metrics of this process. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Instruments>);

impl Deref for Metrics {
    type Target = Instruments;

    fn deref(&self) -> &Instruments {
        &self.0
    }
}

#[derive(Debug)]
pub struct Instruments {
    pub(crate) waiting: Gauge,
    pub(crate) fetched: Counter,
    pub(crate) assigned: Counter,
    pub(crate) fetch_latency: Histogram,
    pub(crate) function_latency: Family<ProfileLabels, Histogram>,
    pub(crate) assigner_latency: Histogram,
    pub(crate) assign_latency: Histogram,
    pub(crate) time_to_assignment: Family<ProfileLabels, Histogram>,
    pub(crate) oldest_age: Gauge<f64, AtomicU64>,
    pub(crate) repaired: Counter,
    pub(crate) adopted: Counter,
    pub(crate) released: Counter,
    pub(crate) refused: Family<ProfileLabels, Counter>,
    pub(crate) failures: Family<FailureLabels, Counter>,
    pub(crate) watchers: Gauge,
    pub(crate) joins: Family<JoinLabels, Counter>,
    pub(crate) party_changes: Family<PartyLabels, Counter>,
    pub(crate) abandoned: Counter,
    pub(crate) present: Gauge,
    pub(crate) recorded: Counter,
    pub(crate) recovered: Counter,
    pub(crate) notified_unrecorded: Counter,
    pub(crate) copies_failed: Counter,
    pub(crate) unrecorded_entries: Gauge,
    pub(crate) unrecorded_bytes: Gauge,
    pub(crate) held_back: Gauge,
    pub(crate) foreign_engine: Gauge,
    pub(crate) foreign_locks: Counter,
    pub(crate) allocations_open: Gauge,
    pub(crate) backfills: Gauge,
    pub(crate) backfills_acknowledged: Counter,
    pub(crate) backfill_tickets_assigned: Counter,
    pub(crate) backfills_expired: Counter,
    pub(crate) backfills_filled: Counter,
    pub(crate) query_latency: Histogram,
    pub(crate) query_tickets: Gauge,
    pub(crate) query_backfills: Gauge,
    pub(crate) query_bytes: Gauge,
    pub(crate) query_age: Gauge<f64, AtomicU64>,
    pub(crate) query_stale: Counter,
    backfills_opened: Family<ProfileLabels, Counter>,
    backfill_tickets_joined: Family<ProfileLabels, Counter>,
    ready_opened: Family<ProfileLabels, Counter>,
    ready_ended: Family<OutcomeLabels, Counter>,
    ready_time_to_accept: Family<ProfileLabels, Histogram>,
    query_scans: Family<ReasonLabels, Counter>,
    matches_abandoned: Family<ReasonLabels, Counter>,
    unreadable: Family<AssignerLabels, Counter>,
    claims_stale: Family<StepLabels, Counter>,
    director_matches: Family<OutcomeLabels, Counter>,
    function_calls: Family<OutcomeLabels, Counter>,
    evaluator_calls: Family<OutcomeLabels, Counter>,
    rule_evaluations: Family<RuleLabels, Counter>,
    rule_refused: Family<ProfileLabels, Counter>,
    rule_cut_short: Family<ProfileLabels, Counter>,
    rule_oldest_age: Family<ProfileLabels, Gauge<f64, AtomicU64>>,
    starving: Family<ProfileLabels, Gauge>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RuleLabels {
    profile: String,
    rule: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StepLabels {
    step: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AssignerLabels {
    assigner: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ProfileLabels {
    pub(crate) profile: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct FailureLabels {
    pub(crate) profile: String,
    pub(crate) step: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct JoinLabels {
    pub(crate) queue: String,
    pub(crate) outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct PartyLabels {
    pub(crate) change: &'static str,
    pub(crate) outcome: &'static str,
}

/// Buckets from 5 ms to 10 s, as in minimatch.
fn latency() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0])
}

impl Metrics {
    pub fn new(registry: &mut Registry) -> Self {
        // 1 ms to 17 min.
        let waiting_times = || Histogram::new(exponential_buckets(0.001, 2.0, 21));
        let this = Instruments {
            waiting: Gauge::default(),
            fetched: Counter::default(),
            assigned: Counter::default(),
            fetch_latency: latency(),
            function_latency: Family::new_with_constructor(latency),
            assigner_latency: latency(),
            assign_latency: latency(),
            time_to_assignment: Family::new_with_constructor(waiting_times),
            oldest_age: Gauge::default(),
            repaired: Counter::default(),
            adopted: Counter::default(),
            released: Counter::default(),
            refused: Family::default(),
            failures: Family::default(),
            watchers: Gauge::default(),
            joins: Family::default(),
            party_changes: Family::default(),
            abandoned: Counter::default(),
            present: Gauge::default(),
            recorded: Counter::default(),
            recovered: Counter::default(),
            notified_unrecorded: Counter::default(),
            copies_failed: Counter::default(),
            unrecorded_entries: Gauge::default(),
            unrecorded_bytes: Gauge::default(),
            held_back: Gauge::default(),
            foreign_engine: Gauge::default(),
            foreign_locks: Counter::default(),
            allocations_open: Gauge::default(),
            backfills: Gauge::default(),
            backfills_acknowledged: Counter::default(),
            backfill_tickets_assigned: Counter::default(),
            backfills_expired: Counter::default(),
            backfills_filled: Counter::default(),
            query_latency: latency(),
            query_tickets: Gauge::default(),
            query_backfills: Gauge::default(),
            query_bytes: Gauge::default(),
            query_age: Gauge::default(),
            query_stale: Counter::default(),
            backfills_opened: Family::default(),
            backfill_tickets_joined: Family::default(),
            ready_opened: Family::default(),
            ready_ended: Family::default(),
            ready_time_to_accept: Family::new_with_constructor(waiting_times),
            query_scans: Family::default(),
            matches_abandoned: Family::default(),
            unreadable: Family::default(),
            claims_stale: Family::default(),
            director_matches: Family::default(),
            function_calls: Family::default(),
            evaluator_calls: Family::default(),
            rule_evaluations: Family::default(),
            rule_refused: Family::default(),
            rule_cut_short: Family::default(),
            rule_oldest_age: Family::default(),
            starving: Family::default(),
        };
        this.register_with_minimatch_names(registry);
        this.register_our_own(registry);
        this.register_queries(registry);
        this.register_joins(registry);
        this.register_ready_checks(registry);
        Self(Arc::new(this))
    }
}

impl Instruments {
    fn register_with_minimatch_names(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("minimatch");
        registry.register("store_tickets_count", "Tickets in matchmaking", self.waiting.clone());
        registry.register("backend_tickets_fetched", "Tickets fetched for matching", self.fetched.clone());
        registry.register("backend_tickets_assigned", "Tickets assigned", self.assigned.clone());
        let mut latency =
            |name, help, histogram| registry.register_with_unit(name, help, Unit::Seconds, histogram);
        latency("backend_fetch_tickets_latency", "Time to fetch tickets", self.fetch_latency.clone());
        latency("backend_assigner_latency", "Time of an assigner call", self.assigner_latency.clone());
        latency("backend_assign_to_redis_latency", "Time to write assignments", self.assign_latency.clone());
        registry.register_with_unit(
            "backend_match_function_latency",
            "Time of a match function call",
            Unit::Seconds,
            self.function_latency.clone(),
        );
    }

    /// Counts an abandoned match.
    pub(crate) fn match_abandoned(&self, reason: &'static str) {
        self.matches_abandoned.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// Counts unusable items of an assigner's response.
    pub(crate) fn unreadable(&self, assigner: &str, items: u64) {
        if items > 0 {
            let labels = AssignerLabels { assigner: assigner.to_owned() };
            self.unreadable.get_or_create(&labels).inc_by(items);
        }
    }

    /// Counts releases of tickets, or assignments of matches, under a claim that no longer holds them.
    pub(crate) fn claims_stale(&self, step: &'static str, count: u64) {
        if count > 0 {
            self.claims_stale.get_or_create(&StepLabels { step }).inc_by(count);
        }
    }

    /// Counts a proposal of a Director's match function: returned, refused or undelivered.
    pub(crate) fn director_match(&self, outcome: &'static str) {
        self.director_matches.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// Counts a call of a Director's match function.
    pub(crate) fn function_call(&self, outcome: &'static str) {
        self.function_calls.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// Counts a cycle of proposals that were evaluated together.
    pub(crate) fn evaluator_call(&self, outcome: &'static str) {
        self.evaluator_calls.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// Counts a scan of the store for the index.
    pub(crate) fn query_scanned(&self, reason: &'static str) {
        self.query_scans.get_or_create(&ReasonLabels { reason }).inc();
    }

    fn register_queries(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("playhouse_matchmaking_query");
        registry.register_with_unit(
            "latency",
            "Time until the tickets or backfills of a query were found",
            Unit::Seconds,
            self.query_latency.clone(),
        );
        registry.register_with_unit(
            "index_age",
            "Time since the index for queries was last brought up to date",
            Unit::Seconds,
            self.query_age.clone(),
        );
        registry.register("index_tickets", "Tickets in the index for queries", self.query_tickets.clone());
        registry.register(
            "index_backfills",
            "Backfills in the index for queries",
            self.query_backfills.clone(),
        );
        registry.register_with_unit(
            "index_size",
            "Approximate memory of the index for queries",
            Unit::Bytes,
            self.query_bytes.clone(),
        );
        registry.register(
            "stale",
            "Queries that were answered while the store was unreachable",
            self.query_stale.clone(),
        );
        registry.register(
            "scans",
            "Scans of all tickets to fill or correct the index for queries",
            self.query_scans.clone(),
        );
    }

    fn register_joins(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("playhouse_matchmaking");
        registry.register(
            "backfills_opened",
            "Backfills that rule sets created with their match",
            self.backfills_opened.clone(),
        );
        registry.register(
            "backfill_tickets_joined",
            "Tickets that rule sets added to a match under way",
            self.backfill_tickets_joined.clone(),
        );
    }

    fn register_ready_checks(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("playhouse_matchmaking");
        registry.register("ready_checks_opened", "Ready checks opened", self.ready_opened.clone());
        registry.register("ready_checks_ended", "Ready checks ended, by outcome", self.ready_ended.clone());
        registry.register_with_unit(
            "ready_check_time_to_accept",
            "Time from the opening of a ready check until all players had accepted",
            Unit::Seconds,
            self.ready_time_to_accept.clone(),
        );
    }

    pub(crate) fn backfill_opened(&self, profile: &str) {
        self.backfills_opened.get_or_create(&ProfileLabels { profile: profile.to_owned() }).inc();
    }

    pub(crate) fn backfill_joined(&self, profile: &str, tickets: usize) {
        let labels = ProfileLabels { profile: profile.to_owned() };
        self.backfill_tickets_joined.get_or_create(&labels).inc_by(tickets as u64);
    }

    pub(crate) fn ready_check_opened(&self, profile: &str) {
        self.ready_opened.get_or_create(&ProfileLabels { profile: profile.to_owned() }).inc();
    }

    /// Counts a check that all its players have accepted.
    pub(crate) fn ready_check_accepted(&self, profile: &str, time: Duration) {
        self.ready_ended.get_or_create(&OutcomeLabels { outcome: "accepted" }).inc();
        let labels = ProfileLabels { profile: profile.to_owned() };
        self.ready_time_to_accept.get_or_create(&labels).observe(time.as_secs_f64());
    }

    /// Counts a check that has ended otherwise.
    pub(crate) fn ready_check_ended(&self, cause: EndCause) {
        let outcome = match cause {
            EndCause::Declined => "declined",
            EndCause::NoAnswer => "no_answer",
            EndCause::Lost => "lost",
            // Counted when it was accepted.
            EndCause::Settled => return,
        };
        self.ready_ended.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    fn register_rules(&self, registry: &mut Registry) {
        registry.register("rule_evaluations", "Evaluations of match rules", self.rule_evaluations.clone());
        registry.register(
            "rule_tickets_refused",
            "Tickets, once per tick, that a rule set can never match: an attribute is missing or has another type",
            self.rule_refused.clone(),
        );
        registry.register(
            "rule_searches_cut_short",
            "Searches for a match that ended at their budget",
            self.rule_cut_short.clone(),
        );
        registry.register_with_unit(
            "rule_oldest_age",
            "Age of the oldest ticket that the rules of a profile did not match in the last tick",
            Unit::Seconds,
            self.rule_oldest_age.clone(),
        );
    }

    /// Counts the evaluations of one rule.
    pub(crate) fn add_rule_evaluations(&self, profile: &str, rule: &str, passed: u64, failed: u64) {
        for (outcome, count) in [("passed", passed), ("failed", failed)] {
            let labels = RuleLabels { profile: profile.to_owned(), rule: rule.to_owned(), outcome };
            self.rule_evaluations.get_or_create(&labels).inc_by(count);
        }
    }

    /// Counts the tickets that a rule set refused, and the searches that were cut short.
    pub(crate) fn add_rule_searches(&self, profile: &str, refused: u64, cut_short: u64) {
        let labels = ProfileLabels { profile: profile.to_owned() };
        self.rule_refused.get_or_create(&labels).inc_by(refused);
        self.rule_cut_short.get_or_create(&labels).inc_by(cut_short);
    }

    pub(crate) fn set_rule_oldest_age(&self, profile: &str, seconds: f64) {
        let labels = ProfileLabels { profile: profile.to_owned() };
        self.rule_oldest_age.get_or_create(&labels).set(seconds);
    }

    /// Removes the ages of all profiles.
    pub(crate) fn forget_rule_oldest_ages(&self) {
        self.rule_oldest_age.clear();
    }

    pub(crate) fn set_starving(&self, profile: &str, tickets: usize) {
        let labels = ProfileLabels { profile: profile.to_owned() };
        self.starving.get_or_create(&labels).set(tickets.try_into().unwrap_or(i64::MAX));
    }

    fn register_our_own(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("playhouse_matchmaking");
        registry.register_with_unit(
            "time_to_assignment",
            "Time from a ticket's creation to its assignment",
            Unit::Seconds,
            self.time_to_assignment.clone(),
        );
        registry.register_with_unit(
            "oldest_ticket_age",
            "Age of the oldest ticket that found no match in the last tick",
            Unit::Seconds,
            self.oldest_age.clone(),
        );
        let mut counter = |name, help, counter: &Counter| registry.register(name, help, counter.clone());
        counter("tickets_repaired", "Tickets removed because their data had expired", &self.repaired);
        counter("tickets_adopted", "Tickets of other programs that were added to the queue", &self.adopted);
        counter("tickets_released", "Tickets that were fetched and found no match", &self.released);
        counter("tickets_abandoned", "Tickets cancelled because their player was absent", &self.abandoned);
        counter("matches_recorded", "Matches recorded in SQL", &self.recorded);
        counter(
            "entries_recovered",
            "Batches of matches recorded and removed by the recovery",
            &self.recovered,
        );
        counter(
            "copies_failed",
            "Failed attempts to copy the assignments of a batch to assignments_url",
            &self.copies_failed,
        );
        counter(
            "entries_notified_unrecorded",
            "Batches of matches whose players were notified before SQL recorded them",
            &self.notified_unrecorded,
        );
        counter(
            "backfills_acknowledged",
            "Acknowledgements of game servers that have a backfill",
            &self.backfills_acknowledged,
        );
        counter(
            "backfill_tickets_assigned",
            "Tickets assigned to a match under way",
            &self.backfill_tickets_assigned,
        );
        counter(
            "backfills_expired",
            "Backfills deleted because their game server stopped acknowledging them",
            &self.backfills_expired,
        );
        counter(
            "backfills_filled",
            "Backfills of rule sets deleted because they are full",
            &self.backfills_filled,
        );
        counter("foreign_locks", "Times that another program's lock was met", &self.foreign_locks);
        registry.register(
            "matches_refused",
            "Matches dropped because a ticket was gone, cancelled or assigned elsewhere",
            self.refused.clone(),
        );
        registry.register(
            "failures",
            "Match functions, evaluators, assigners and writes that failed or took too long",
            self.failures.clone(),
        );
        registry.register(
            "allocations_open",
            "Matches requested from an assigner that are neither recorded nor given back",
            self.allocations_open.clone(),
        );
        registry.register(
            "matches_abandoned",
            "Matches that were not made and whose servers are given back",
            self.matches_abandoned.clone(),
        );
        registry.register(
            "assignments_unreadable",
            "Unusable items in an assigner's responses",
            self.unreadable.clone(),
        );
        registry.register(
            "claims_stale",
            "Releases of tickets, and assignments of matches, that changed nothing because another claim holds the tickets",
            self.claims_stale.clone(),
        );
        registry.register(
            "director_matches",
            "Proposals of Directors' match functions, by outcome",
            self.director_matches.clone(),
        );
        registry.register(
            "function_calls",
            "Calls of Directors' match functions, by outcome",
            self.function_calls.clone(),
        );
        registry.register(
            "evaluator_calls",
            "Cycles in which the proposals of several calls were evaluated together, by outcome",
            self.evaluator_calls.clone(),
        );
        self.register_rules(registry);
        registry.register("joins", "Requests of players to join a queue", self.joins.clone());
        registry.register("party_changes", "Changes of parties", self.party_changes.clone());
        registry.register(
            "players_present",
            "Players with an open stream, if queues cancel the tickets of absent players",
            self.present.clone(),
        );
        registry.register(
            "starving_tickets",
            "Tickets without a match in the last tick that have waited for longer than max_wait of their profile",
            self.starving.clone(),
        );
        registry.register("watchers", "Watchers of assignments", self.watchers.clone());
        let mut gauge = |name, help, gauge: &Gauge| registry.register(name, help, gauge.clone());
        gauge(
            "unrecorded_entries",
            "Batches of matches that are not recorded in SQL, or whose assignments are not copied yet",
            &self.unrecorded_entries,
        );
        gauge("backfills", "Backfills at the last clean-up", &self.backfills);
        gauge("unrecorded_bytes", "Size of these batches in bytes", &self.unrecorded_bytes);
        gauge(
            "foreign_engine",
            "1 while an engine of another program was seen on the same tickets",
            &self.foreign_engine,
        );
        gauge(
            "held_back",
            "1 while the engine fetches no tickets because too many matches are unrecorded",
            &self.held_back,
        );
    }
}
