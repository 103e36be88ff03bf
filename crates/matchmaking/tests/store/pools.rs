//! Which tickets are in a pool: the index of queries and the plain check of each ticket agree with Open Match's rules.

use std::collections::BTreeSet;
use std::time::Duration;

use buffa::{Message, MessageField};
use buffa_types::google::protobuf as wkt;
use futures::TryStreamExt;
use matchmaking::model::{Bounds, Filter, Moment, Pool, TicketId};
use matchmaking::store::{AfterNotify, AssignmentGroup, ClaimRequest, DirectGroup, Holder, NewTicket};
use matchmaking::{Queries, QueryKind};
use proptest::prelude::*;
use proto::openmatch::{self, double_range_filter::Exclude};

use crate::setup::{Setup, Tickets, group, id};

/// The creation time of tickets in microseconds: 2026-03-01T12:00:00Z.
const NOON: i64 = 1_772_366_400_000_000;

/// The search fields and creation time of a ticket. The time counts in microseconds from noon.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    pub(crate) doubles: Vec<(&'static str, f64)>,
    pub(crate) strings: Vec<(&'static str, &'static str)>,
    pub(crate) tags: Vec<&'static str>,
    pub(crate) created: i64,
}

/// A double range filter: argument, minimum, maximum, and which ends are excluded.
pub(crate) type RangeFilter = (&'static str, f64, f64, Exclude);

/// The filters of a pool. Times count in microseconds from noon.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filters {
    pub(crate) ranges: Vec<RangeFilter>,
    pub(crate) strings: Vec<(&'static str, &'static str)>,
    pub(crate) tags: Vec<&'static str>,
    pub(crate) before: Option<i64>,
    pub(crate) after: Option<i64>,
}

fn timestamp(micros: i64) -> wkt::Timestamp {
    let micros = NOON + micros;
    wkt::Timestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: i32::try_from(micros.rem_euclid(1_000_000) * 1000).unwrap(),
        ..Default::default()
    }
}

impl Fields {
    pub(crate) fn ticket(&self, id: TicketId) -> NewTicket {
        let named = |name: &&str| (*name).to_owned();
        let fields = openmatch::SearchFields {
            double_args: self.doubles.iter().map(|(name, value)| (named(name), *value)).collect(),
            string_args: self.strings.iter().map(|(name, value)| (named(name), named(value))).collect(),
            tags: self.tags.iter().map(named).collect(),
            ..Default::default()
        };
        let ticket = openmatch::Ticket {
            id: id.to_string(),
            search_fields: MessageField::some(fields),
            create_time: MessageField::some(timestamp(self.created)),
            ..Default::default()
        };
        let (created, ttl) = (Moment::from_micros(NOON + self.created), Duration::from_secs(600));
        NewTicket { id, created, ttl, data: ticket.encode_to_bytes() }
    }
}

impl Filters {
    /// Returns the pool as Open Match's clients send it.
    pub(crate) fn wire(&self) -> openmatch::Pool {
        openmatch::Pool {
            name: "pool".to_owned(),
            double_range_filters: self.ranges.iter().map(range_to_wire).collect(),
            string_equals_filters: self
                .strings
                .iter()
                .map(|(name, value)| openmatch::StringEqualsFilter {
                    string_arg: (*name).to_owned(),
                    value: (*value).to_owned(),
                    ..Default::default()
                })
                .collect(),
            tag_present_filters: self
                .tags
                .iter()
                .map(|tag| openmatch::TagPresentFilter { tag: (*tag).to_owned(), ..Default::default() })
                .collect(),
            created_before: self.before.map(timestamp).into(),
            created_after: self.after.map(timestamp).into(),
            ..Default::default()
        }
    }

    /// Returns the pool as the engine checks each ticket with it.
    fn plain(&self) -> Pool {
        let ranges = self.ranges.iter().map(|(field, min, max, exclude)| Filter::Double {
            field: (*field).to_owned(),
            min: *min,
            max: *max,
            bounds: match exclude {
                Exclude::NONE => Bounds::Closed,
                Exclude::MIN => Bounds::OpenMin,
                Exclude::MAX => Bounds::OpenMax,
                Exclude::BOTH => Bounds::Open,
            },
        });
        let strings = self
            .strings
            .iter()
            .map(|(field, value)| Filter::Text { field: (*field).to_owned(), value: (*value).to_owned() });
        let tags = self.tags.iter().map(|tag| Filter::Tag((*tag).to_owned()));
        let before = self.before.map(|micros| Filter::CreatedBefore(Moment::from_micros(NOON + micros)));
        let after = self.after.map(|micros| Filter::CreatedAfter(Moment::from_micros(NOON + micros)));
        let filters = ranges.chain(strings).chain(tags).chain(before).chain(after).collect();
        Pool { name: "pool".to_owned(), filters }
    }
}

fn range_to_wire((name, min, max, exclude): &RangeFilter) -> openmatch::DoubleRangeFilter {
    openmatch::DoubleRangeFilter {
        double_arg: (*name).to_owned(),
        min: *min,
        max: *max,
        exclude: (*exclude).into(),
        ..Default::default()
    }
}

/// Returns the ids of the tickets in the pool by a query for tickets, after comparing them with those of a query for ids.
pub(crate) async fn found(queries: &Queries, pool: openmatch::Pool) -> BTreeSet<String> {
    let pages = queries.query(Some(pool.clone()), QueryKind::Tickets).await.unwrap();
    let pages: Vec<_> = pages.try_collect().await.unwrap();
    let tickets = pages.iter().flat_map(|page| {
        let page = openmatch::QueryTicketsResponse::decode_from_slice(page).unwrap();
        assert!(!page.tickets.is_empty(), "an empty response");
        page.tickets.into_iter().map(|ticket| ticket.id)
    });
    let tickets: Vec<String> = tickets.collect();
    let ids = found_ids(queries, pool).await;
    assert_eq!(tickets.len(), ids.len(), "a ticket is in one response only");
    assert_eq!(tickets.into_iter().collect::<BTreeSet<String>>(), ids);
    ids
}

/// Returns the ids of the tickets in the pool by one query.
pub(crate) async fn found_ids(queries: &Queries, pool: openmatch::Pool) -> BTreeSet<String> {
    let pages = queries.query(Some(pool), QueryKind::Ids).await.unwrap();
    let pages: Vec<_> = pages.try_collect().await.unwrap();
    let ids = |page| openmatch::QueryTicketIdsResponse::decode_from_slice(page).unwrap().ids;
    pages.iter().flat_map(|page| ids(page)).collect()
}

/// Returns the backfills in the pool by one query.
pub(crate) async fn found_backfills(queries: &Queries, pool: openmatch::Pool) -> Vec<openmatch::Backfill> {
    let pages = queries.query(Some(pool), QueryKind::Backfills).await.unwrap();
    let pages: Vec<_> = pages.try_collect().await.unwrap();
    let read = |page| openmatch::QueryBackfillsResponse::decode_from_slice(page).unwrap().backfills;
    pages.iter().flat_map(|page| read(page)).collect()
}

/// Returns the ids of the active tickets in the pool, by a check of each ticket.
pub(crate) async fn scanned(tickets: &Tickets, pool: &Pool) -> BTreeSet<String> {
    let mut active = Vec::new();
    for id in tickets.list(100_000).await.unwrap().0 {
        if tickets.status(&id).await.unwrap().pending_since.is_none() {
            active.push(id);
        }
    }
    let read = tickets.read(&active).await.unwrap();
    let admitted = read.iter().filter(|ticket| pool.admits(ticket, Moment::default()));
    admitted.map(|ticket| ticket.id.to_string()).collect()
}

fn double(value: f64) -> Fields {
    Fields { doubles: vec![("mmr", value)], ..Fields::default() }
}

fn range(min: f64, max: f64, exclude: Exclude) -> Filters {
    Filters { ranges: vec![("mmr", min, max, exclude)], ..Filters::default() }
}

fn string(value: &'static str) -> Fields {
    Fields { strings: vec![("mode", value)], ..Fields::default() }
}

fn equals(value: &'static str) -> Filters {
    Filters { strings: vec![("mode", value)], ..Filters::default() }
}

fn tagged(tags: &[&'static str]) -> Fields {
    Fields { tags: tags.to_vec(), ..Fields::default() }
}

fn tags(tags: &[&'static str]) -> Filters {
    Filters { tags: tags.to_vec(), ..Filters::default() }
}

fn at(created: i64) -> Fields {
    Fields { created, ..Fields::default() }
}

fn between(after: Option<i64>, before: Option<i64>) -> Filters {
    Filters { after, before, ..Filters::default() }
}

fn all_of() -> Filters {
    Filters {
        ranges: vec![("mmr", 1.0, 2.0, Exclude::NONE), ("ping", 0.0, 50.0, Exclude::MAX)],
        strings: vec![("mode", "duel"), ("map", "ice")],
        tags: vec!["beta", "voice"],
        before: Some(10),
        after: Some(-10),
    }
}

fn ticket_of_all() -> Fields {
    Fields {
        doubles: vec![("mmr", 1.5), ("ping", 0.0)],
        strings: vec![("mode", "duel"), ("map", "ice")],
        tags: vec!["voice", "beta"],
        created: 0,
    }
}

fn without(change: impl FnOnce(&mut Fields)) -> Fields {
    let mut fields = ticket_of_all();
    change(&mut fields);
    fields
}

/// Cases with their outcome: whether the ticket is in the pool.
fn cases() -> Vec<(Fields, Filters, bool)> {
    use Exclude::{BOTH, MAX, MIN, NONE};
    let (nan, infinite) = (f64::NAN, f64::INFINITY);
    let mut cases = Vec::new();
    // A range, and values below, at the minimum, inside, at the maximum and above.
    for (exclude, expected) in [
        (NONE, [false, true, true, true, false]),
        (MIN, [false, false, true, true, false]),
        (MAX, [false, true, true, false, false]),
        (BOTH, [false, false, true, false, false]),
    ] {
        for (value, expected) in [0.999, 1.0, 1.5, 2.0, 2.001].into_iter().zip(expected) {
            cases.push((double(value), range(1.0, 2.0, exclude), expected));
        }
        // A range of one value, and a reversed one.
        cases.push((double(1.0), range(1.0, 1.0, exclude), exclude == NONE));
        cases.push((double(1.5), range(2.0, 1.0, exclude), false));
        // NaN as the value, the minimum, the maximum, and all of them.
        for (value, min, max) in
            [(nan, -infinite, infinite), (1.5, nan, 2.0), (1.5, 1.0, nan), (nan, nan, nan)]
        {
            cases.push((double(value), range(min, max, exclude), false));
        }
        // Both infinities as ends, with a number and with an infinity as the value.
        cases.push((double(0.0), range(-infinite, infinite, exclude), true));
        cases.push((double(infinite), range(-infinite, infinite, exclude), matches!(exclude, NONE | MIN)));
        cases.push((double(-infinite), range(-infinite, infinite, exclude), matches!(exclude, NONE | MAX)));
        cases.push((double(f64::MAX), range(1.0, infinite, exclude), true));
        cases.push((double(f64::MIN), range(-infinite, 1.0, exclude), true));
        // Both zeros are one number.
        cases.push((double(-0.0), range(0.0, 0.0, exclude), exclude == NONE));
        cases.push((double(0.0), range(-0.0, 1.0, exclude), matches!(exclude, NONE | MAX)));
        // The argument is missing: there are no others, others only, or others with the value.
        cases.push((Fields::default(), range(-infinite, infinite, exclude), false));
        let other = Fields { doubles: vec![("MMR", 1.5)], strings: vec![("mmr", "1.5")], ..tagged(&["mmr"]) };
        cases.push((other, range(1.0, 2.0, exclude), false));
    }
    cases.extend([
        (string("duel"), equals("duel"), true),
        (string("duel"), equals("Duel"), false),
        (string("duel"), equals("duels"), false),
        (string("duel"), equals(""), false),
        (string(""), equals(""), true),
        (string("ä"), equals("ä"), true),
        (string("2:ab"), equals("2:ab"), true),
        (Fields::default(), equals(""), false),
        (Fields::default(), equals("duel"), false),
        (tagged(&["duel", "mode"]), equals("duel"), false),
        (double(1.0), equals("duel"), false),
        (Fields { strings: vec![("Mode", "duel")], ..Fields::default() }, equals("duel"), false),
        (Fields { strings: vec![("modeduel", "")], ..Fields::default() }, equals("duel"), false),
        (Fields { strings: vec![("", "modeduel")], ..Fields::default() }, equals("duel"), false),
        (tagged(&["beta"]), tags(&["beta"]), true),
        (tagged(&["alpha", "beta"]), tags(&["beta"]), true),
        (tagged(&["beta", "beta"]), tags(&["beta"]), true),
        (tagged(&["alpha", "beta"]), tags(&["beta", "alpha"]), true),
        (tagged(&["alpha"]), tags(&["alpha", "beta"]), false),
        (tagged(&["Beta"]), tags(&["beta"]), false),
        (tagged(&["betas"]), tags(&["beta"]), false),
        (tagged(&[""]), tags(&[""]), true),
        (tagged(&[]), tags(&[""]), false),
        (tagged(&[]), tags(&["beta"]), false),
        (Fields { strings: vec![("beta", "beta")], ..Fields::default() }, tags(&["beta"]), false),
        // Times are strict on both sides.
        (at(0), between(None, Some(0)), false),
        (at(0), between(None, Some(1)), true),
        (at(1), between(None, Some(0)), false),
        (at(0), between(Some(0), None), false),
        (at(0), between(Some(-1), None), true),
        (at(-1), between(Some(0), None), false),
        (at(0), between(Some(-1), Some(1)), true),
        (at(0), between(Some(0), Some(1)), false),
        (at(0), between(Some(-1), Some(0)), false),
        (at(0), between(Some(1), Some(-1)), false),
        // A pool without filters contains everything.
        (Fields::default(), Filters::default(), true),
        (ticket_of_all(), Filters::default(), true),
        (double(nan), Filters::default(), true),
        // All filters must hold.
        (ticket_of_all(), all_of(), true),
        (Fields::default(), all_of(), false),
        (without(|ticket| ticket.doubles[0].1 = 2.5), all_of(), false),
        (without(|ticket| ticket.doubles[1].1 = 50.0), all_of(), false),
        (without(|ticket| ticket.doubles[1].1 = nan), all_of(), false),
        (without(|ticket| ticket.doubles.truncate(1)), all_of(), false),
        (without(|ticket| ticket.strings[0].1 = "team"), all_of(), false),
        (without(|ticket| ticket.strings.truncate(1)), all_of(), false),
        (without(|ticket| ticket.tags.truncate(1)), all_of(), false),
        (without(|ticket| ticket.created = 10), all_of(), false),
        (without(|ticket| ticket.created = -10), all_of(), false),
    ]);
    cases
}

#[tokio::test]
async fn index_and_plain_check_agree_with_the_rules_in_every_case() {
    let cases = cases();
    assert!(cases.len() >= 82, "{}", cases.len());
    for (fields, filters, expected) in cases {
        // Alone, and as one of many, so that the index chooses another way to find it.
        for others in [0, 40] {
            let tickets = Setup::memory().open().await;
            for number in 1..=others {
                let mut other = ticket_of_all();
                other.created = 100 + i64::try_from(number).unwrap();
                tickets.create(other.ticket(id(number))).await.unwrap();
            }
            tickets.create(fields.ticket(id(0))).await.unwrap();
            let name = id(0).to_string();
            let is_found = found(&tickets.queries(), filters.wire()).await.contains(&name);
            assert_eq!(is_found, expected, "index: {fields:?} in {filters:?}");
            let is_scanned = scanned(&tickets, &filters.plain()).await.contains(&name);
            assert_eq!(is_scanned, expected, "plain check: {fields:?} in {filters:?}");
        }
    }
}

/// A step of a property test. Numbers stand for tickets, modulo their count.
#[derive(Clone, Debug)]
enum Step {
    Create(Fields),
    Fetch(usize),
    Release(usize),
    Delete(usize),
    Deindex(usize),
    Assign(usize),
    AssignDirectly(usize),
    Claim(usize),
    ReleaseAll,
    Pass(u64),
    Query(Filters),
}

const NUMBERS: [f64; 10] =
    [f64::NAN, f64::NEG_INFINITY, f64::MIN, -1.0, -0.0, 0.0, f64::MIN_POSITIVE, 1.0, f64::MAX, f64::INFINITY];

fn number() -> impl Strategy<Value = f64> {
    proptest::sample::select(NUMBERS.to_vec())
}

fn word() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec!["", "a", "A", "b", "1:a"])
}

fn fields() -> impl Strategy<Value = Fields> {
    let doubles = proptest::collection::vec((word(), number()), 0..3);
    let strings = proptest::collection::vec((word(), word()), 0..3);
    let tags = proptest::collection::vec(word(), 0..4);
    (doubles, strings, tags, -3_i64..4).prop_map(|(doubles, strings, tags, created)| Fields {
        doubles,
        strings,
        tags,
        created,
    })
}

fn filters() -> impl Strategy<Value = Filters> {
    let exclude = proptest::sample::select(vec![Exclude::NONE, Exclude::MIN, Exclude::MAX, Exclude::BOTH]);
    let ranges = proptest::collection::vec((word(), number(), number(), exclude), 0..3);
    let strings = proptest::collection::vec((word(), word()), 0..2);
    let tags = proptest::collection::vec(word(), 0..2);
    let time = || proptest::option::weighted(0.3, -4_i64..5);
    (ranges, strings, tags, time(), time()).prop_map(|(ranges, strings, tags, before, after)| Filters {
        ranges,
        strings,
        tags,
        before,
        after,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => fields().prop_map(Step::Create),
        2 => (1..4_usize).prop_map(Step::Fetch),
        1 => any::<usize>().prop_map(Step::Release),
        1 => any::<usize>().prop_map(Step::Delete),
        1 => any::<usize>().prop_map(Step::Deindex),
        1 => any::<usize>().prop_map(Step::Assign),
        1 => any::<usize>().prop_map(Step::AssignDirectly),
        2 => any::<usize>().prop_map(Step::Claim),
        1 => Just(Step::ReleaseAll),
        2 => (0..90_u64).prop_map(Step::Pass),
        5 => filters().prop_map(Step::Query),
    ]
}

/// Runs the steps, and compares each query with a check of each ticket.
pub(crate) async fn run(tickets: &Tickets, steps: &[StepOf]) {
    let queries = tickets.queries();
    let mut count = 0;
    for StepOf(step) in steps {
        let pick = |number: &usize| id(number % usize::max(count, 1));
        match step {
            Step::Create(fields) => {
                tickets.create(fields.ticket(id(count))).await.unwrap();
                count += 1;
            }
            Step::Fetch(limit) => drop(tickets.take(*limit).await),
            Step::Release(number) => tickets.release(&[pick(number)]).await.unwrap(),
            Step::Delete(number) => drop(tickets.delete(&pick(number)).await.unwrap()),
            Step::Deindex(number) => tickets.deindex(&pick(number)).await.unwrap(),
            Step::Assign(number) => {
                drop(tickets.assign(&[group("match", vec![pick(number)])]).await.unwrap());
            }
            Step::AssignDirectly(number) => {
                let AssignmentGroup { tickets: members, encoded_match, .. } =
                    group("direct", vec![pick(number)]);
                let assignment = encoded_match.clone();
                let direct = DirectGroup { tickets: members, assignment, encoded_match };
                let done = tickets.assign_directly(&[direct]).await.unwrap();
                // A cancellation waits until it knows the match.
                tickets.notify(&done.batches, AfterNotify::Keep).await.unwrap();
            }
            Step::Claim(number) => {
                let claimed = vec![pick(number), pick(&number.wrapping_add(1))];
                let request = ClaimRequest {
                    number: None,
                    holder: Holder::default(),
                    backfill: None,
                    tickets: claimed,
                };
                drop(tickets.claim(&[request]).await.unwrap());
            }
            Step::ReleaseAll => drop(tickets.release_all().await.unwrap()),
            Step::Pass(seconds) => tickets.pass(Duration::from_secs(*seconds)),
            Step::Query(filters) => {
                let expected = scanned(tickets, &filters.plain()).await;
                assert_eq!(found(&queries, filters.wire()).await, expected, "{filters:?}");
            }
        }
    }
    assert_eq!(tickets.scans("foreign"), 0, "every change was recorded");
}

/// A step, for other modules that only pass it on.
#[derive(Clone, Debug)]
pub(crate) struct StepOf(Step);

/// Returns random steps for tests on servers, where the clock cannot be advanced.
pub(crate) fn random_steps(seed: u64, count: usize) -> Vec<StepOf> {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let bytes: Vec<u8> = seed.to_le_bytes().repeat(4);
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    (0..count).map(|_| StepOf(step().new_tree(&mut runner).unwrap().current())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn queries_return_what_a_check_of_each_ticket_returns(steps in proptest::collection::vec(step(), 1..60)) {
        let steps: Vec<StepOf> = steps.into_iter().map(StepOf).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { run(&Setup::memory().open().await, &steps).await });
    }
}
