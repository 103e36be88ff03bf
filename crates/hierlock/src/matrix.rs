//! The whole matrix of who waits for whom, tried out live.
//!
//! Two users with two accounts with two resources each: fourteen targets, and every ordered pair of them. The first is locked,
//! the second is asked for. What is seen is compared with the rule and, where the server shows who waits, with the server.

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::{Error, Lock, Locks, Target};

/// How long a second acquisition may take before it counts as waiting.
pub const WINDOW: Duration = Duration::from_millis(25);
/// How long the server's tables may take to show a wait, and a wait to end after the release.
const PATIENCE: Duration = Duration::from_secs(5);

/// What was seen. Shown as a table.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// What the targets are called, in the order of rows and columns.
    pub names: Vec<String>,
    /// Those who hold by row, those who ask by column.
    pub cells: Vec<Vec<Cell>>,
}

/// One pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Whether the second must wait by the rule.
    pub must_wait: bool,
    /// Whether it did, and went on when the first was released.
    pub waited: bool,
    /// Whether the server's tables showed the wait. None where there are no such tables, and where nobody waited.
    pub server_agrees: Option<bool>,
}

impl Cell {
    pub fn is_right(&self) -> bool {
        self.must_wait == self.waited && self.server_agrees != Some(false)
    }
}

/// The ids of a try.
struct Ids {
    users: [String; 2],
}

impl Ids {
    /// Ids that nobody else has, no two of which share a bucket. None if there are too few buckets for that.
    fn find(locks: &Locks) -> Option<Self> {
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
    /// Tries every pair. None if there are so few buckets that the targets get in each other's way by chance.
    pub async fn observe(locks: &Locks) -> Result<Option<Self>, Error> {
        let Some(ids) = Ids::find(locks) else { return Ok(None) };
        let targets = ids.targets();
        let mut cells = Vec::new();
        for (_, first) in &targets {
            let mut row = Vec::new();
            for (_, second) in &targets {
                row.push(pair(locks, *first, *second).await?);
            }
            cells.push(row);
        }
        Ok(Some(Self { names: targets.iter().map(|(name, _)| name.clone()).collect(), cells }))
    }

    pub fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter().flatten()
    }

    pub fn is_right(&self) -> bool {
        self.cells().all(Cell::is_right)
    }
}

/// `·` passes, `W` waits, `w` waits and the server's tables cannot be asked, `!` is not as the rules say.
impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.names.iter().map(String::len).max().unwrap_or(0);
        write!(f, "{:width$}  {}", "", self.names.join("  "))?;
        for (name, row) in self.names.iter().zip(&self.cells) {
            let mut line = format!("{name:width$}");
            for (cell, head) in row.iter().zip(&self.names) {
                let mark = match cell {
                    cell if !cell.is_right() => "!",
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

async fn pair(locks: &Locks, first: Target<'_>, second: Target<'_>) -> Result<Cell, Error> {
    let must_wait = first.conflicts_with(&second);
    let holder = locks.acquire(first).await?;
    let mut asking = Box::pin(locks.acquire(second));
    let mut cell = Cell { must_wait, waited: false, server_agrees: None };
    match timeout(WINDOW, &mut asking).await {
        Ok(asked) => return done(holder, asked?, cell).await,
        // On a busy machine what need not wait may still take its time.
        Err(_) if !must_wait => {
            if let Ok(asked) = timeout(PATIENCE, &mut asking).await {
                return done(holder, asked?, cell).await;
            }
        }
        Err(_) => {}
    }
    cell.waited = true;
    cell.server_agrees = tokio::select! {
        seen = server_shows(locks, &holder) => seen?,
        // It did not wait for the release.
        asked = &mut asking => {
            cell.waited = false;
            return done(holder, asked?, cell).await;
        }
    };
    holder.release().await?;
    let asked = timeout(PATIENCE, asking).await.map_err(|_| Error::Timeout(PATIENCE))??;
    asked.release().await?;
    Ok(cell)
}

async fn done(holder: Lock, asked: Lock, cell: Cell) -> Result<Cell, Error> {
    asked.release().await?;
    holder.release().await?;
    Ok(cell)
}

/// Whether the server shows that somebody waits for the holder. None where it cannot be asked.
async fn server_shows(locks: &Locks, holder: &Lock) -> Result<Option<bool>, Error> {
    let Some(holder) = holder.session_id() else { return Ok(None) };
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let Some(waits) = locks.waits().await? else { return Ok(None) };
        if waits.iter().any(|wait| wait.holder == holder) {
            return Ok(Some(true));
        }
    }
    Ok(Some(false))
}
