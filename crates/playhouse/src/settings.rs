//! The settings of all parts together.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use config::{ByteSize, Reader, Section};
use http_server::{Limits, Service};
use notification::{Rules, Wrong};
use oidc::IssuerUrl;
use url::Url;

use crate::asyncapi;
use crate::role::{Role, Roles};

/// The commented reference: every key with its default and its meaning.
pub const REFERENCE: &str = include_str!("reference.toml");

/// The settings of a process.
#[derive(Clone, Debug)]
pub struct Settings {
    pub roles: Roles,
    pub listen: Listen,
    pub db: db::Config,
    pub hot: redis_store::Config,
    pub bus: bus::Config,
    pub locks: hierlock::Options,
    pub idempotency_retention: Duration,
    pub outbox: outbox::Config,
    pub services: BTreeMap<String, Service>,
    pub matchmaking: matchmaking::Config,
    pub identity: oidc::Config,
    pub gateway: gateway::Config,
    pub notification: notification::Config,
    pub lifecycle: runtime::lifecycle::Config,
    pub check_interval: Duration,
    pub telemetry: runtime::telemetry::Config,
}

/// Where the listeners are. Port 0 lets the kernel choose.
#[derive(Clone, Debug)]
pub struct Listen {
    pub gateway: SocketAddr,
    pub internal: SocketAddr,
    pub admin: SocketAddr,
    pub open_match: SocketAddr,
    pub limits: Limits,
}

impl Section for Settings {
    fn read(reader: &mut Reader<'_>) -> Self {
        let settings = Self {
            roles: reader.get("process.roles"),
            listen: reader.section("listen"),
            db: reader.section("db"),
            hot: reader.section("hot"),
            bus: reader.section("bus"),
            locks: reader.section::<Locks>("locks").0,
            idempotency_retention: reader.get_within(
                "entitlement.idempotency_retention",
                Duration::from_secs(60)..=Duration::from_secs(365 * 86_400),
            ),
            outbox: reader.section("outbox"),
            services: reader.tables("services"),
            matchmaking: reader.section("matchmaking"),
            identity: reader.section("identity"),
            gateway: reader.section("gateway"),
            notification: reader.section("notification"),
            lifecycle: reader.section("lifecycle"),
            check_interval: reader
                .get_within("lifecycle.check_interval", Duration::from_millis(100)..=Duration::from_secs(60)),
            telemetry: reader.section("telemetry"),
        };
        settings.check_embedded(reader);
        settings.check_services(reader);
        settings.check_gateway(reader);
        settings.check_notification(reader);
        settings
    }
}

impl Settings {
    /// An embedded store is inside one process: no other process may need it.
    fn check_embedded(&self, reader: &mut Reader<'_>) {
        let one_process = self.db.url.is_embedded();
        // Only the lock on the SQLite file keeps a second process away.
        for (key, embedded) in
            [("hot.url", self.hot.url.is_embedded()), ("bus.url", self.bus.url.is_embedded())]
        {
            reader.check(&[key, "db.url"], one_process || !embedded, || {
                "memory: serves one process, and the database is a server that several may share; give this store the URL \
                 of a server too, or db.url a sqlite: file"
                    .to_owned()
            });
        }
        reader.check(&["process.roles"], self.roles.is_all() || !one_process, || {
            "the database is a sqlite: file, so this process is the only one and has to play all roles; leave it at \
             [\"all\"], or give db.url, hot.url and bus.url the URLs of servers"
                .to_owned()
        });
    }
}

impl Settings {
    /// Where players find the gateway, which listens here.
    pub(crate) fn gateway_url(&self, listening: &Url) -> Url {
        self.gateway.public_url.as_ref().map_or_else(|| listening.clone(), |url| url.0.clone())
    }

    /// What signs players in on a laptop must not do so in a fleet.
    fn check_gateway(&self, reader: &mut Reader<'_>) {
        if !self.roles.contains(Role::Gateway) || self.identity.issuer == IssuerUrl::None {
            return;
        }
        let is_fleet = !self.db.url.is_embedded();
        let is_local = self.listen.gateway.ip().is_loopback();
        let is_builtin = self.identity.issuer.is_builtin();
        reader.check(&["identity.issuer", "db.url"], !(is_builtin && is_fleet), || {
            "builtin: lets anybody in as whoever they like, which is for development; name the URL of an issuer, such as a \
             realm of Keycloak, or \"none:\" where nobody signs in"
                .to_owned()
        });
        reader.check(&["identity.issuer", "listen.gateway"], is_fleet || !is_builtin || is_local, || {
            "builtin: lets anybody in as whoever they like, so the gateway must listen on a loopback address, such as \
             127.0.0.1:8080; or name the URL of an issuer"
                .to_owned()
        });
        let is_public = self.gateway.public_url.as_ref().is_some_and(|url| !oidc::is_loopback(&url.0));
        reader.check(&["identity.issuer", "gateway.public_url"], !(is_builtin && is_public), || {
            "builtin: lets anybody in as whoever they like, and players come to this URL from elsewhere: name the URL of an issuer"
                .to_owned()
        });
        reader.check(&["gateway.public_url"], is_local || is_builtin || self.gateway.public_url.is_some(), || {
            "players come from elsewhere, so the issuer has to know where to send them back to: give the URL by which they \
             find the gateway"
                .to_owned()
        });
        let has_keys = self.hot.url.is_embedded() || !is_fleet || !self.gateway.session.keys.is_empty();
        reader.check(&["gateway.session.keys"], has_keys, || {
            "several processes share the sessions, so they need the same key: give one, such as `openssl rand -base64 32` \
             makes, to all of them"
                .to_owned()
        });
    }
}

impl Settings {
    /// A token tells who calls, so no two services share one.
    fn check_services(&self, reader: &mut Reader<'_>) {
        let mut known = BTreeMap::new();
        for (name, service) in &self.services {
            if let Some(other) = known.insert(service.token_hash.to_string(), name) {
                let keys = [format!("services.{other}.token_hash"), format!("services.{name}.token_hash")];
                reader.check(&[&keys[0], &keys[1]], false, || "two services have the same token".to_owned());
            }
        }
    }
}

impl Settings {
    /// What is said to players, before anybody is told half a sentence; and that no event is told twice.
    fn check_notification(&self, reader: &mut Reader<'_>) {
        let events = asyncapi::events();
        for Wrong { key, what } in Rules::new(&self.notification, &events).err().into_iter().flatten() {
            reader.check(&[&key], false, || what);
        }
        let outlives = self.notification.dedupe_retention > self.bus.max_age;
        reader.check(&["notification.dedupe_retention", "bus.max_age"], outlives, || {
            "it must be longer than bus.max_age: an event that the bus still has, and that nobody remembers, would be told again"
                .to_owned()
        });
    }
}

/// How locks are taken.
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

impl Section for Listen {
    fn read(reader: &mut Reader<'_>) -> Self {
        let listen = Self {
            gateway: reader.get("gateway"),
            internal: reader.get("internal"),
            admin: reader.get("admin"),
            open_match: reader.get("open_match"),
            limits: limits(reader),
        };
        let all = [
            ("gateway", listen.gateway),
            ("internal", listen.internal),
            ("admin", listen.admin),
            ("open_match", listen.open_match),
        ];
        for (at, (later, address)) in all.iter().enumerate() {
            let twin = all[..at].iter().find(|(_, other)| other == address && address.port() != 0);
            if let Some((earlier, _)) = twin {
                reader.check(&[later, earlier], false, || {
                    format!("{later} and {earlier} are the same address")
                });
            }
        }
        listen
    }
}

/// What clients may ask of every listener.
fn limits(reader: &mut Reader<'_>) -> Limits {
    let ByteSize(max_head) = reader.get_within("max_head", ByteSize(8 << 10)..=ByteSize(1 << 20));
    Limits {
        header_timeout: reader
            .get_within("header_timeout", Duration::from_millis(100)..=Duration::from_secs(300)),
        write_timeout: reader
            .get_within("write_timeout", Duration::from_millis(100)..=Duration::from_secs(3600)),
        max_head: u32::try_from(max_head).unwrap_or(u32::MAX),
        max_streams: reader.get_within("max_streams", 1..=1_000_000),
        max_connections: reader.get_within("max_connections", 1..=10_000_000),
        max_connections_per_address: reader.get("max_connections_per_address"),
        trusted_proxies: reader.get("trusted_proxies"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use config::{Layers, Loaded, Problems, env_name, every_key, reference_keys};

    use super::*;

    fn load(text: &str) -> Result<Loaded<Settings>, Problems> {
        config::load(Layers::new(REFERENCE).with_file_text(Path::new("play.toml"), text))
    }

    #[test]
    fn every_key_is_in_the_reference_and_every_key_of_the_reference_is_read() {
        // With every key given, so that those of tables that users name are read as well.
        let Loaded { effective, .. } = load(&every_key(REFERENCE)).unwrap();
        let read: BTreeSet<&str> = effective.reference_keys().collect();
        let keys = reference_keys(REFERENCE);
        let documented: BTreeSet<&str> = keys.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(read, documented);
        let variables: BTreeSet<String> = effective.keys().map(env_name).collect();
        assert_eq!(variables.len(), read.len(), "two keys have the same environment variable");
    }

    #[test]
    fn the_reference_is_a_configuration() {
        load("").unwrap();
        load(REFERENCE).unwrap();
    }

    #[test]
    fn the_default_is_one_process_with_all_roles_on_loopback() {
        let Loaded { config, .. } = load("").unwrap();
        assert!(config.roles.is_all());
        let listen = config.listen;
        for address in [listen.gateway, listen.internal, listen.admin, listen.open_match] {
            assert!(address.ip().is_loopback());
        }
    }

    #[test]
    fn embedded_stores_want_one_process() {
        let file = |roles: &str, db: &str, hot: &str, bus: &str| {
            format!(
                "[process]\nroles = [{roles:?}]\n[db]\nurl = {db:?}\n[hot]\nurl = {hot:?}\n[bus]\nurl = {bus:?}\n\
                 [identity]\nissuer = \"none:\"\n"
            )
        };
        let (mysql, redis, nats) = ("mysql://h/d", "redis://h", "nats://h");
        for (sound, roles, db, hot, bus) in [
            (true, "gateway", mysql, redis, nats),
            (true, "all", "sqlite:x", redis, nats),
            (true, "all", "sqlite:x", "memory:", "memory:"),
            (false, "gateway", "sqlite:x", redis, nats),
            (false, "all", mysql, "memory:", nats),
            (false, "all", mysql, redis, "memory:"),
        ] {
            let loaded = load(&file(roles, db, hot, bus));
            assert_eq!(loaded.is_ok(), sound, "{roles} {db} {hot} {bus}: {loaded:?}");
        }
    }

    #[test]
    fn names_that_nats_would_refuse_are_refused_before_anything_starts() {
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
    fn clients_are_limited_unless_told_otherwise() {
        let limits = load("").unwrap().config.listen.limits;
        assert_eq!((limits.max_connections, limits.max_connections_per_address), (20_000, 1_000));
        assert_eq!((limits.max_head, limits.write_timeout), (16 * 1024, Duration::from_secs(30)));
        assert!(limits.trusted_proxies.is_empty());
        let given = "[listen]\nmax_head = \"8KiB\"\ntrusted_proxies = [\"10.0.0.0/8\", \"::1\"]\n";
        let limits = load(given).unwrap().config.listen.limits;
        assert_eq!((limits.max_head, limits.trusted_proxies.len()), (8 * 1024, 2));
        for wrong in ["max_head = \"4KiB\"", "max_connections = 0", "trusted_proxies = [\"10.1.0.0/8\"]"] {
            assert_eq!(load(&format!("[listen]\n{wrong}\n")).unwrap_err().0.len(), 1, "{wrong}");
        }
    }

    #[test]
    fn what_signs_anybody_in_is_refused_where_others_come() {
        let fleet = "[db]\nurl = \"mysql://h/d\"\n[hot]\nurl = \"redis://h\"\n[bus]\nurl = \"nats://h\"\n";
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
    fn contradictions_are_found() {
        let problems = load(
            "[listen]\nadmin = \"127.0.0.1:8080\"\n[lifecycle]\ngrace = \"5s\"\ndrain_delay = \"5s\"\n\
             restart_backoff_min = \"1h\"\n",
        )
        .unwrap_err();
        let text = problems.to_string();
        assert!(text.contains("admin and gateway are the same address"), "{text}");
        assert!(text.contains("drain_delay must be shorter than grace"), "{text}");
        assert!(text.contains("at most restart_backoff_max"), "{text}");
        assert_eq!(problems.0.len(), 3);
    }

    #[test]
    fn allocations_are_not_given_back_while_their_assigner_is_asked() {
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
