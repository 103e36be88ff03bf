//! Settings of matchmaking.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::config::{ByteSize, Choice, Reader, Rejected, Secret, Section, Setting, Value};
use base::Clock;
use redis_store::RedisUrl;
use url::Url;
use webhook::Secrets;

use crate::engine::{Assigner, EngineConfig, Fifo, PluginError, Profile, StaticList, Webhook, WebhookConfig};
use crate::frontend::FrontendConfig;
use crate::model::{Bounds, Filter, Pool};
use crate::players::{QUEUE_FIELD, Queue};
use crate::store::Rules;

/// Settings of matchmaking.
#[derive(Clone, Debug)]
pub struct Config {
    pub rules: Rules,
    pub frontend: FrontendConfig,
    pub engine: EngineConfig,
    /// A Redis of their own for assignments.
    pub assignments_url: Option<RedisUrl>,
    /// A Redis from which tickets are read first.
    pub replica_url: Option<RedisUrl>,
    /// How long after its request an allocation that nobody settled is given back.
    pub abandon_after: Duration,
    /// The queue of give-back calls.
    pub abandoned: work_queue::Config,
    /// What players can ask for, by name.
    pub queues: BTreeMap<String, Queue>,
    profiles: BTreeMap<String, ProfileConfig>,
    assigners: BTreeMap<String, AssignerConfig>,
}

#[derive(Clone, Debug)]
struct ProfileConfig {
    players: u32,
    assigner: String,
    pools: BTreeMap<String, PoolConfig>,
}

#[derive(Clone, Debug)]
struct PoolConfig {
    filters: Vec<Filter>,
}

#[derive(Clone, Debug)]
struct AssignerConfig {
    kind: AssignerKind,
    addresses: Vec<String>,
    url: Option<Url>,
    abandon_url: Option<Url>,
    secrets: Option<Secrets>,
    /// Of one request.
    timeout: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AssignerKind {
    Static,
    Webhook,
}

impl Choice for AssignerKind {
    const WORDS: &'static [(&'static str, Self)] = &[("static", Self::Static), ("webhook", Self::Webhook)];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FunctionKind {
    Fifo,
}

impl Choice for FunctionKind {
    const WORDS: &'static [(&'static str, Self)] = &[("fifo", Self::Fifo)];
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
        let number = |reader: &mut Reader<'_>, name, max| reader.get_within(name, 1..=max) as usize;
        let config = Self {
            rules: Rules {
                key_prefix: reader.get("key_prefix"),
                coordination: reader.get("coordination"),
                pending_timeout: reader.get_within("pending_timeout", second..=day),
                assigned_ttl: reader.get_within("assigned_ttl", second..=day),
                check_tickets: reader.get("check_tickets"),
                max_unrecorded: reader.get::<ByteSize>("max_unrecorded").0,
            },
            assignments_url: reader.optional("assignments_url"),
            replica_url: reader.optional("replica_url"),
            frontend: FrontendConfig {
                ticket_ttl: reader.get_within("ticket_ttl", second..=day),
                max_ticket_ttl: reader.get_within("max_ticket_ttl", second..=day),
                max_ticket_size: reader.get::<ByteSize>("max_ticket_size").0.try_into().unwrap_or(usize::MAX),
                max_fields: number(reader, "max_fields", 10_000),
                max_watchers: number(reader, "max_watchers", 1_000_000),
                watch_check: reader
                    .get_within("watch_check", Duration::from_millis(100)..=Duration::from_secs(60)),
            },
            engine: EngineConfig {
                tick: reader.get_within("tick", Duration::from_millis(1)..=Duration::from_secs(60)),
                gather: reader.get_within("gather", Duration::ZERO..=second),
                fetch_limit: number(reader, "fetch_limit", 100_000),
                function_timeout: reader.get_within("function_timeout", Duration::from_millis(1)..=day),
                evaluator_timeout: reader.get_within("evaluator_timeout", Duration::from_millis(1)..=day),
                assigner_timeout: reader.get_within("assigner_timeout", Duration::from_millis(1)..=day),
            },
            abandon_after: reader.get_within("abandon_after", Duration::from_millis(100)..=day),
            abandoned: reader.section("abandoned"),
            queues: reader.tables("queues"),
            profiles: reader.tables("profiles"),
            assigners: reader.tables("assigners"),
        };
        config.check(reader);
        config
    }
}

impl Config {
    fn check(&self, reader: &mut Reader<'_>) {
        let frontend = &self.frontend;
        reader.check(
            &["ticket_ttl", "max_ticket_ttl"],
            frontend.ticket_ttl <= frontend.max_ticket_ttl,
            || "ticket_ttl must not be longer than max_ticket_ttl".to_owned(),
        );
        let engine = &self.engine;
        let tick = engine.function_timeout + engine.evaluator_timeout + engine.assigner_timeout;
        let keys = ["pending_timeout", "function_timeout", "evaluator_timeout", "assigner_timeout"];
        reader.check(&keys, tick < self.rules.pending_timeout, || {
            "pending_timeout must be longer than function_timeout, evaluator_timeout and assigner_timeout together, or a \
             tick that takes its time loses its tickets to another engine"
                .to_owned()
        });
        let allocates = self.assigners.values().any(|assigner| assigner.kind == AssignerKind::Webhook);
        reader.check(
            &["abandon_after", "assigner_timeout"],
            !allocates || engine.assigner_timeout < self.abandon_after,
            || {
                "abandon_after must be longer than assigner_timeout, or matches under way are given back"
                    .to_owned()
            },
        );
        for (name, assigner) in &self.assigners {
            let key = format!("assigners.{name}.timeout");
            let fits = assigner.timeout.is_none_or(|timeout| timeout <= engine.assigner_timeout);
            reader.check(&[&key, "assigner_timeout"], fits, || {
                format!("assigners.{name}.timeout must not be longer than assigner_timeout, which is for all attempts")
            });
        }
        reader.check(&["gather", "tick"], engine.gather <= engine.tick, || {
            "gather must not be longer than tick".to_owned()
        });
        for (name, url) in [("assignments_url", &self.assignments_url), ("replica_url", &self.replica_url)] {
            reader.check(&[name], url.as_ref().is_none_or(|url| !url.is_embedded()), || {
                "must be the URL of a Redis server; leave it out to use hot.url".to_owned()
            });
        }
        for (name, queue) in &self.queues {
            let key = format!("queues.{name}.ticket_ttl");
            let fits = queue.ticket_ttl.is_none_or(|ttl| ttl <= frontend.max_ticket_ttl);
            reader.check(&[&key, "max_ticket_ttl"], fits, || {
                format!("queues.{name}.ticket_ttl must not be longer than max_ticket_ttl")
            });
        }
        for (name, profile) in &self.profiles {
            let key = format!("profiles.{name}.assigner");
            reader.check(&[&key], self.assigners.contains_key(&profile.assigner), || {
                format!("there is no [matchmaking.assigners.{}]", profile.assigner)
            });
        }
    }

    /// With something to try, where nothing is configured: duels, played at an address that leads nowhere.
    pub fn or_demo(mut self) -> Self {
        if self.profiles.is_empty() {
            let assigner = "demo".to_owned();
            let profile = ProfileConfig { players: 2, assigner: assigner.clone(), pools: BTreeMap::new() };
            self.profiles.insert("duel".to_owned(), profile);
            let addresses = vec![format!("{}.demo.invalid:7777", StaticList::MATCH_ID)];
            let demo = AssignerConfig {
                kind: AssignerKind::Static,
                addresses,
                url: None,
                abandon_url: None,
                secrets: None,
                timeout: None,
            };
            self.assigners.insert(assigner, demo);
        }
        if self.queues.is_empty() {
            self.queues.insert("duel".to_owned(), Queue::default());
        }
        self
    }

    /// The assigners by their names, ready to run.
    pub fn assigners(&self, clock: &Clock) -> Result<BTreeMap<String, Arc<dyn Assigner>>, PluginError> {
        let build = |(name, assigner): (&String, &AssignerConfig)| {
            Ok((name.clone(), assigner.build(name, self.engine.assigner_timeout, clock)?))
        };
        self.assigners.iter().map(build).collect()
    }

    /// The profiles with their assigners, ready to run.
    pub fn profiles(
        &self,
        assigners: &BTreeMap<String, Arc<dyn Assigner>>,
    ) -> Result<Vec<Profile>, PluginError> {
        let profile = |(name, profile): (&String, &ProfileConfig)| {
            let assigner = assigners.get(&profile.assigner).cloned();
            Ok(Profile {
                name: name.as_str().into(),
                pools: profile.pools(),
                function: Arc::new(Fifo::new(profile.players as usize)),
                assigner: assigner.ok_or_else(|| format!("there is no assigner {}", profile.assigner))?,
            })
        };
        self.profiles.iter().map(profile).collect()
    }
}

impl ProfileConfig {
    /// Without any pool, everybody is in one.
    fn pools(&self) -> Vec<Arc<Pool>> {
        if self.pools.is_empty() {
            return vec![Arc::new(Pool { name: "everybody".to_owned(), filters: Vec::new() })];
        }
        let pool =
            |(name, pool): (&String, &PoolConfig)| Pool { name: name.clone(), filters: pool.filters.clone() };
        self.pools.iter().map(pool).map(Arc::new).collect()
    }
}

impl AssignerConfig {
    fn build(&self, name: &str, limit: Duration, clock: &Clock) -> Result<Arc<dyn Assigner>, PluginError> {
        Ok(match (self.kind, &self.url) {
            (AssignerKind::Webhook, Some(url)) => {
                let config = WebhookConfig {
                    name: name.into(),
                    url: url.clone(),
                    abandon_url: self.abandon_url.clone().unwrap_or_else(|| url.clone()),
                    secrets: self.secrets.clone(),
                    timeout: self.timeout.unwrap_or(limit / 2),
                    // It ends by itself, a little before the engine gives it up.
                    deadline: limit.mul_f64(0.95),
                };
                Arc::new(Webhook::new(config, clock.clone())?)
            }
            _ => Arc::new(StaticList::new(self.addresses.clone())),
        })
    }
}

impl Section for ProfileConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        let FunctionKind::Fifo = reader.get("function");
        Self {
            players: reader.get_within("players", 1..=1000),
            assigner: reader.required("assigner"),
            pools: reader.tables("pools"),
        }
    }
}

impl Section for Queue {
    fn read(reader: &mut Reader<'_>) -> Self {
        let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
        let queue = Self {
            beside_others: reader.get("beside_others"),
            numbers: reader.get("numbers"),
            strings: reader.get("strings"),
            tags: reader.get("tags"),
            cancel_when_gone: reader.optional("cancel_when_gone"),
            ticket_ttl: reader.optional("ticket_ttl"),
        };
        reader.check(&["strings"], queue.strings.iter().all(|name| name != QUEUE_FIELD), || {
            format!("{QUEUE_FIELD:?} is the name of the queue itself: players cannot set it")
        });
        for (name, length) in [("cancel_when_gone", queue.cancel_when_gone), ("ticket_ttl", queue.ticket_ttl)]
        {
            reader.check(&[name], length.is_none_or(|length| (second..=day).contains(&length)), || {
                "must be from 1s to 1d".to_owned()
            });
        }
        queue
    }
}

impl Section for PoolConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self { filters: reader.get("filters") }
    }
}

impl Section for AssignerConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        let secret: Option<Secret> = reader.optional("secret");
        let secrets = secret.as_ref().map(Secrets::from_text).transpose();
        if let Err(bad) = &secrets {
            reader.check(&["secret"], false, || bad.to_string());
        }
        let config = Self {
            kind: reader.get("kind"),
            addresses: reader.optional("addresses").unwrap_or_default(),
            url: reader.optional("url"),
            abandon_url: reader.optional("abandon_url"),
            timeout: reader.optional("timeout"),
            secrets: secrets.unwrap_or_default(),
        };
        let least = Duration::from_millis(1);
        reader.check(&["timeout"], config.timeout.is_none_or(|timeout| timeout >= least), || {
            "must be at least 1ms".to_owned()
        });
        match config.kind {
            AssignerKind::Static => reader.check(&["addresses"], !config.addresses.is_empty(), || {
                "a static assigner needs at least one address".to_owned()
            }),
            AssignerKind::Webhook => reader.check(&["url"], config.url.is_some(), || {
                "a webhook assigner needs the url of the service to ask".to_owned()
            }),
        }
        config
    }
}

impl Setting for Filter {
    fn expected() -> String {
        "a filter such as \"mmr in [1000, 2000)\", \"mode = ranked\", \"tag beta\", \"waited >= 10s\" or \"waited <= 1m\""
            .to_owned()
    }

    fn parse(value: &Value) -> Result<Self, Rejected> {
        let text = String::parse(value)?;
        parse_filter(text.trim()).ok_or_else(Rejected::default)
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }
}

fn parse_filter(text: &str) -> Option<Filter> {
    let duration = |text: &str| Duration::parse(&Value::Text(text.trim().to_owned())).ok();
    if let Some(wait) = text.strip_prefix("waited >=") {
        return duration(wait).map(Filter::MinWait);
    }
    if let Some(wait) = text.strip_prefix("waited <=") {
        return duration(wait).map(Filter::MaxWait);
    }
    if let Some(tag) = text.strip_prefix("tag ") {
        return Some(Filter::Tag(tag.trim().to_owned()));
    }
    let (field, filter) =
        match text.split_once(" in ").filter(|(_, range)| range.trim().starts_with(['[', '('])) {
            Some((field, range)) => (field, Range::parse(range.trim())?.of(field.trim())),
            None => {
                let (field, value) = text.split_once('=')?;
                let (field, value) = (field.trim(), value.trim());
                // `==` is something else.
                let filter = (!value.starts_with('='))
                    .then(|| Filter::Text { field: field.to_owned(), value: value.to_owned() });
                (field, filter?)
            }
        };
    let odd = |c: char| c.is_whitespace() || "<>=!()[],".contains(c);
    (!field.trim().is_empty() && !field.trim().contains(odd)).then_some(filter)
}

struct Range {
    min: f64,
    max: f64,
    bounds: Bounds,
}

impl Range {
    fn parse(text: &str) -> Option<Self> {
        let bounds = match (text.chars().next()?, text.chars().last()?) {
            ('[', ']') => Bounds::Closed,
            ('(', ']') => Bounds::OpenMin,
            ('[', ')') => Bounds::OpenMax,
            ('(', ')') => Bounds::Open,
            _ => return None,
        };
        let (min, max) = text.get(1..text.len() - 1)?.split_once(',')?;
        let number = |text: &str| text.trim().parse::<f64>().ok();
        let (min, max) = (number(min)?, number(max)?);
        // Not a number is not less than anything.
        (min <= max).then_some(Self { min, max, bounds })
    }

    fn of(self, field: &str) -> Filter {
        Filter::Double { field: field.to_owned(), min: self.min, max: self.max, bounds: self.bounds }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ::config::{Layers, Loaded, load};

    use super::*;

    /// A section that has nothing but queues.
    #[derive(Debug)]
    struct Queues(BTreeMap<String, Queue>);

    impl Section for Queues {
        fn read(reader: &mut Reader<'_>) -> Self {
            Self(reader.tables("queues"))
        }
    }

    /// A section that has nothing but assigners.
    #[derive(Debug)]
    struct Assigners(BTreeMap<String, AssignerConfig>);

    impl Section for Assigners {
        fn read(reader: &mut Reader<'_>) -> Self {
            Self(reader.tables("assigners"))
        }
    }

    fn assigner(text: &str) -> Result<AssignerConfig, String> {
        let reference = "[assigners.NAME]\nkind = \"static\"\n# addresses = []\n# url = \"http://x\"\n# abandon_url = \"http://x\"\n# timeout = \"5s\"\n# secret = \"x\"\n";
        let text = format!("[assigners.fleet]\nkind = \"webhook\"\nurl = \"http://10.0.0.1/\"\n{text}");
        let loaded = load(Layers::new(reference).with_file_text(Path::new("play.toml"), &text));
        let assigners = loaded.map(|Loaded { config: Assigners(assigners), .. }| assigners);
        assigners.map(|assigners| assigners["fleet"].clone()).map_err(|problems| problems.to_string())
    }

    fn queues(text: &str) -> Result<BTreeMap<String, Queue>, String> {
        let reference = "[queues.NAME]\nbeside_others = false\nnumbers = []\nstrings = []\ntags = []\n\
                         # cancel_when_gone = \"30s\"\n# ticket_ttl = \"10m\"\n";
        let loaded = load(Layers::new(reference).with_file_text(Path::new("play.toml"), text));
        loaded.map(|Loaded { config: Queues(queues), .. }| queues).map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_secret_that_cannot_be_read_is_refused_and_not_shown() {
        assert!(assigner("").unwrap().secrets.is_none());
        for good in ["any text", "whsec_dGhpcyBpcyBub3QgcmVhbGx5IGEgc2VjcmV0"] {
            assert!(assigner(&format!("secret = {good:?}")).unwrap().secrets.is_some(), "{good}");
        }
        for (bad, why) in [("whsec_hush!", "must be base64"), ("whsec_aHVzaA==", "must be 24 to 64 bytes")] {
            let problem = assigner(&format!("secret = {bad:?}")).unwrap_err();
            assert!(problem.contains("assigners.fleet.secret: ") && problem.contains(why), "{problem}");
            assert!(!problem.contains("hush") && !problem.contains("aHVz"), "{problem}");
        }
    }

    #[test]
    fn queues_are_read_with_what_players_may_set() {
        let text = "[queues.duel]\n[queues.ranked]\nbeside_others = true\nnumbers = [\"mmr\"]\n\
                    strings = [\"region\"]\ntags = [\"beta\"]\ncancel_when_gone = \"20s\"\nticket_ttl = \"5m\"\n";
        let queues = queues(text).unwrap();
        assert_eq!(queues["duel"], Queue::default());
        let ranked = Queue {
            beside_others: true,
            numbers: vec!["mmr".to_owned()],
            strings: vec!["region".to_owned()],
            tags: vec!["beta".to_owned()],
            cancel_when_gone: Some(Duration::from_secs(20)),
            ticket_ttl: Some(Duration::from_secs(300)),
        };
        assert_eq!(queues["ranked"], ranked);
    }

    #[test]
    fn what_a_queue_cannot_be_is_refused() {
        for (bad, why) in [
            ("strings = [\"queue\"]", "the name of the queue itself"),
            ("cancel_when_gone = \"10ms\"", "from 1s to 1d"),
            ("ticket_ttl = \"2d\"", "from 1s to 1d"),
        ] {
            let problems = queues(&format!("[queues.duel]\n{bad}\n")).unwrap_err();
            assert!(problems.contains(why), "{bad}: {problems}");
        }
    }

    #[test]
    fn filters_are_read_as_they_are_shown() {
        for text in [
            "mmr in [1000, 2000)",
            "mmr in (-5, 0.5]",
            "mmr in [1, 1]",
            "mmr in (0, inf)",
            "mode = ranked",
            "mode = ",
            "tag beta",
            "waited >= 10s",
            "waited <= 1m",
        ] {
            let filter = Filter::parse(&Value::Text(text.to_owned())).unwrap();
            assert_eq!(filter.show(), format!("{text:?}"));
        }
        for bad in
            ["", "mmr", "mmr in 1, 2", "mmr in [1]", "mmr in [a, 2]", "mmr in [nan, 2]", "waited >= soon"]
        {
            assert!(Filter::parse(&Value::Text(bad.to_owned())).is_err(), "{bad:?}");
        }
    }
}
