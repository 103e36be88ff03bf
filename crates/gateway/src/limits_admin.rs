//! The rate limits for operators: each rule with its decisions, and the callers that are refused most.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use base::id::ProcessId;
use base::{Clock, Timestamp};
use fleet::Fleet;
use http_server::{ConnectionCounts, ListenerConnections, Query};
use limits::{Counts, KeyKind, Limits, Rate, RefusedKey, Rule, RuleCounts};
use serde::Deserialize;
use serde_json::{Value, json};
use service::{AllowedCallers, Context, Open, OperatorRoute, RateClass, Row};

use crate::config::LimitsConfig;
use crate::guard::{ADDRESS_POLICY, policy};
use crate::http::rows;

/// How many refused callers are listed.
pub(crate) const LISTED: usize = 20;

/// The rate limits of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct LimitsAdmin {
    pub(crate) process: ProcessId,
    pub(crate) clock: Clock,
    /// When the counts began.
    started_at: Timestamp,
    /// None if this process has no gateway.
    limits: Option<Limits>,
    rules: Arc<BTreeMap<Rule, Rate>>,
    /// None if this process has no listeners, as in tests.
    connections: Option<ConnectionCounts>,
    max_connections: u32,
    max_connections_per_address: u32,
    /// For charts of all processes.
    pub(crate) fleet: Option<Fleet>,
}

/// The decisions and refusals of this process at one moment.
#[derive(Debug)]
pub(crate) struct LimitsReport {
    pub(crate) process: ProcessId,
    pub(crate) started_at: Timestamp,
    /// None if this process has no gateway.
    pub(crate) rates: Option<RatesReport>,
    pub(crate) connections: Vec<ListenerConnections>,
    pub(crate) max_connections: u32,
    /// 0 for no limit.
    pub(crate) max_connections_per_address: u32,
}

#[derive(Debug)]
pub(crate) struct RatesReport {
    /// Whether Redis decides for all processes. False if this process decides on its own.
    pub(crate) is_shared: bool,
    /// Whether it decides on its own because its stores are embedded.
    pub(crate) is_embedded: bool,
    pub(crate) rules: Vec<(Rate, RuleCounts)>,
    pub(crate) most_refused: Vec<RefusedKey>,
}

impl LimitsAdmin {
    pub(crate) fn new(context: &Context, config: &LimitsConfig, limits: Option<Limits>) -> Self {
        let added = context.services.player_routes().into_iter().map(|route| route.row);
        let listen = &context.settings.listen.limits;
        Self {
            process: context.process,
            started_at: context.clock.now(),
            clock: context.clock.clone(),
            limits,
            rules: Arc::new(rules(rows().into_iter().chain(added), config)),
            connections: context.provided.find(),
            max_connections: listen.max_connections,
            max_connections_per_address: listen.max_connections_per_address,
            fleet: context.provided.find(),
        }
    }

    /// Reads the counts. `limit` is the most refused callers that are listed.
    pub(crate) fn report(&self, limit: usize) -> LimitsReport {
        LimitsReport {
            process: self.process,
            started_at: self.started_at,
            rates: self.limits.as_ref().map(|limits| self.rates(limits, limit)),
            connections: self.connections.as_ref().map(ConnectionCounts::read).unwrap_or_default(),
            max_connections: self.max_connections,
            max_connections_per_address: self.max_connections_per_address,
        }
    }

    fn rates(&self, limits: &Limits, limit: usize) -> RatesReport {
        let counted: BTreeMap<Rule, RuleCounts> =
            limits.counts().into_iter().map(|counts| (counts.rule, counts)).collect();
        let counts = |rule: &Rule| counted.get(rule).copied().unwrap_or_else(|| RuleCounts::none(*rule));
        // Other rules only limit how often something is logged.
        let mut most_refused = limits.most_refused(usize::MAX);
        most_refused.retain(|key| self.rules.contains_key(&key.rule));
        most_refused.truncate(limit);
        RatesReport {
            is_shared: limits.is_shared(),
            is_embedded: limits.is_embedded(),
            rules: self.rules.iter().map(|(rule, rate)| (*rate, counts(rule))).collect(),
            most_refused,
        }
    }
}

/// Returns the rules that the routes lead to. A caller that is not signed in counts by its address, also on routes that require a
/// sign-in.
fn rules(rows: impl Iterator<Item = Row>, config: &LimitsConfig) -> BTreeMap<Rule, Rate> {
    let mut rules = BTreeMap::new();
    for row in rows.filter(|row| row.class != RateClass::Issuer) {
        rules.insert(Rule { policy: ADDRESS_POLICY, kind: KeyKind::Address }, config.address);
        let Some((policy, rate)) = policy(row.class, config) else { continue };
        rules.insert(Rule { policy, kind: KeyKind::Address }, rate);
        if row.callers != AllowedCallers::Anyone {
            rules.insert(Rule { policy, kind: KeyKind::User }, rate);
        }
    }
    rules
}

/// Returns the route `/limits`.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![OperatorRoute::get("/limits", show)]
}

#[derive(Deserialize)]
struct Limit {
    limit: Option<usize>,
}

async fn show(Open(admin): Open<LimitsAdmin>, Query(query): Query<Limit>) -> Json<Value> {
    Json(describe(&admin.report(query.limit.unwrap_or(LISTED))))
}

fn describe(report: &LimitsReport) -> Value {
    let connections: Vec<Value> = report.connections.iter().map(describe_listener).collect();
    let mut described = json!({
        "process_id": report.process.to_string(),
        "since": report.started_at.to_rfc3339(),
        "has_gateway": report.rates.is_some(),
        "connections": {
            "max": report.max_connections,
            "max_per_address": report.max_connections_per_address,
            "listeners": connections,
        },
    });
    if let Some(rates) = &report.rates {
        described["decided_by"] = json!(if rates.is_shared { "redis" } else { "process" });
        described["rules"] = rates.rules.iter().map(describe_rule).collect();
        described["most_refused"] = rates.most_refused.iter().map(describe_key).collect();
    }
    described
}

fn describe_rule((rate, counts): &(Rate, RuleCounts)) -> Value {
    let RuleCounts { rule, since_start, last_minute, last_hour } = counts;
    let counts = |of: fn(&Counts) -> u64| json!({ "last_minute": of(last_minute), "last_hour": of(last_hour), "since_start": of(since_start) });
    json!({
        "policy": rule.policy, "key_kind": rule.kind.as_str(), "limit": rate.to_string(),
        "allowed": counts(|counts| counts.allowed), "refused": counts(|counts| counts.refused),
    })
}

fn describe_key(key: &RefusedKey) -> Value {
    json!({
        "policy": key.rule.policy, "key_kind": key.rule.kind.as_str(), "key": key.key,
        // At least this many.
        "refused": key.refused - key.error, "is_exact": key.error == 0,
        "first": key.first.to_rfc3339(), "last": key.last.to_rfc3339(),
    })
}

fn describe_listener(listener: &ListenerConnections) -> Value {
    let ListenerConnections { listener, open, refused_full, refused_address } = listener;
    json!({
        "listener": listener, "open": open, "refused_full": refused_full, "refused_address": refused_address,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;

    pub(crate) const NOW: Timestamp = Timestamp::from_millis(1_000);
    pub(crate) const USER: &str = "0198c0de-0000-7000-8000-000000000001";
    pub(crate) const READ: Rule = Rule { policy: "read", kind: KeyKind::User };

    /// Returns a report with a rule, a refused player and a listener.
    pub(crate) fn report() -> LimitsReport {
        let key =
            RefusedKey { rule: READ, key: USER.to_owned(), refused: 9, error: 2, first: NOW, last: NOW };
        let counts = |allowed, refused| Counts { allowed, refused };
        let counts = RuleCounts {
            rule: READ,
            since_start: counts(50, 9),
            last_minute: counts(5, 1),
            last_hour: counts(20, 4),
        };
        let listener =
            ListenerConnections { listener: "gateway", open: 3, refused_full: 0, refused_address: 4 };
        LimitsReport {
            process: ProcessId::generate(),
            started_at: NOW,
            rates: Some(RatesReport {
                is_shared: true,
                is_embedded: false,
                rules: vec![("50/s burst 100".parse().unwrap(), counts)],
                most_refused: vec![key],
            }),
            connections: vec![listener],
            max_connections: 10_000,
            max_connections_per_address: 256,
        }
    }

    #[test]
    fn every_route_with_a_limit_has_its_rules() {
        let rate = |text: &str| -> Rate { text.parse().unwrap() };
        let config = LimitsConfig {
            timeout: Duration::from_millis(50),
            address: rate("1/s"),
            read: rate("2/s"),
            write: rate("3/s"),
            sign_in: rate("4/s"),
            stream: rate("5/s"),
        };
        let shown: Vec<(&str, &str, String)> = rules(rows().into_iter(), &config)
            .into_iter()
            .map(|(rule, rate)| (rule.policy, rule.kind.as_str(), rate.to_string()))
            .collect();
        let expected = [
            ("address", "address", "1/s"),
            ("read", "address", "2/s"),
            ("read", "user", "2/s"),
            ("sign_in", "address", "4/s"),
            ("stream", "address", "5/s"),
            ("stream", "user", "5/s"),
            ("write", "address", "3/s"),
            ("write", "user", "3/s"),
        ];
        assert_eq!(shown, expected.map(|(policy, kind, rate)| (policy, kind, rate.to_owned())));
        let issuer = Row::post("/logout", AllowedCallers::Anyone, RateClass::Issuer);
        assert!(rules([issuer].into_iter(), &config).is_empty());
    }

    #[test]
    fn report_is_described_with_rules_keys_and_connections() {
        let described = describe(&report());
        assert_eq!(described["decided_by"], "redis");
        assert_eq!(
            described["rules"],
            json!([{
                "policy": "read", "key_kind": "user", "limit": "50/s burst 100",
                "allowed": { "last_minute": 5, "last_hour": 20, "since_start": 50 },
                "refused": { "last_minute": 1, "last_hour": 4, "since_start": 9 },
            }])
        );
        let key = &described["most_refused"][0];
        assert_eq!(
            (&key["key"], &key["refused"], &key["is_exact"]),
            (&json!(USER), &json!(7), &json!(false))
        );
        assert_eq!(described["connections"]["listeners"][0]["refused_address"], 4);
        let without = describe(&LimitsReport { rates: None, ..report() });
        assert_eq!((&without["has_gateway"], &without["rules"]), (&json!(false), &Value::Null));
    }
}
