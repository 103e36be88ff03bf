//! The lock compatibility matrix, observed on live locks.
//!
//! Two users with two accounts with two resources each are fourteen targets. For every ordered pair, the first target is locked and the
//! second one is requested. The observation is compared with the rule and, if there is a server, with the server's own tables.

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::{Error, LockGuard, LockManager, Target};

/// How long the second acquisition may take before it counts as waiting.
pub const WINDOW: Duration = Duration::from_millis(25);
/// The time limit for the server's tables to show a wait, and for a wait to end after the release.
const LIMIT: Duration = Duration::from_secs(5);

/// The observed matrix. `Display` writes it as a table.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The names of the targets, in the order of rows and columns.
    pub names: Vec<String>,
    /// Held targets by row, requested targets by column.
    pub cells: Vec<Vec<Cell>>,
}

/// The observation of one pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Whether the second acquisition must wait by the rule.
    pub must_wait: bool,
    /// Whether it waited, and was granted after the release of the first lock.
    pub waited: bool,
    /// Whether the server's tables showed the wait. None if there is no server or no wait.
    pub server_agrees: Option<bool>,
}

impl Cell {
    pub fn is_correct(&self) -> bool {
        self.must_wait == self.waited && self.server_agrees != Some(false)
    }
}

/// The ids of an observation.
struct Ids {
    users: [String; 2],
}

impl Ids {
    /// Finds unique ids of which no two share a bucket. None if there are too few buckets.
    fn find(locks: &LockManager) -> Option<Self> {
        (0..10_000).find_map(|_| {
            let number = base::id::Uuid::now_v7();
            let ids = Self { users: [format!("matrix-{number}-1"), format!("matrix-{number}-2")] };
            let targets = ids.targets();
            let plan = locks.plan(targets.iter().map(|(_, target)| *target)).ok()?;
            (plan.rows().len() == targets.len()).then_some(ids)
        })
    }

    fn targets(&self) -> Vec<(String, Target<'_>)> {
        const NUMBERS: [&str; 2] = ["1", "2"];
        let mut targets = Vec::new();
        for (user, u) in self.users.iter().zip(NUMBERS) {
            targets.extend(Target::user(user).map(|target| (format!("u{u}"), target)));
        }
        for (user, u) in self.users.iter().zip(NUMBERS) {
            for a in NUMBERS {
                targets.extend(Target::account(user, a).map(|target| (format!("u{u}/a{a}"), target)));
            }
        }
        for (user, u) in self.users.iter().zip(NUMBERS) {
            for (a, r) in NUMBERS.iter().flat_map(|a| NUMBERS.map(|r| (*a, r))) {
                let target = Target::resource(user, a, r);
                targets.extend(target.map(|target| (format!("u{u}/a{a}/r{r}"), target)));
            }
        }
        targets
    }
}

impl Matrix {
    /// Observes every pair. None if there are so few buckets that unrelated targets share one.
    pub async fn observe(locks: &LockManager) -> Result<Option<Self>, Error> {
        let Some(ids) = Ids::find(locks) else { return Ok(None) };
        let targets = ids.targets();
        let mut cells = Vec::new();
        for (_, first) in &targets {
            let mut row = Vec::new();
            for (_, second) in &targets {
                row.push(observe_pair(locks, *first, *second).await?);
            }
            cells.push(row);
        }
        Ok(Some(Self { names: targets.iter().map(|(name, _)| name.clone()).collect(), cells }))
    }

    pub fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter().flatten()
    }

    pub fn is_correct(&self) -> bool {
        self.cells().all(Cell::is_correct)
    }
}

/// `·` does not wait, `W` waits, `w` waits and there is no server to confirm it, `!` violates the rule.
impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.names.iter().map(String::len).max().unwrap_or(0);
        write!(f, "{:width$}  {}", "", self.names.join("  "))?;
        for (name, row) in self.names.iter().zip(&self.cells) {
            let mut line = format!("{name:width$}");
            for (cell, head) in row.iter().zip(&self.names) {
                let mark = match cell {
                    cell if !cell.is_correct() => "!",
                    Cell { waited: false, .. } => "·",
                    Cell { server_agrees: None, .. } => "w",
                    _ => "W",
                };
                line += &format!("  {mark:^0$}", head.len());
            }
            write!(f, "\n{}", line.trim_end())?;
        }
        Ok(())
    }
}

async fn observe_pair(locks: &LockManager, first: Target<'_>, second: Target<'_>) -> Result<Cell, Error> {
    let must_wait = first.conflicts_with(&second);
    let holder = locks.acquire(first).await?;
    let mut acquiring = Box::pin(locks.acquire(second));
    let mut cell = Cell { must_wait, waited: false, server_agrees: None };
    match timeout(WINDOW, &mut acquiring).await {
        Ok(acquired) => return release_both(holder, acquired?, cell).await,
        // On a busy machine an acquisition without a conflict may still take longer.
        Err(_) if !must_wait => {
            if let Ok(acquired) = timeout(LIMIT, &mut acquiring).await {
                return release_both(holder, acquired?, cell).await;
            }
        }
        Err(_) => {}
    }
    cell.waited = true;
    cell.server_agrees = tokio::select! {
        seen = server_shows_wait(locks, &holder) => seen?,
        // It was granted before the release.
        acquired = &mut acquiring => {
            cell.waited = false;
            return release_both(holder, acquired?, cell).await;
        }
    };
    holder.release().await?;
    let acquired = timeout(LIMIT, acquiring).await.map_err(|_| Error::Timeout(LIMIT))??;
    acquired.release().await?;
    Ok(cell)
}

async fn release_both(holder: LockGuard, acquired: LockGuard, cell: Cell) -> Result<Cell, Error> {
    acquired.release().await?;
    holder.release().await?;
    Ok(cell)
}

/// Returns whether the server shows a wait for the holder. None if there is no server.
async fn server_shows_wait(locks: &LockManager, holder: &LockGuard) -> Result<Option<bool>, Error> {
    let Some(holder) = holder.session_id() else { return Ok(None) };
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        let Some(waits) = locks.lock_waits().await? else { return Ok(None) };
        if waits.iter().any(|wait| wait.holder == holder) {
            return Ok(Some(true));
        }
    }
    Ok(Some(false))
}
