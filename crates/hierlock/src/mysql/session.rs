//! A session on the server whose transaction holds locks, or is about to.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio::time::{Instant, timeout};

use super::schema;
use crate::{BucketSpace, Error};

#[derive(Debug)]
pub(super) struct Session {
    /// The server's connection id.
    pub(super) id: u64,
    pub(super) connection: Mutex<MySqlConnection>,
    pub(super) began: Instant,
    /// When the last request that got a response was sent, in milliseconds since `began`. The server's idle timeout started then or later.
    contact: AtomicU64,
    /// When it was last returned to the pool, in milliseconds since `began`.
    idle_since: AtomicU64,
    is_lost: AtomicBool,
    loss: Notify,
    /// How long the server keeps the session without a request.
    server_idle_timeout: Duration,
    /// The time limit for a response.
    limit: Duration,
}

/// The settings of all sessions.
#[derive(Clone, Debug)]
pub(super) struct SessionSettings {
    pub(super) wait_timeout: Duration,
    pub(super) heartbeat: Duration,
}

impl SessionSettings {
    /// Returns how long a session may be idle before the server ends it and releases its locks.
    fn server_idle_timeout(&self) -> Duration {
        whole_seconds(self.heartbeat * 3)
    }
}

impl Session {
    /// Connects. Fails if the database has another bucket space than `ours`.
    pub(super) async fn connect(
        database: &MySqlConnectOptions,
        settings: &SessionSettings,
        ours: &BucketSpace,
    ) -> Result<Self, Error> {
        let server_idle_timeout = settings.server_idle_timeout();
        let began = Instant::now();
        let mut connection = database.connect().await?;
        match schema::recorded(&mut connection).await? {
            None => return Err(Error::NotProvisioned),
            Some((recorded, _)) if recorded != *ours => {
                return Err(Error::BucketSpaceMismatch { recorded, ours: ours.clone() });
            }
            Some(_) => {}
        }
        let id = connection_id(&mut connection).await?;
        // A waiter whose client is gone stays in the server's queue until this timeout, a second longer than ours.
        let lock_wait = settings.wait_timeout.as_secs() + 1;
        let text = format!(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
             SET SESSION innodb_lock_wait_timeout = {lock_wait};
             {};
             SET SESSION autocommit = 0",
            idle_session_timeout_sql(server_idle_timeout)
        );
        connection.execute(AssertSqlSafe(text)).await?;
        Ok(Self {
            id,
            connection: Mutex::new(connection),
            began,
            contact: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
            is_lost: AtomicBool::new(false),
            loss: Notify::new(),
            server_idle_timeout,
            limit: settings.heartbeat,
        })
    }

    /// Records that a request sent at that time got its response.
    pub(super) fn record_contact(&self, sent: Instant) {
        self.contact.fetch_max(self.millis(sent), Ordering::SeqCst);
    }

    /// Returns an upper bound of the time since the server last received a request.
    pub(super) fn time_since_contact(&self) -> Duration {
        self.since(&self.contact)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst)
    }

    pub(super) fn is_valid(&self) -> bool {
        !self.is_lost() && self.time_since_contact() < self.server_idle_timeout
    }

    /// Pings the server. If the session is alive, so are its locks: only the end of the session releases them.
    pub(super) async fn ping(&self) -> Result<(), Error> {
        self.send(Command::Ping).await
    }

    /// Pings the server unless the session is in use, and so in contact with the server anyway.
    pub(super) async fn ping_unless_busy(&self) -> Result<(), Error> {
        match self.connection.try_lock() {
            Ok(connection) => self.send_on(connection, Command::Ping).await,
            Err(_) => Ok(()),
        }
    }

    pub(super) async fn roll_back(&self) -> Result<(), Error> {
        self.send(Command::RollBack).await
    }

    /// Sends a command. Must not be cancelled unless the session is discarded: the driver would read the response as that of the next
    /// command.
    async fn send(&self, command: Command) -> Result<(), Error> {
        self.send_on(self.connection.lock().await, command).await
    }

    async fn send_on(
        &self,
        mut connection: MutexGuard<'_, MySqlConnection>,
        command: Command,
    ) -> Result<(), Error> {
        // Not `is_valid`: after a long lock wait only the server knows, because its idle timeout does not run during the wait.
        if self.is_lost() {
            return Err(Error::Lost);
        }
        let sent = Instant::now();
        let sending = async {
            match command {
                Command::Ping => connection.ping().await,
                Command::RollBack => connection.execute("ROLLBACK").await.map(|_| ()),
            }
        };
        if let Ok(Ok(())) = timeout(self.limit, sending).await {
            self.record_contact(sent);
            return Ok(());
        }
        self.mark_lost();
        Err(Error::Lost)
    }

    fn mark_lost(&self) {
        self.is_lost.store(true, Ordering::SeqCst);
        self.loss.notify_waiters();
    }

    pub(super) async fn lost(&self) {
        loop {
            let loss = self.loss.notified();
            if self.is_lost() {
                return;
            }
            loss.await;
        }
    }

    pub(super) fn mark_idle(&self) {
        self.idle_since.store(self.millis(Instant::now()), Ordering::SeqCst);
    }

    /// Returns the time since it was returned to the pool.
    pub(super) fn idle_time(&self) -> Duration {
        self.since(&self.idle_since)
    }

    fn millis(&self, time: Instant) -> u64 {
        u64::try_from(time.duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }

    fn since(&self, time: &AtomicU64) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_millis(time.load(Ordering::SeqCst)))
    }
}

#[derive(Clone, Copy)]
enum Command {
    Ping,
    RollBack,
}

/// Returns the `SET` statement that makes the server end the session, and so release its locks, after this idle time. Rounded up to whole
/// seconds, the servers' unit.
///
/// Works on both servers. MariaDB executes the text in `/*M! */`, because a global limit on idle transactions would take precedence over
/// `wait_timeout` there. The `net_` timeouts cover a client that disappears in the middle of a packet.
pub fn idle_session_timeout_sql(idle_timeout: Duration) -> String {
    let seconds = whole_seconds(idle_timeout).as_secs().max(1);
    format!(
        "SET SESSION wait_timeout = {seconds}, SESSION net_read_timeout = {seconds}, SESSION net_write_timeout = {seconds} \
         /*M! , SESSION idle_transaction_timeout = {seconds}, SESSION idle_readonly_transaction_timeout = {seconds}, \
         SESSION idle_write_transaction_timeout = {seconds} */"
    )
}

fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs_f64().ceil() as u64)
}

/// Reads the server's id of a connection.
pub(super) async fn connection_id(connection: &mut MySqlConnection) -> Result<u64, sqlx::Error> {
    sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(connection).await
}
