mod tables;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::*;

const REFERENCE: &str = r#"
[listen]
# The listener for players.
gateway = "127.0.0.1:8080"

[db]
url = "sqlite:data.db"
max_connections = 10
# password = "…"

[life]
grace = "30s"
delay = "1s"
body = "64KiB"
roles = ["a", "b"]
loud = false
share = 0.5
"#;

#[derive(Debug)]
struct Example {
    gateway: SocketAddr,
    password: Option<Secret>,
    max_connections: u32,
    life: Life,
}

#[derive(Debug)]
struct Life {
    grace: Duration,
    delay: Duration,
    body: ByteSize,
    roles: Vec<String>,
    loud: bool,
    share: f64,
}

impl Section for Example {
    fn read(reader: &mut Reader<'_>) -> Self {
        let gateway = reader.get("listen.gateway");
        let _url: String = reader.get("db.url");
        let max_connections = reader.get_within("db.max_connections", 1..=1000);
        Self {
            gateway,
            password: reader.optional("db.password"),
            max_connections,
            life: reader.section("life"),
        }
    }
}

impl Section for Life {
    fn read(reader: &mut Reader<'_>) -> Self {
        let life = Self {
            grace: reader.get("grace"),
            delay: reader.get("delay"),
            body: reader.get("body"),
            roles: reader.get("roles"),
            loud: reader.get("loud"),
            share: reader.get("share"),
        };
        reader.check(&["delay", "grace"], life.delay < life.grace, || {
            "must be shorter than life.grace".to_owned()
        });
        life
    }
}

fn with_file(text: &str) -> Layers {
    Layers::new(REFERENCE).with_file_text(Path::new("play.toml"), text)
}

fn problems(layers: Layers) -> Vec<String> {
    let Problems(problems) = load::<Example>(layers).expect_err("the configuration is invalid");
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn defaults_come_from_the_reference() {
    let Loaded { config, .. } = load::<Example>(Layers::new(REFERENCE)).unwrap();
    assert_eq!(config.gateway.port(), 8080);
    assert!(config.password.is_none());
    assert_eq!(config.life.body, ByteSize(65_536));
    assert_eq!(config.life.roles, ["a", "b"]);
    assert!(!config.life.loud);
    assert!((config.life.share - 0.5).abs() < f64::EPSILON);
}

#[test]
fn flags_override_environment_overrides_file() {
    let env = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Vec<_>>()
    };
    let layers = with_file("[db]\nmax_connections = 20\n[life]\ngrace = \"1m\"\nloud = true\n")
        .with_env(env(&[
            ("PLAYHOUSE_DB_MAX_CONNECTIONS", "30"),
            ("PLAYHOUSE_LIFE_GRACE", "2m"),
            ("PLAYHOUSE_LIFE_ROLES", "x, y"),
        ]))
        .with_flag("--set", "db.max_connections", "40");
    let Loaded { config, effective, .. } = load::<Example>(layers).unwrap();
    assert_eq!(config.max_connections, 40);
    assert_eq!(config.life.grace, Duration::from_secs(120));
    assert_eq!(config.life.roles, ["x", "y"]);
    assert!(config.life.loud);
    let shown = effective.to_string();
    assert!(shown.contains("max_connections = 40                             # --set\n"), "{shown}");
    assert!(shown.contains("# PLAYHOUSE_LIFE_GRACE\n") && shown.contains("# play.toml:5:1\n"), "{shown}");
}

#[test]
fn effective_configuration_can_be_loaded_again() {
    let first = load::<Example>(Layers::new(REFERENCE)).unwrap().effective.to_string();
    let second = load::<Example>(with_file(&first)).unwrap().effective.to_string();
    let values = |text: &str| {
        text.lines().map(|line| line.split(" #").next().unwrap().trim().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(values(&first), values(&second));
}

#[test]
fn all_mistakes_are_reported_together_with_their_lines() {
    let found = problems(with_file(
        "[listen]\ngatewey = \"127.0.0.1:80\"\n\n[db]\nmax_connections = \"many\"\n\n[life]\ngrace = \"soon\"\n",
    ));
    assert_eq!(
        found,
        [
            "play.toml:2:1: listen.gatewey: no such key\n    did you mean `listen.gateway`?",
            "play.toml:5:1: db.max_connections: expected a whole number, found \"many\"",
            "play.toml:8:1: life.grace: expected a duration such as \"250ms\", \"30s\" or \"1h30m\", found \"soon\"",
        ]
    );
}

#[test]
fn broken_syntax_does_not_hide_other_mistakes() {
    let found = problems(with_file("[db]\nmax_connections = 0\n[life\ngrace = \"x\"\n"));
    assert!(found.iter().any(|problem| problem.contains("not valid TOML")), "{found:#?}");
    assert!(found.iter().any(|problem| problem.contains("must be from 1 to 1000, found 0")), "{found:#?}");
}

#[test]
fn contradicting_keys_are_reported_once() {
    let found = problems(with_file("[life]\ngrace = \"500ms\"\n"));
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("play.toml:2:1: life.grace: must be shorter than life.grace"), "{found:?}");
    // A value that was rejected already is not checked again.
    assert_eq!(problems(with_file("[life]\ngrace = \"x\"\ndelay = \"1h\"\n")).len(), 1);
}

#[test]
fn unknown_sections_and_misplaced_keys_get_a_suggestion() {
    let found = problems(with_file("grace = \"1s\"\n[lief]\ngrace = \"1s\"\n"));
    assert!(
        found[0].contains("grace: no such key") && found[0].contains("did you mean `life.grace`?"),
        "{found:#?}"
    );
    assert!(
        found[1].contains("[lief]: no such section") && found[1].contains("did you mean `[life]`?"),
        "{found:#?}"
    );
    assert_eq!(found.len(), 2);
}

#[test]
fn renamed_keys_are_rejected_with_their_new_name() {
    const RENAMED: &[RenamedKey] = &[("store.url", "db.url"), ("life.patience", "life.grace")];
    let layers = with_file("[store]\nurl = \"x\"\n[life]\npatience = \"1s\"\n")
        .with_renamed(RENAMED)
        .with_env([("PLAYHOUSE_STORE_URL".to_owned(), "x".to_owned())])
        .with_flag("--set", "store.url", "x");
    assert_eq!(
        problems(layers),
        [
            "play.toml:1:2: [store]: no such section\n    `store.url` is now `db.url`",
            "play.toml:4:1: life.patience: no such key\n    `life.patience` is now `life.grace`",
            "PLAYHOUSE_STORE_URL: no such setting\n    `PLAYHOUSE_STORE_URL` is now `PLAYHOUSE_DB_URL`",
            "--set: store.url: no such key\n    `store.url` is now `db.url`",
        ]
    );
}

#[test]
fn unknown_variables_and_flags_are_rejected() {
    let layers = Layers::new(REFERENCE)
        .with_env([
            ("PLAYHOUSE_DB_ULR".to_owned(), "x".to_owned()),
            ("PLAYHOUSE_LIFE_LOUD".to_owned(), "loud".to_owned()),
        ])
        .with_flag("--set", "db.ulr", "x");
    let found = problems(layers);
    assert_eq!(
        found,
        [
            "PLAYHOUSE_LIFE_LOUD: life.loud: expected true or false, found \"loud\"",
            "PLAYHOUSE_DB_ULR: no such setting\n    did you mean `PLAYHOUSE_DB_URL`?",
            "--set: db.ulr: no such key\n    did you mean `db.url`?",
        ]
    );
}

#[test]
fn kubernetes_service_variables_are_ignored() {
    let vars = [
        ("PLAYHOUSE_PORT", "tcp://10.1.2.3:80"),
        ("PLAYHOUSE_SERVICE_HOST", "10.1.2.3"),
        ("PLAYHOUSE_SERVICE_PORT_HTTP", "80"),
        ("PLAYHOUSE_PORT_80_TCP_ADDR", "10.1.2.3"),
        ("PLAYHOUSE_LIFE_GRACE", ""),
    ];
    let layers =
        Layers::new(REFERENCE).with_env(vars.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert!(load::<Example>(layers).is_ok());
}

#[test]
fn secrets_are_never_shown() {
    let layers = with_file("[db]\npassword = \"hunter2\"\n");
    let Loaded { config, effective, .. } = load::<Example>(layers).unwrap();
    assert_eq!(config.password.as_ref().map(Secret::expose), Some("hunter2"));
    assert!(!format!("{config:?}{effective}{effective:?}").contains("hunter2"));
    for wrong in [
        "[db]\npassword = 2222\n",
        "[db]\npasword = 2222\n",
        "[db]\npassword = \"2222\n",
        "[db]\npassword: \"2222\"\n",
        "[db]\npassword \"2222\"\n",
        "[life]\npassword = 2222",
        "[life]\nroles = [\n\"2222\",,\n]\n",
        "db = { password = \"2222\", max_connections = \"many\" }\n",
    ] {
        let shown = problems(with_file(wrong)).join("\n");
        assert!(!shown.contains("2222"), "{shown}");
    }
    let url = url::Url::parse("mysql://u:pa%20ss@db/x?ssl-mode=required&token=abc&n=5").unwrap();
    assert_eq!(redact_url(&url), "mysql://u:***@db/x?ssl-mode=required&token=***&n=***");
    let shown = |text: &str| redact_url(&text.parse().unwrap());
    assert_eq!(shown("nats://token@h:1"), "nats://***@h:1");
    assert_eq!(shown("redis://h:1/0?pin=4711&tls=true"), "redis://h:1/0?pin=***&tls=true");
    assert_eq!(
        shown("https://hooks.example.com/services/T0A1/B0A2/aBcDeFgHiJkL"),
        "https://hooks.example.com/services/***/***/***"
    );
    let long = "https://h/hook/abcdefghijklmnopqrstuvwxyzabcdefghijklmn#4711";
    assert_eq!(shown(long), "https://h/hook/***#***");
    let issuer = "https://id.example.com/realms/playhouse/v1/.well-known";
    assert_eq!(shown(issuer), issuer);
}

/// A secret file that is removed on drop.
struct SecretFile(std::path::PathBuf);

impl SecretFile {
    fn create(content: &[u8]) -> Self {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("playhouse-secret-{}-{number}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn with_variable(layers: Layers, name: &str, value: &str) -> Layers {
    layers.with_env([(name.to_owned(), value.to_owned())])
}

#[test]
fn secret_is_read_from_a_file_of_its_own() {
    let file = SecretFile::create(b"hunter2\n");
    let path = file.path();
    let exposed = |layers: Layers| {
        let Loaded { config, effective, warnings } = load::<Example>(layers).unwrap();
        assert!(!format!("{config:?}{effective}{effective:?}{warnings:?}").contains("hunter2"));
        (config.password.unwrap().expose().to_owned(), effective.to_string(), warnings)
    };
    let (password, effective, _) =
        exposed(with_variable(Layers::new(REFERENCE), "PLAYHOUSE_DB_PASSWORD_FILE", path));
    assert_eq!(password, "hunter2", "without the newline at the end");
    assert!(effective.contains("password = \"***\"") && effective.contains("# PLAYHOUSE_DB_PASSWORD_FILE"));
    let in_file = with_file(&format!("[db]\npassword_file = {path:?}\n"));
    assert_eq!(exposed(in_file).0, "hunter2");
    let (password, _, warnings) =
        exposed(with_file("[db]\npassword = \"other\"\n").with_flag("--set", "db.password_file", path));
    assert_eq!(
        (password.as_str(), warnings.len()),
        ("hunter2", 0),
        "the higher layer wins, and a path is not a secret"
    );
    // Only secrets have a file key.
    let wrong = problems(with_variable(Layers::new(REFERENCE), "PLAYHOUSE_LIFE_GRACE_FILE", path));
    assert!(wrong.join("").contains("PLAYHOUSE_LIFE_GRACE_FILE: no such setting"), "{wrong:?}");
}

#[test]
fn secret_file_errors_name_the_file_and_never_its_content() {
    let mistake = |content: &[u8]| {
        let file = SecretFile::create(content);
        let path = file.path();
        let layers = with_variable(Layers::new(REFERENCE), "PLAYHOUSE_DB_PASSWORD_FILE", path);
        let found = problems(layers).join("\n");
        assert!(found.contains("PLAYHOUSE_DB_PASSWORD_FILE: db.password_file: the file"), "{found}");
        assert!(found.contains(path) && !found.contains("2222"), "{found}");
        found
    };
    assert!(mistake(b"").contains("is empty"));
    assert!(mistake(b"\n").contains("is empty"));
    assert!(mistake(b"2222\xff").contains("is not text"));
    assert!(mistake(&b"2222".repeat(20_000)).contains("is longer than 65536 bytes"));
    let missing = with_variable(Layers::new(REFERENCE), "PLAYHOUSE_DB_PASSWORD_FILE", "/nowhere/at/all");
    assert!(problems(missing).join("").contains("\"/nowhere/at/all\" cannot be read"));
    let file = SecretFile::create(b"2222");
    let path = file.path();
    let both = with_file(&format!("[db]\npassword = \"2222\"\npassword_file = {path:?}\n"));
    let both = problems(both).join("");
    assert!(
        both.contains("db.password is set as well; set only one of them") && !both.contains("2222"),
        "{both}"
    );
}

#[test]
fn secret_list_has_one_item_per_line() {
    let value = Value::Content("one,1\n\n two\r\nthree".to_owned());
    let secrets: Vec<Secret> = Setting::parse(&value).unwrap();
    assert_eq!(secrets.iter().map(Secret::expose).collect::<Vec<_>>(), ["one,1", "two", "three"]);
}

#[test]
fn secret_on_the_command_line_causes_a_warning() {
    let warnings = |key: &str, value: &str| {
        load::<Example>(Layers::new(REFERENCE).with_flag("--set", key, value)).unwrap().warnings
    };
    let [warning] = <[String; 1]>::try_from(warnings("db.password", "hunter2")).unwrap();
    assert!(
        warning.contains("--set db.password") && warning.contains("PLAYHOUSE_DB_PASSWORD_FILE"),
        "{warning}"
    );
    assert!(!warning.contains("hunter2"));
    assert_eq!(warnings("life.grace", "3s"), Vec::<String>::new());
}

#[test]
fn reference_keys_include_optional_keys() {
    let keys = reference_keys(REFERENCE);
    assert!(keys.contains(&("db.password".to_owned(), false)));
    assert!(keys.contains(&("db.url".to_owned(), true)));
    assert_eq!(keys.len(), 10);
}

#[test]
fn parses_and_shows_durations_and_sizes() {
    let duration = |text: &str| Duration::parse(&Value::Text(text.to_owned())).ok();
    assert_eq!(duration("1h30m"), Some(Duration::from_secs(5400)));
    assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
    for bad in ["", "5", "s", "5 s", "-1s", "1.5s", "99999999999999999999d", "9999999999999999d"] {
        assert_eq!(duration(bad), None, "{bad}");
    }
    assert_eq!(Duration::from_millis(5_400_250).show(), "\"1h30m250ms\"");
    let size = |text: &str| ByteSize::parse(&Value::Text(text.to_owned())).ok();
    assert_eq!(size("10MB"), Some(ByteSize(10_000_000)));
    assert_eq!(size("1 GiB"), Some(ByteSize(1 << 30)));
    for bad in ["", "10", "MB", "1TB", "-1kB", "99999999999999GiB"] {
        assert_eq!(size(bad), None, "{bad}");
    }
    assert_eq!(
        [ByteSize(65_536).show(), ByteSize(1500).show(), ByteSize(0).show()],
        ["\"64KiB\"", "\"1500B\"", "\"0B\""]
    );
}

#[test]
fn effective_configuration_follows_the_order_of_the_reference() {
    struct ReverseOrder;
    impl Section for ReverseOrder {
        fn read(reader: &mut Reader<'_>) -> Self {
            for key in ["life.grace", "life.delay", "db.url", "listen.gateway"] {
                let _: String = reader.get(key);
            }
            Self
        }
    }
    let shown = load::<ReverseOrder>(Layers::new(REFERENCE)).unwrap().effective.to_string();
    let lines: Vec<&str> = shown.lines().filter_map(|line| line.split([' ', '#']).next()).collect();
    assert_eq!(lines, ["[listen]", "gateway", "", "[db]", "url", "", "[life]", "grace", "delay"]);
}

#[test]
fn any_text_loads_or_fails_with_problems() {
    let samples = [
        REFERENCE.to_owned(),
        reference_with_all_keys(REFERENCE),
        "[db]\nurl = \"mysql://u:p@h/d\"\n[\"a.b\".c]\nx = [1, {y = 2}]\n".to_owned(),
        "db.password_file = \"/dev/null\"\nlife = { grace = \"1h30m\", share = 1e999 }\n".to_owned(),
    ];
    testkit::fuzz("config-text", &samples, |input| {
        let text = String::from_utf8_lossy(input);
        let value = Value::Word(text.clone().into_owned());
        let _ = (Duration::parse(&value), ByteSize::parse(&value), text.parse::<Network>());
        if let Ok(url) = url::Url::parse(&text) {
            let shown = redact_url(&url);
            assert!(
                url.password()
                    .is_none_or(|secret| secret.len() < 4 || !shown.contains(&format!(":{secret}@")))
            );
        }
        match load::<Example>(with_file(&text)) {
            Ok(_) => true,
            Err(problems) => problems.to_string().is_empty(),
        }
    });
}
