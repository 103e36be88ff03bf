//! A session on the server whose transaction holds locks, or is about to.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio::time::{Instant, timeout};

use super::schema;
use crate::{Error, Space};

#[derive(Debug)]
pub(super) struct Session {
    /// The server's number for it.
    pub(super) id: u64,
    pub(super) connection: Mutex<MySqlConnection>,
    pub(super) began: Instant,
    /// Milliseconds from `began` to the last question that the server has answered: it has been patient since then at most.
    contact: AtomicU64,
    /// Milliseconds from `began` to when it was last put away.
    put_away: AtomicU64,
    is_lost: AtomicBool,
    loss: Notify,
    /// How long the server waits for a word of ours.
    server_patience: Duration,
    /// How long an answer may take.
    limit: Duration,
}

/// What sessions are set to.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) wait_timeout: Duration,
    pub(super) heartbeat: Duration,
}

impl Setup {
    /// The server ends a session that has been silent for this long, and its locks with it.
    fn server_patience(&self) -> Duration {
        whole_seconds(self.heartbeat * 3)
    }
}

impl Session {
    /// Connects, and refuses a database that has other buckets than ours.
    pub(super) async fn connect(
        database: &MySqlConnectOptions,
        setup: &Setup,
        ours: &Space,
    ) -> Result<Self, Error> {
        let server_patience = setup.server_patience();
        let began = Instant::now();
        let mut connection = database.connect().await?;
        match schema::recorded(&mut connection).await? {
            None => return Err(Error::NotProvisioned),
            Some((recorded, _)) if recorded != *ours => {
                return Err(Error::OtherSpace { recorded, ours: ours.clone() });
            }
            Some(_) => {}
        }
        let id = id(&mut connection).await?;
        // A waiter that loses its client stays in the queue until its time is over: a second longer than ours.
        let lock_wait = setup.wait_timeout.as_secs() + 1;
        let text = format!(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
             SET SESSION innodb_lock_wait_timeout = {lock_wait};
             {};
             SET SESSION autocommit = 0",
            end_after_silence(server_patience)
        );
        connection.execute(AssertSqlSafe(text)).await?;
        Ok(Self {
            id,
            connection: Mutex::new(connection),
            began,
            contact: AtomicU64::new(0),
            put_away: AtomicU64::new(0),
            is_lost: AtomicBool::new(false),
            loss: Notify::new(),
            server_patience,
            limit: setup.heartbeat,
        })
    }

    /// Notes that a question of that time was answered.
    pub(super) fn answered(&self, asked: Instant) {
        self.contact.fetch_max(self.millis(asked), Ordering::SeqCst);
    }

    /// How long ago the server last heard of us, at the most.
    pub(super) fn silence(&self) -> Duration {
        self.since(&self.contact)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst)
    }

    pub(super) fn is_valid(&self) -> bool {
        !self.is_lost() && self.silence() < self.server_patience
    }

    /// Asks the server whether it is still there. If it is, so are the locks: only the end of the session takes them away.
    pub(super) async fn ping(&self) -> Result<(), Error> {
        self.ask(Question::Ping).await
    }

    /// The same, unless the session is at work, and so speaks to the server by itself.
    pub(super) async fn ping_unless_busy(&self) -> Result<(), Error> {
        match self.connection.try_lock() {
            Ok(connection) => self.ask_on(connection, Question::Ping).await,
            Err(_) => Ok(()),
        }
    }

    pub(super) async fn roll_back(&self) -> Result<(), Error> {
        self.ask(Question::RollBack).await
    }

    /// Not to be left half-way unless the session is done with: the driver would take the answer for that of its next question.
    async fn ask(&self, question: Question) -> Result<(), Error> {
        self.ask_on(self.connection.lock().await, question).await
    }

    async fn ask_on(
        &self,
        mut connection: MutexGuard<'_, MySqlConnection>,
        question: Question,
    ) -> Result<(), Error> {
        // After a long silence only the server knows: it is patient with those who wait for a lock.
        if self.is_lost() {
            return Err(Error::Lost);
        }
        let asked = Instant::now();
        let asking = async {
            match question {
                Question::Ping => connection.ping().await,
                Question::RollBack => connection.execute("ROLLBACK").await.map(|_| ()),
            }
        };
        if let Ok(Ok(())) = timeout(self.limit, asking).await {
            self.answered(asked);
            return Ok(());
        }
        self.lose();
        Err(Error::Lost)
    }

    fn lose(&self) {
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

    pub(super) fn put_away(&self) {
        self.put_away.store(self.millis(Instant::now()), Ordering::SeqCst);
    }

    /// How long ago it was put away.
    pub(super) fn rest(&self) -> Duration {
        self.since(&self.put_away)
    }

    fn millis(&self, time: Instant) -> u64 {
        u64::try_from(time.duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }

    fn since(&self, time: &AtomicU64) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_millis(time.load(Ordering::SeqCst)))
    }
}

#[derive(Clone, Copy)]
enum Question {
    Ping,
    RollBack,
}

/// Makes the server end the session, and so release its locks, once its client has been silent for this long. Rounded up to whole
/// seconds, in which the servers count.
///
/// A statement for `SET` that both servers understand. MariaDB reads what stands in `/*M! */`: there a limit on idle transactions
/// that an operator has set for all sessions would come before `wait_timeout`. The `net_` timeouts are for a client that vanishes in
/// the middle of a message.
pub fn end_after_silence(silence: Duration) -> String {
    let seconds = whole_seconds(silence).as_secs().max(1);
    format!(
        "SET SESSION wait_timeout = {seconds}, SESSION net_read_timeout = {seconds}, SESSION net_write_timeout = {seconds} \
         /*M! , SESSION idle_transaction_timeout = {seconds}, SESSION idle_readonly_transaction_timeout = {seconds}, \
         SESSION idle_write_transaction_timeout = {seconds} */"
    )
}

fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs_f64().ceil() as u64)
}

/// The server's number for the session behind a connection.
pub(super) async fn id(connection: &mut MySqlConnection) -> Result<u64, sqlx::Error> {
    sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(connection).await
}
