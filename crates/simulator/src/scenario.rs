//! Scenarios: who comes when, and what they do.

use std::collections::HashMap;
use std::time::Duration;

use config::{Choice, Layers, Reader, Section};

/// All keys with their defaults and meanings.
pub const REFERENCE: &str = include_str!("scenario.toml");

/// The scenarios that are part of the program: name and text.
pub const BUILTIN: [(&str, &str); 3] = [
    ("launch-day", include_str!("../scenarios/launch-day.toml")),
    ("flash-sale", include_str!("../scenarios/flash-sale.toml")),
    ("ladder-evening", include_str!("../scenarios/ladder-evening.toml")),
];

const MOST_PLAYERS: u32 = 1_000_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// Who comes when, and what they do.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub players: u32,
    pub give_up: Duration,
    pub arrival: Arrival,
    pub habits: Habits,
    pub drop: DropPlan,
    pub matchmaking: MatchPlan,
    pub faults: FaultPlan,
}

/// How players arrive.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub curve: Curve,
    pub over: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    Constant,
    Ramp,
    Burst,
    Wave,
}

/// What is true of all players.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    pub on_more_devices: f64,
    pub devices: u32,
    pub away: f64,
    pub away_for: Duration,
    pub away_times: u32,
    pub thinking: Duration,
}

#[derive(Clone, Debug)]
pub struct DropPlan {
    pub share: f64,
    pub stock: u32,
    pub price: u32,
    pub currency: String,
    pub opens_after: f64,
    pub batch: u32,
    pub period: Duration,
    pub no_show: f64,
    pub no_payment: f64,
    pub reservation: Duration,
}

#[derive(Clone, Debug)]
pub struct MatchPlan {
    pub share: f64,
    /// None means the first queue that the gateway lists.
    pub queue: Option<String>,
    pub matches: u32,
    pub declines: f64,
    pub patience: Duration,
}

#[derive(Clone, Copy, Debug)]
pub struct FaultPlan {
    pub every: Duration,
    pub down_for: Duration,
}

impl Choice for Curve {
    const WORDS: &'static [(&'static str, Self)] =
        &[("constant", Self::Constant), ("ramp", Self::Ramp), ("burst", Self::Burst), ("wave", Self::Wave)];
}

impl Arrival {
    /// Returns when the player at `position` arrives, where 0 is the first and 1 the last.
    pub fn at(&self, position: f64) -> Duration {
        let share = match self.curve {
            Curve::Constant => position,
            // The rate grows from 0, so the number that has arrived grows with the square of time.
            Curve::Ramp => position.sqrt(),
            Curve::Burst => position.powi(4),
            Curve::Wave => {
                let turns = 3.0 * std::f64::consts::TAU;
                position + (turns * position).sin() * 0.9 / turns
            }
        };
        self.over.mul_f64(share.clamp(0.0, 1.0))
    }
}

/// Returns the text of a scenario with every key: the reference with the values of `text`, which has one key per line.
pub fn with_all_keys(text: &str) -> String {
    let values: HashMap<String, &str> =
        keyed_lines(text).filter_map(|(key, line)| Some((key?, line))).collect();
    let about = text.lines().take_while(|line| line.starts_with('#'));
    let lines = keyed_lines(REFERENCE)
        .map(|(key, line)| key.and_then(|key| values.get(&key).copied()).unwrap_or(line));
    about.chain(["#"]).chain(lines).map(|line| format!("{line}\n")).collect()
}

/// Returns each line with the key that it sets.
fn keyed_lines(text: &str) -> impl Iterator<Item = (Option<String>, &str)> {
    let mut table = "";
    text.lines().map(move |line| {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            table = name;
            return (None, line);
        }
        let name = line.split_once(" = ").filter(|_| !line.starts_with('#'));
        (name.map(|(name, _)| format!("{table}.{name}")), line)
    })
}

/// Returns the layers of a scenario: the reference alone. Add a file and flags.
pub fn layers() -> Layers {
    Layers::new(REFERENCE)
}

impl Section for Scenario {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            players: reader.get_within("players", 1..=MOST_PLAYERS),
            give_up: reader.get_within("give_up", Duration::from_secs(1)..=24 * HOUR),
            arrival: reader.section("arrival"),
            habits: reader.section("players_are"),
            drop: reader.section("drop"),
            matchmaking: reader.section("matchmaking"),
            faults: reader.section("faults"),
        }
    }
}

impl Section for Arrival {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self { curve: reader.get("curve"), over: reader.get_within("over", Duration::ZERO..=HOUR) }
    }
}

impl Section for Habits {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            on_more_devices: share(reader, "on_more_devices"),
            devices: reader.get_within("devices", 2..=16),
            away: share(reader, "away"),
            away_for: reader.get_within("away_for", Duration::ZERO..=HOUR),
            away_times: reader.get_within("away_times", 1..=100),
            thinking: reader.get_within("thinking", Duration::ZERO..=HOUR),
        }
    }
}

impl Section for DropPlan {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            share: share(reader, "share"),
            stock: reader.get_within("stock", 1..=MOST_PLAYERS),
            price: reader.get_within("price", 1..=1_000_000),
            currency: reader.get("currency"),
            opens_after: share(reader, "opens_after"),
            batch: reader.get_within("batch", 1..=10_000),
            period: reader.get_within("period", Duration::from_millis(250)..=HOUR),
            no_show: share(reader, "no_show"),
            no_payment: share(reader, "no_payment"),
            reservation: reader.get_within("reservation", Duration::from_secs(1)..=HOUR),
        }
    }
}

impl Section for MatchPlan {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            share: share(reader, "share"),
            queue: Some(reader.get::<String>("queue")).filter(|queue| !queue.is_empty()),
            matches: reader.get_within("matches", 1..=1_000),
            declines: share(reader, "declines"),
            patience: reader.get_within("patience", Duration::from_secs(1)..=HOUR),
        }
    }
}

impl Section for FaultPlan {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            every: reader.get_within("every", Duration::from_secs(1)..=HOUR),
            down_for: reader.get_within("down_for", Duration::from_millis(100)..=HOUR),
        }
    }
}

fn share(reader: &mut Reader<'_>, name: &str) -> f64 {
    reader.get_within(name, 0.0..=1.0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn builtin_scenarios_are_valid() {
        for (name, text) in BUILTIN {
            let loaded = config::load::<Scenario>(layers().with_file_text(Path::new(name), text));
            loaded.unwrap_or_else(|problems| panic!("{name}: {problems}"));
        }
    }

    /// The text that `--print` prints is the scenario, whatever the defaults are.
    #[test]
    fn text_with_all_keys_has_the_values_of_the_scenario() {
        let load = |layers| format!("{:?}", config::load::<Scenario>(layers).unwrap().config);
        for (name, text) in BUILTIN {
            let whole = with_all_keys(text);
            let printed = load(Layers::new(&whole));
            assert_eq!(printed, load(layers().with_file_text(Path::new(name), text)), "{name}");
            assert!(whole.starts_with(text.lines().next().unwrap()), "{whole}");
        }
        let sale = with_all_keys(BUILTIN[1].1);
        assert!(sale.contains("\nstock = 100\n") && !sale.contains("stock = 400"), "{sale}");
    }

    #[test]
    fn comments_name_the_flag_that_sets_a_key() {
        assert!(REFERENCE.contains("`--with KEY=VALUE`") && !REFERENCE.contains("--set"));
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let text = "players = 0\n[drop]\nshare = 2.0\nstok = 3\n";
        let problems =
            config::load::<Scenario>(layers().with_file_text(Path::new("my.toml"), text)).unwrap_err();
        let text = problems.to_string();
        for mistake in ["my.toml:1:1: players", "my.toml:3:1: drop.share", "my.toml:4:1: drop.stok"] {
            assert!(text.contains(mistake), "{mistake} in {text}");
        }
    }

    #[test]
    fn arrival_curves_start_at_zero_end_in_time_and_never_go_back() {
        for (_, curve) in Curve::WORDS {
            let arrival = Arrival { curve: *curve, over: Duration::from_secs(10) };
            let times: Vec<Duration> = (0..=100).map(|step| arrival.at(f64::from(step) / 100.0)).collect();
            assert_eq!(times[0], Duration::ZERO, "{curve:?}");
            assert!(times[100] >= Duration::from_millis(9_999), "{curve:?}");
            assert!(times.is_sorted(), "{curve:?}: {times:?}");
        }
    }
}
