//! The settings of a process: the reference, the sections of all parts, and the checks across sections.

use std::collections::BTreeMap;
use std::time::Duration;

use config::{InvalidValue, Layers, Reader, RenamedKey, Section, Setting, Value};
use http_server::{ConfiguredCaller, Right};
use service::{ServiceApiConfig, StoreConfigs, StreamConfig};

use crate::services::SERVICES;

/// The commented reference: every key with its default and its meaning.
pub const REFERENCE: &str = include_str!("reference.toml");

/// Keys that were renamed. An old key is refused with an error that names the new one.
const RENAMED: &[RenamedKey] = &[
    ("hot.url", "redis.url"),
    ("hot.timeout", "redis.timeout"),
    ("listen.internal", "listen.service_api"),
    ("entitlement.idempotency_retention", "service_api.idempotency_retention"),
    ("matchmaking.queues.NAME.beside_others", "matchmaking.queues.NAME.allow_other_queues"),
];

/// Starts the layers of a configuration with the defaults of the reference.
pub(crate) fn reference_layers() -> Layers {
    Layers::new(REFERENCE).with_renamed(RENAMED)
}

/// The settings of a process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The settings that services see: roles, listeners, stores, and those of each service.
    pub shared: service::Settings,
    pub locks: hierlock::Options,
    /// The services that may call the service API, by name.
    pub callers: BTreeMap<String, ConfiguredCaller>,
    pub lifecycle: runtime::lifecycle::Config,
    pub check_interval: Duration,
    pub telemetry: runtime::telemetry::Config,
}

impl Section for Settings {
    fn read(reader: &mut Reader<'_>) -> Self {
        let (roles, listen) = (reader.get("process.roles"), reader.section("listen"));
        let stores = StoreConfigs {
            db: reader.section("db"),
            redis_store: reader.section("redis"),
            bus: reader.section("bus"),
            live_prefix: reader.get("notification.key_prefix"),
        };
        let mut settings = Self {
            shared: service::Settings::new(roles, listen, stores),
            locks: reader.section::<Locks>("locks").0,
            callers: read_callers(reader),
            lifecycle: reader.section("lifecycle"),
            check_interval: reader
                .get_within("lifecycle.check_interval", Duration::from_millis(100)..=Duration::from_secs(60)),
            telemetry: reader.section("telemetry"),
        };
        settings.shared.put(StreamConfig {
            heartbeat: reader.get_within(
                "gateway.stream_heartbeat",
                Duration::from_millis(100)..=Duration::from_secs(86_400),
            ),
        });
        settings.shared.put(ServiceApiConfig {
            idempotency_retention: reader.get_within(
                "service_api.idempotency_retention",
                Duration::from_secs(60)..=Duration::from_secs(365 * 86_400),
            ),
        });
        SERVICES.iter().for_each(|service| service.read_settings(reader, &mut settings.shared));
        settings.check_embedded(reader);
        settings.check_callers(reader);
        SERVICES.iter().for_each(|service| service.check_settings(reader, &settings.shared, SERVICES));
        settings
    }
}

impl Settings {
    /// Refuses an embedded store if another process may need it: it lives inside one process.
    fn check_embedded(&self, reader: &mut Reader<'_>) {
        let service::Settings { roles, stores, .. } = &self.shared;
        let one_process = stores.db.url.is_embedded();
        // Only the lock on the SQLite file keeps a second process from starting.
        for (key, embedded) in
            [("redis.url", stores.redis_store.url.is_embedded()), ("bus.url", stores.bus.url.is_embedded())]
        {
            reader.check(&[key, "db.url"], one_process || !embedded, || {
                "memory: serves one process, but several processes may share the database server; set this to the URL of \
                 a server too, or db.url to a sqlite: file"
                    .to_owned()
            });
        }
        reader.check(&["process.roles"], roles.is_all() || !one_process, || {
            "the database is a sqlite: file, so this process is the only one and must run all roles; leave it at \
             [\"all\"], or set db.url, redis.url and bus.url to the URLs of servers"
                .to_owned()
        });
    }
}

impl Settings {
    /// Refuses a token that two callers share: the token identifies the caller.
    fn check_callers(&self, reader: &mut Reader<'_>) {
        let mut known = BTreeMap::new();
        for (name, operator) in &self.shared.get::<operators::Config>().operators {
            let same = self.callers.iter().find(|(_, caller)| caller.token_hash == operator.token_hash);
            if let Some((service, _)) = same {
                let keys = [format!("services.{service}.token_hash"), format!("operators.{name}.token_hash")];
                reader.check(&[&keys[0], &keys[1]], false, || {
                    "a service and an operator have the same token".to_owned()
                });
            }
        }
        for (name, caller) in &self.callers {
            if let Some(other) = known.insert(caller.token_hash.to_string(), name) {
                let keys = [format!("services.{other}.token_hash"), format!("services.{name}.token_hash")];
                reader.check(&[&keys[0], &keys[1]], false, || "two services have the same token".to_owned());
            }
        }
    }
}

fn read_callers(reader: &mut Reader<'_>) -> BTreeMap<String, ConfiguredCaller> {
    let tables: BTreeMap<String, CallerTable> = reader.tables("services");
    tables.into_iter().map(|(name, CallerTable(caller))| (name, caller)).collect()
}

/// A table of `services`: one caller of the service API.
struct CallerTable(ConfiguredCaller);

impl Section for CallerTable {
    fn read(reader: &mut Reader<'_>) -> Self {
        let token_hash = reader.required("token_hash");
        let may: Vec<DeclaredRight> = reader.get("may");
        Self(ConfiguredCaller {
            token_hash,
            may: may.into_iter().map(|DeclaredRight(right)| right).collect(),
        })
    }
}

/// A right that one of the services in this program declares.
pub(crate) struct DeclaredRight(pub(crate) Right);

impl Setting for DeclaredRight {
    fn expected() -> String {
        let words = SERVICES.rights().into_iter().map(|right| format!("{:?}", right.word()));
        format!("one of {}", words.collect::<Vec<_>>().join(", "))
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let word = String::parse(value)?;
        let right = SERVICES.rights().into_iter().find(|right| right.word() == word);
        right.map(Self).ok_or_else(InvalidValue::default)
    }

    fn show(&self) -> String {
        format!("{:?}", self.0.word())
    }
}

/// The section `locks`.
struct Locks(hierlock::Options);

impl Section for Locks {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self(hierlock::Options {
            buckets: reader.get_within("buckets", 1..=100_000_000),
            wait_timeout: reader
                .get_within("wait_timeout", Duration::from_millis(100)..=Duration::from_secs(3600)),
            max_connections: reader.get_within("max_connections", 1..=10_000),
            heartbeat: reader.get_within("heartbeat", Duration::from_secs(1)..=Duration::from_secs(300)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use config::{Loaded, Problems, env_name, reference_keys, reference_with_all_keys};

    use super::*;

    fn load(text: &str) -> Result<Loaded<Settings>, Problems> {
        config::load(reference_layers().with_file_text(Path::new("play.toml"), text))
    }

    #[test]
    fn reference_lists_exactly_the_keys_that_are_read() {
        // Sets every key, so that the keys of tables that users name are read as well.
        let Loaded { effective, .. } = load(&reference_with_all_keys(REFERENCE)).unwrap();
        let read: BTreeSet<&str> = effective.reference_keys().collect();
        let keys = reference_keys(REFERENCE);
        let documented: BTreeSet<&str> = keys.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(read, documented);
        let variables: BTreeSet<String> = effective.keys().map(env_name).collect();
        assert_eq!(variables.len(), read.len(), "two keys have the same environment variable");
    }

    /// Every key that may hold a secret has a second one that names its file, and no other key has.
    #[test]
    fn every_secret_can_be_read_from_a_file() {
        let all = reference_with_all_keys(REFERENCE);
        let Loaded { effective, .. } = load(&all).unwrap();
        let secrets: BTreeSet<&str> = effective.secrets().collect();
        let few = [
            "db.url",
            "identity.client_secret",
            "gateway.session.keys",
            "drops.keys",
            "drops.payments.secrets",
        ];
        assert!(secrets.len() > 12 && few.iter().all(|key| secrets.contains(key)), "{secrets:?}");
        for key in effective.keys() {
            let variable = env_name(&format!("{key}_file"));
            let layers = reference_layers().with_file_text(Path::new("play.toml"), &all);
            let layers = layers.with_env([(variable.clone(), "/nowhere/secret".to_owned())]);
            let problems = config::load::<Settings>(layers).unwrap_err().to_string();
            let is_read = problems.contains("the file \"/nowhere/secret\" cannot be read");
            assert_eq!(is_read, secrets.contains(key), "{variable}: {problems}");
        }
    }

    #[test]
    fn renamed_keys_name_keys_that_exist() {
        let keys = reference_keys(REFERENCE);
        for (old, new) in RENAMED {
            assert!(keys.iter().any(|(key, _)| key == new), "{new}");
            assert!(!keys.iter().any(|(key, _)| key == old), "{old}");
        }
        let problems = load("[hot]\nurl = \"redis://h\"\n[matchmaking.queues.duel]\nbeside_others = true\n")
            .unwrap_err();
        let text = problems.to_string();
        assert!(text.contains("`hot.url` is now `redis.url`"), "{text}");
        let queue =
            "`matchmaking.queues.duel.beside_others` is now `matchmaking.queues.duel.allow_other_queues`";
        assert!(text.contains(queue), "{text}");
    }

    #[test]
    fn reference_is_a_valid_configuration() {
        load("").unwrap();
        load(REFERENCE).unwrap();
    }

    #[test]
    fn default_is_one_process_with_all_roles_on_loopback() {
        let Loaded { config, .. } = load("").unwrap();
        assert!(config.shared.roles.is_all());
        let listen = config.shared.listen;
        for address in [listen.gateway, listen.service_api, listen.admin, listen.open_match] {
            assert!(address.ip().is_loopback());
        }
    }

    #[test]
    fn embedded_stores_require_one_process() {
        let file = |roles: &str, db: &str, redis: &str, bus: &str| {
            format!(
                "[process]\nroles = [{roles:?}]\n[db]\nurl = {db:?}\n[redis]\nurl = {redis:?}\n[bus]\nurl = {bus:?}\n\
                 [identity]\nissuer = \"none:\"\n"
            )
        };
        let (mysql, redis, nats) = ("mysql://h/d", "redis://h", "nats://h");
        for (is_valid, roles, db, redis_url, bus) in [
            (true, "gateway", mysql, redis, nats),
            (true, "all", "sqlite:x", redis, nats),
            (true, "all", "sqlite:x", "memory:", "memory:"),
            (false, "gateway", "sqlite:x", redis, nats),
            (false, "all", mysql, "memory:", nats),
            (false, "all", mysql, redis, "memory:"),
        ] {
            let loaded = load(&file(roles, db, redis_url, bus));
            assert_eq!(loaded.is_ok(), is_valid, "{roles} {db} {redis_url} {bus}: {loaded:?}");
        }
    }

    #[test]
    fn names_that_nats_rejects_are_configuration_mistakes() {
        assert!(load("[bus]\nstream = \"EU-events_2\"\nsubjects = \"eu.playhouse\"\n").is_ok());
        for wrong in [
            "stream = \"\"",
            "stream = \"a.b\"",
            "stream = \"a b\"",
            "subjects = \"\"",
            "subjects = \"a.>\"",
            "subjects = \"a..b\"",
            "max_age = \"1s\"",
        ] {
            assert_eq!(load(&format!("[bus]\n{wrong}\n")).unwrap_err().0.len(), 1, "{wrong}");
        }
    }

    #[test]
    fn clients_are_limited_by_default() {
        let limits = load("").unwrap().config.shared.listen.limits;
        assert_eq!((limits.max_connections, limits.max_connections_per_address), (20_000, 1_000));
        assert_eq!((limits.max_head, limits.write_timeout), (16 * 1024, Duration::from_secs(30)));
        assert!(limits.trusted_proxies.is_empty());
        let given = "[listen]\nmax_head = \"8KiB\"\ntrusted_proxies = [\"10.0.0.0/8\", \"::1\"]\n";
        let limits = load(given).unwrap().config.shared.listen.limits;
        assert_eq!((limits.max_head, limits.trusted_proxies.len()), (8 * 1024, 2));
        for wrong in ["max_head = \"4KiB\"", "max_connections = 0", "trusted_proxies = [\"10.1.0.0/8\"]"] {
            assert_eq!(load(&format!("[listen]\n{wrong}\n")).unwrap_err().0.len(), 1, "{wrong}");
        }
    }

    #[test]
    fn builtin_issuer_is_refused_outside_of_loopback() {
        let fleet = "[db]\nurl = \"mysql://h/d\"\n[redis]\nurl = \"redis://h\"\n[bus]\nurl = \"nats://h\"\n";
        let issuer = "[identity]\nissuer = \"https://id.example.com\"\n";
        let key = "[gateway.session]\nkeys = [\"0123456789abcdef0123456789abcdef\"]\n";
        let open = "[listen]\ngateway = \"0.0.0.0:8080\"\n";
        let url = "[gateway]\npublic_url = \"https://play.example.com\"\n";
        for (file, wrong) in [
            (String::new(), 0),
            (fleet.to_owned(), 2),
            (format!("{fleet}{key}"), 1),
            (format!("{fleet}{issuer}"), 1),
            (format!("{fleet}{issuer}{key}"), 0),
            (open.to_owned(), 1),
            (url.to_owned(), 1),
            (format!("{open}{issuer}"), 1),
            (format!("{open}{issuer}{url}"), 0),
            (format!("{open}{fleet}{issuer}{url}{key}"), 0),
            (format!("{open}{fleet}[identity]\nissuer = \"none:\"\n"), 0),
            (format!("{fleet}[process]\nroles = [\"outbox-relay\"]\n"), 0),
        ] {
            let found = load(&file).err().map_or(0, |problems| problems.0.len());
            assert_eq!(found, wrong, "{file}");
        }
    }

    #[test]
    fn contradicting_settings_are_reported_together() {
        let problems = load(
            "[listen]\nadmin = \"127.0.0.1:8080\"\n[lifecycle]\ngrace = \"5s\"\ndrain_delay = \"5s\"\n\
             restart_backoff_min = \"1h\"\n",
        )
        .unwrap_err();
        let text = problems.to_string();
        assert!(text.contains("admin and gateway have the same address"), "{text}");
        assert!(text.contains("drain_delay must be shorter than grace"), "{text}");
        assert!(text.contains("at most restart_backoff_max"), "{text}");
        assert_eq!(problems.0.len(), 3);
    }

    #[test]
    fn separate_ports_of_open_match_are_off_and_need_addresses_of_their_own() {
        assert!(load("").unwrap().config.shared.listen.open_match_ports.is_empty());
        let query = "[listen]\nopen_match_query = \"127.0.0.1:50503\"\n";
        let ports = load(query).unwrap().config.shared.listen.open_match_ports;
        assert_eq!(ports.iter().map(|port| port.name).collect::<Vec<&str>>(), ["open_match_query"]);
        let taken = "[listen]\nopen_match_frontend = \"127.0.0.1:50504\"\n";
        let text = load(taken).unwrap_err().to_string();
        assert!(text.contains("open_match_frontend and open_match have the same address"), "{text}");
    }

    #[test]
    fn callers_cannot_share_a_token() {
        let hash = |text: &str| http_server::TokenHash::of(text).to_string();
        let operator =
            |name: &str, token: &str| format!("[operators.{name}]\ntoken_hash = \"{}\"\n", hash(token));
        let service =
            |name: &str, token: &str| format!("[services.{name}]\ntoken_hash = \"{}\"\n", hash(token));
        for (file, wrong) in [
            (operator("ada", "a") + &operator("bob", "b") + &service("shop", "c"), 0),
            (operator("ada", "a") + &operator("bob", "a"), 1),
            (operator("ada", "a") + &service("shop", "a"), 1),
            ("[operators.ada]\nread_only = true\n".to_owned(), 1),
            ("[admin]\nhealth = \"everybody\"\naudit_retention = \"1s\"\n".to_owned(), 2),
            ("[listen]\nallowed_hosts = [\"https://play.example.com\"]\n".to_owned(), 1),
        ] {
            let found = load(&file).err().map_or(0, |problems| problems.0.len());
            assert_eq!(found, wrong, "{file}");
        }
    }

    #[test]
    fn abandon_after_must_exceed_the_assigner_timeout() {
        let problems = load(
            "[matchmaking]\nabandon_after = \"10s\"\nassigner_timeout = \"10s\"\n\
             [matchmaking.assigners.fleet]\nkind = \"webhook\"\nurl = \"http://127.0.0.1:9000\"\ntimeout = \"11s\"\n",
        )
        .unwrap_err();
        let text = problems.to_string();
        assert!(text.contains("abandon_after must be longer than assigner_timeout"), "{text}");
        assert!(text.contains("assigners.fleet.timeout must not be longer than assigner_timeout"), "{text}");
        assert_eq!(problems.0.len(), 2);
    }
}
