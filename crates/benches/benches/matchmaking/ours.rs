//! Playhouse as a fleet of two processes: a frontend and an engine, on the stores of a fleet.

use std::fs;
use std::path::PathBuf;

use testkit::{Database, Folder, Nats, Program, Redis, RunningProgram, SqlServer};

/// The servers that Playhouse needs besides Redis: the database records matches, the bus carries an event for each.
pub(crate) struct Ours {
    program: PathBuf,
    sql: SqlServer,
    nats: Nats,
}

/// The stores of one running system.
pub(crate) struct Support {
    program: PathBuf,
    folder: Folder,
    database: Database,
    redis: String,
    nats: String,
}

impl Ours {
    /// Starts the servers. If the program has not been built, prints that and returns `None`.
    pub(crate) async fn prepare() -> Option<Self> {
        let program = benches::product();
        if !program.is_file() {
            eprintln!(
                "skipping playhouse: run `cargo build --release -p playhouse` first, or use `cargo xtask bench`"
            );
            return None;
        }
        let sql = SqlServer::private().await.unwrap();
        Some(Self { program, sql, nats: Nats::private().await.unwrap() })
    }

    pub(crate) async fn support(&self, redis: &Redis) -> Support {
        Support {
            program: self.program.clone(),
            folder: Folder::fresh().unwrap(),
            database: self.sql.database().await,
            redis: redis.url(),
            nats: self.nats.url(),
        }
    }
}

impl Support {
    pub(crate) fn frontend(&self) -> RunningProgram {
        self.start("matchmaking-frontend", "")
    }

    pub(crate) fn engine(&self) -> RunningProgram {
        self.start("matchmaking-engine", r#", "outbox-relay""#)
    }

    fn start(&self, role: &str, others: &str) -> RunningProgram {
        let file = self.folder.path().join(format!("{role}.toml"));
        fs::write(&file, self.configuration(&format!("\"{role}\"{others}"))).unwrap();
        Program::new(&self.program)
            .args(["serve", "--print-addresses", "--config"])
            .arg(&file)
            .start()
            .unwrap()
    }

    fn configuration(&self, roles: &str) -> String {
        let (database, redis, nats) = (self.database.url(), &self.redis, &self.nats);
        format!(
            r#"
            process.roles = [{roles}]
            listen.open_match = "127.0.0.1:0"
            listen.admin = "127.0.0.1:0"
            listen.gateway = "127.0.0.1:0"
            listen.service_api = "127.0.0.1:0"
            db.url = "{database}"
            db.migrate = true
            locks.buckets = 1000
            redis.url = "{redis}"
            bus.url = "{nats}"
            [matchmaking.assigners.bench]
            kind = "static"
            addresses = ["{{match_id}}.bench:7777"]
            [matchmaking.profiles.duel]
            players = 2
            assigner = "bench"
            "#
        )
    }
}
