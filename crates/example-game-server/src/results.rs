//! Results of games: a journal on disk, and the loop that reports what is in it.
//!
//! A result is in the journal before a player sees it, and stays there until Playhouse has applied all of it. A server that is killed
//! in between reports it after its next start. Each request has an idempotency key made of the match id, so a repetition has no second
//! effect.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::error::chain;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::duel::{Ending, Seat};
use crate::service_api::{ReportError, ServiceApi};

/// The resource that the winner receives. It is counted: each victory adds one.
pub const TROPHY: &str = "trophy";

const EXTENSION: &str = "json";
/// The folder of results that Playhouse refused for good.
const REFUSED: &str = "refused";
/// How long to wait after a failed report.
const RETRY: Duration = Duration::from_secs(1);

/// A game that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GameResult {
    pub match_id: Uuid,
    /// RFC 3339.
    pub ended_at: String,
    pub winner: Option<Seat>,
    pub ending: Ending,
    pub players: [PlayerResult; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlayerResult {
    pub user_id: Option<Uuid>,
    pub name: Option<String>,
    pub points: u8,
}

/// The results that are not reported yet, one file for each.
#[derive(Clone, Debug)]
pub struct Journal {
    folder: PathBuf,
}

impl Journal {
    /// Opens a journal. Creates its folder.
    pub fn open(folder: impl Into<PathBuf>) -> io::Result<Self> {
        let folder = folder.into();
        fs::create_dir_all(folder.join(REFUSED))?;
        Ok(Self { folder })
    }

    /// Writes a result. When this returns, the result survives a crash of the machine.
    pub fn record(&self, result: &GameResult) -> io::Result<()> {
        let unfinished = self.folder.join(format!("{}.tmp", result.match_id));
        let mut file = File::create(&unfinished)?;
        file.write_all(&serde_json::to_vec(result)?)?;
        file.sync_all()?;
        fs::rename(&unfinished, self.file(result.match_id))?;
        File::open(&self.folder)?.sync_all()
    }

    /// Returns all results that are not reported yet. Puts files aside that are no results.
    pub fn pending(&self) -> io::Result<Vec<GameResult>> {
        let mut pending = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            match serde_json::from_slice(&fs::read(&path)?) {
                Ok(result) => pending.push(result),
                Err(error) => {
                    tracing::error!(file = %path.display(), %error, "not a result; it is moved to the folder `{REFUSED}`");
                    self.put_aside(&path)?;
                }
            }
        }
        Ok(pending)
    }

    fn remove(&self, match_id: Uuid) -> io::Result<()> {
        fs::remove_file(self.file(match_id))
    }

    /// Puts a file aside, for a person to look at.
    fn put_aside(&self, file: &Path) -> io::Result<()> {
        fs::rename(file, self.folder.join(REFUSED).join(file.file_name().unwrap_or_default()))
    }

    fn file(&self, match_id: Uuid) -> PathBuf {
        self.folder.join(format!("{match_id}.{EXTENSION}"))
    }
}

/// Reports the results of a journal to Playhouse.
#[derive(Clone, Debug)]
pub struct Reporter {
    journal: Journal,
    api: ServiceApi,
}

/// What a [tick](Reporter::tick) did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedResults {
    pub reported: usize,
    /// They stay in the journal and are tried again.
    pub failed: usize,
}

impl Reporter {
    pub const fn new(journal: Journal, api: ServiceApi) -> Self {
        Self { journal, api }
    }

    /// Reports everything in the journal.
    pub async fn tick(&self) -> io::Result<ReportedResults> {
        let mut done = ReportedResults::default();
        for result in self.journal.pending()? {
            let match_id = result.match_id;
            match self.api.report(&result).await {
                Ok(()) => {
                    self.journal.remove(match_id)?;
                    done.reported += 1;
                }
                Err(ReportError::Refused(cause)) => {
                    tracing::error!(%match_id, cause, "Playhouse refuses a result; its file is in the folder `{REFUSED}`");
                    self.journal.put_aside(&self.journal.file(match_id))?;
                }
                Err(error @ ReportError::Failed(_)) => {
                    tracing::warn!(outage = "report", %match_id, cause = chain(&error), "cannot report a result; it is tried again");
                    done.failed += 1;
                }
            }
        }
        Ok(done)
    }

    /// Returns how long to wait before the next attempt. None if nothing is left to report.
    pub const fn retry_after(done: &ReportedResults) -> Option<Duration> {
        if done.failed > 0 { Some(RETRY) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use testkit::Folder;

    use super::*;

    fn result() -> GameResult {
        let player = |name: &str, points: u8| PlayerResult {
            user_id: Some(Uuid::from_u128(points.into())),
            name: Some(name.to_owned()),
            points,
        };
        GameResult {
            match_id: Uuid::from_u128(1),
            ended_at: "2026-03-01T12:00:00.000Z".to_owned(),
            winner: Some(Seat::First),
            ending: Ending::Points,
            players: [player("Ada", 3), player("Grace", 1)],
        }
    }

    #[test]
    fn result_is_in_the_journal_until_it_is_removed() {
        let folder = Folder::fresh().unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        assert_eq!(journal.pending().unwrap(), []);
        journal.record(&result()).unwrap();
        journal.record(&result()).unwrap();
        // As after a restart. A file that was not finished is no result.
        fs::write(folder.path().join("half.tmp"), "{\"match").unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        assert_eq!(journal.pending().unwrap(), [result()]);
        journal.remove(result().match_id).unwrap();
        assert_eq!(journal.pending().unwrap(), []);
    }

    #[test]
    fn file_that_is_no_result_is_put_aside() {
        let folder = Folder::fresh().unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        journal.record(&result()).unwrap();
        fs::write(folder.path().join("broken.json"), "{").unwrap();
        for _ in 0..2 {
            assert_eq!(journal.pending().unwrap(), [result()]);
        }
        assert!(folder.path().join(REFUSED).join("broken.json").exists());
    }
}
