//! The terms of a drop: what operators configure.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use base::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::place::Lane;
use super::{stored, text};

/// How many players one admission cycle may target.
pub const MAX_BATCH: u32 = 10_000;
pub const MAX_LANES: usize = Lane::MAX as usize;
const MAX_CAPACITY: u32 = 1_000_000;
const MAX_PER_PLAYER: u32 = 1_000;
const MAX_MESSAGE: usize = 1_000;
/// The length of the columns that hold them.
pub(crate) const MAX_RESOURCE: usize = 255;
const MAX_ROLE: usize = 100;

/// The terms under which a drop sells and admits. Operators set them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = DropTerms)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// The price of one unit.
    pub price: Price,
    /// How many units one player may buy.
    pub per_player: u32,
    /// Who may join. Without it, anyone.
    #[serde(default, skip_serializing_if = "Audience::is_anyone")]
    #[schema(value_type = AudienceSchema)]
    pub who: Audience,
    /// Entitlements that put a player into a priority lane, the best lane first. Players without any of them are behind.
    #[serde(default)]
    pub lanes: Vec<String>,
    pub admission: AdmissionTerms,
    #[serde(default)]
    pub order: LineOrder,
    /// What admissions do while Redis is unreachable.
    #[serde(default)]
    pub without_redis: WithoutRedis,
    /// What the drop does once all its units are sold.
    #[serde(default)]
    pub when_sold_out: WhenSoldOut,
    /// How long reserved units are held.
    #[serde(rename = "reservation_ms", with = "millis")]
    #[schema(value_type = u64)]
    pub reservation: Duration,
    /// Shown to players who wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = DropPrice)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// In the smallest unit of the currency.
    pub amount: i64,
    /// ISO 4217: three capital letters.
    pub currency: String,
}

/// How players are admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = DropAdmission)]
#[serde(deny_unknown_fields)]
pub struct AdmissionTerms {
    /// How many players should arrive per period.
    pub batch: u32,
    #[serde(rename = "period_ms", with = "millis", default = "default_period")]
    #[schema(value_type = u64, default = 3_000)]
    pub period: Duration,
    /// How many players may be inside at once.
    pub capacity: u32,
    /// How long an admission lasts, counted from when it was given, if the player arrives.
    #[serde(rename = "lifetime_ms", with = "millis")]
    #[schema(value_type = u64)]
    pub lifetime: Duration,
    /// How soon a player must arrive. An admission that is unused by then expires.
    #[serde(rename = "arrive_within_ms", with = "millis")]
    #[schema(value_type = u64)]
    pub arrive_within: Duration,
}

/// Who may join a drop. In JSON [`Anyone`](Self::Anyone) is an omitted field; the text `"anyone"`, which older versions wrote, is read too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Audience {
    #[default]
    Anyone,
    /// Players with this role.
    Role(String),
    /// Players whose account has this resource.
    Owns(String),
}

/// Who may join a drop: exactly one of these.
// Not a choice of two types, which generated clients in Java cannot tell apart when they read it.
#[derive(ToSchema)]
#[schema(as = DropAudience, min_properties = 1, max_properties = 1)]
#[expect(dead_code, reason = "used only for the OpenAPI document")]
struct AudienceSchema {
    /// Players with this role.
    role: Option<String>,
    /// Players whose account has this resource.
    owns: Option<String>,
}

/// The order of players who join before the drop opens. Players who join later are behind them, first come, first served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = DropLineOrder)]
#[serde(rename_all = "snake_case")]
pub enum LineOrder {
    #[default]
    FirstCome,
    /// Drawn with a seed. Its hash is published beforehand, the seed itself when the drop opens.
    Shuffle,
}

/// What admissions do while Redis is unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = DropWithoutRedis)]
#[serde(rename_all = "snake_case")]
pub enum WithoutRedis {
    /// They continue from SQL; positions are unknown.
    #[default]
    Continue,
    /// No player is admitted until the line is back.
    Pause,
}

/// What a drop does once all its units are sold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = DropWhenSoldOut)]
#[serde(rename_all = "snake_case")]
pub enum WhenSoldOut {
    /// It closes, and players who wait are notified. A later refund does not reopen it.
    #[default]
    Close,
    /// It stays open: refunds or an operator may make units available again.
    StayOpen,
}

/// One invalid field of terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    pub field: &'static str,
    pub what: String,
}

/// All invalid fields of terms. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(pub Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, Mistake { field, what }) in self.0.iter().enumerate() {
            let separator = if n == 0 { "" } else { "; " };
            write!(f, "{separator}{field} {what}")?;
        }
        Ok(())
    }
}

impl AdmissionTerms {
    /// Returns when an unused admission expires: `arrive_within` after it was given.
    pub(crate) fn unused_expiry(&self, entered_at: Timestamp) -> Timestamp {
        entered_at.after(self.arrive_within)
    }

    /// Returns when a used admission expires: `lifetime` after it was given, whenever the player arrives.
    pub(crate) fn used_expiry(&self, entered_at: Timestamp) -> Timestamp {
        entered_at.after(self.lifetime.max(self.arrive_within))
    }
}

impl Audience {
    const fn is_anyone(&self) -> bool {
        matches!(self, Self::Anyone)
    }
}

const fn default_period() -> Duration {
    Duration::from_secs(3)
}

impl Terms {
    /// Returns the lane of a player: the first one whose entitlement `owns` confirms, or the one behind them all.
    pub(crate) fn lane(&self, owns: impl Fn(&str) -> bool) -> Lane {
        let number = self.lanes.iter().position(|resource| owns(resource)).unwrap_or(self.lanes.len());
        Lane::new(number).unwrap_or(Lane::LAST)
    }

    /// Checks the terms. Returns all mistakes at once.
    pub fn check(&self) -> Result<(), Mistakes> {
        let mut mistakes = MistakeList::default();
        let Self { price, per_player, who, lanes, admission, reservation, message, .. } = self;
        mistakes.require(price.amount >= 0, "price.amount", "must not be negative");
        let is_currency = price.currency.len() == 3 && price.currency.bytes().all(|c| c.is_ascii_uppercase());
        mistakes.require(is_currency, "price.currency", "must be three capital letters, such as EUR");
        mistakes.require_range("per_player", *per_player, 1..=MAX_PER_PLAYER);
        match who {
            Audience::Anyone => {}
            Audience::Role(role) => mistakes.require_text("who.role", role, MAX_ROLE),
            Audience::Owns(resource) => mistakes.require_text("who.owns", resource, MAX_RESOURCE),
        }
        mistakes.require(lanes.len() <= MAX_LANES, "lanes", &format!("must be at most {MAX_LANES}"));
        lanes.iter().for_each(|resource| mistakes.require_text("lanes", resource, MAX_RESOURCE));
        let is_unique = lanes.iter().collect::<BTreeSet<_>>().len() == lanes.len();
        mistakes.require(is_unique, "lanes", "must not name an entitlement twice");
        let AdmissionTerms { batch, period, capacity, lifetime, arrive_within } = admission;
        mistakes.require_range("admission.batch", *batch, 1..=MAX_BATCH);
        mistakes.require_range("admission.capacity", *capacity, 1..=MAX_CAPACITY);
        mistakes.require_duration("admission.period_ms", *period, Duration::from_millis(100), HOUR);
        mistakes.require_duration("admission.lifetime_ms", *lifetime, SECOND, DAY);
        mistakes.require_duration("admission.arrive_within_ms", *arrive_within, SECOND, DAY);
        let fits = arrive_within <= lifetime;
        mistakes.require(fits, "admission.arrive_within_ms", "must not be longer than admission.lifetime_ms");
        mistakes.require_duration("reservation_ms", *reservation, SECOND, DAY);
        let is_short = message.as_ref().is_none_or(|text| text.chars().count() <= MAX_MESSAGE);
        mistakes.require(is_short, "message", &format!("must have at most {MAX_MESSAGE} characters"));
        if mistakes.0.is_empty() { Ok(()) } else { Err(Mistakes(mistakes.0)) }
    }
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// Collects the mistakes of a check.
#[derive(Default)]
struct MistakeList(Vec<Mistake>);

impl MistakeList {
    fn require(&mut self, is_valid: bool, field: &'static str, what: &str) {
        if !is_valid {
            self.0.push(Mistake { field, what: what.to_owned() });
        }
    }

    fn require_range(&mut self, field: &'static str, value: u32, range: std::ops::RangeInclusive<u32>) {
        let what = format!("must be {} to {}, not {value}", range.start(), range.end());
        self.require(range.contains(&value), field, &what);
    }

    fn require_duration(&mut self, field: &'static str, value: Duration, least: Duration, most: Duration) {
        let what =
            format!("must be {} to {}, not {}", least.as_millis(), most.as_millis(), value.as_millis());
        self.require((least..=most).contains(&value), field, &what);
    }

    fn require_text(&mut self, field: &'static str, text: &str, max: usize) {
        if let Err(what) = text::check(text, max) {
            self.0.push(Mistake { field, what });
        }
    }
}

/// Durations as whole milliseconds.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

impl Terms {
    pub(crate) fn to_stored(&self) -> Result<String, serde_json::Error> {
        stored::write(self)
    }

    pub(crate) fn from_stored(text: &str) -> Result<Self, serde_json::Error> {
        stored::read(text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn terms() -> Terms {
        let terms = json!({
            "price": {"amount": 4_999, "currency": "EUR"},
            "per_player": 2,
            "who": {"owns": "founder"},
            "lanes": ["gold", "silver"],
            "admission": {"batch": 50, "capacity": 500, "lifetime_ms": 600_000, "arrive_within_ms": 60_000},
            "order": "shuffle",
            "reservation_ms": 300_000,
        });
        serde_json::from_value(terms).unwrap()
    }

    #[test]
    fn omitted_fields_have_defaults() {
        let terms = terms();
        assert_eq!(terms.check(), Ok(()));
        assert_eq!(terms.admission.period, Duration::from_secs(3));
        assert_eq!((terms.without_redis, terms.message.as_deref()), (WithoutRedis::Continue, None));
        assert_eq!(terms.when_sold_out, WhenSoldOut::Close);
        assert_eq!(terms.who, Audience::Owns("founder".to_owned()));
    }

    #[test]
    fn terms_round_trip_through_their_column() {
        let terms = terms();
        let stored = terms.to_stored().unwrap();
        assert!(stored.starts_with(r#"{"version":"1","#), "{stored}");
        assert_eq!(Terms::from_stored(&stored).unwrap(), terms);
        assert!(Terms::from_stored(&stored.replacen("\"1\"", "\"2\"", 1)).is_err());
    }

    #[test]
    fn anyone_is_an_omitted_field_and_is_also_read_as_a_word() {
        let anyone = Terms { who: Audience::Anyone, ..terms() };
        let mut json = serde_json::to_value(&anyone).unwrap();
        assert_eq!(json.get("who"), None);
        json["who"] = json!("anyone");
        assert_eq!(serde_json::from_value::<Terms>(json).unwrap(), anyone);
        assert_eq!(serde_json::to_value(terms()).unwrap()["who"], json!({"owns": "founder"}));
    }

    #[test]
    fn check_returns_all_mistakes_at_once() {
        let wrong = Terms {
            price: Price { amount: -1, currency: "euro".to_owned() },
            per_player: 0,
            who: Audience::Role(String::new()),
            lanes: vec!["gold".to_owned(); 16],
            admission: AdmissionTerms {
                batch: MAX_BATCH + 1,
                period: Duration::from_millis(1),
                capacity: 0,
                lifetime: SECOND,
                arrive_within: 2 * SECOND,
            },
            order: LineOrder::FirstCome,
            without_redis: WithoutRedis::Pause,
            when_sold_out: WhenSoldOut::StayOpen,
            reservation: 2 * DAY,
            message: Some("x".repeat(MAX_MESSAGE + 1)),
        };
        let Mistakes(mistakes) = wrong.check().unwrap_err();
        let fields: Vec<_> = mistakes.iter().map(|mistake| mistake.field).collect();
        assert_eq!(
            fields,
            [
                "price.amount",
                "price.currency",
                "per_player",
                "who.role",
                "lanes",
                "lanes",
                "admission.batch",
                "admission.capacity",
                "admission.period_ms",
                "admission.arrive_within_ms",
                "reservation_ms",
                "message",
            ]
        );
    }

    #[test]
    fn names_with_surrounding_spaces_are_refused() {
        let wrong = Terms {
            who: Audience::Owns("founder ".to_owned()),
            lanes: vec!["gold".to_owned(), " silver".to_owned()],
            ..terms()
        };
        let Mistakes(mistakes) = wrong.check().unwrap_err();
        let fields: Vec<_> = mistakes.iter().map(|mistake| mistake.field).collect();
        assert_eq!(fields, ["who.owns", "lanes"]);
        assert!(mistakes.iter().all(|mistake| mistake.what.contains("begin or end with a space")));
    }

    #[test]
    fn player_gets_the_best_lane_they_own() {
        let lane = |owned: &[&str]| terms().lane(|resource| owned.contains(&resource)).number();
        assert_eq!([lane(&["silver", "gold"]), lane(&["silver"]), lane(&["bronze"])], [0, 1, 2]);
    }
}
