//! Playhouse as a fleet of two: a frontend and an engine, with the stores that a fleet has.

use std::fs;
use std::path::PathBuf;

use testkit::{Database, Folder, Nats, Program, Redis, Running, SqlServer};

/// What ours needs beside Redis. The database records matches; the bus carries an event for each.
pub(crate) struct Ours {
    program: PathBuf,
    sql: SqlServer,
    nats: Nats,
}

/// What one system of ours needs while it runs.
pub(crate) struct Support {
    program: PathBuf,
    folder: Folder,
    database: Database,
    redis: String,
    nats: String,
}

impl Ours {
    /// `None`, and the reason on stderr, if the program has not been built.
    pub(crate) async fn prepare() -> Option<Self> {
        let program = benches::product();
        if !program.is_file() {
            eprintln!(
                "without playhouse: `cargo build --release -p playhouse` first, or use `cargo xtask bench`"
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
    pub(crate) fn frontend(&self) -> Running {
        self.start("matchmaking-frontend", "")
    }

    pub(crate) fn engine(&self) -> Running {
        self.start("matchmaking-engine", r#", "outbox-relay""#)
    }

    fn start(&self, role: &str, others: &str) -> Running {
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
            listen.internal = "127.0.0.1:0"
            db.url = "{database}"
            db.migrate = true
            locks.buckets = 1000
            hot.url = "{redis}"
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
