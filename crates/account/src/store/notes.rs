//! The SQL of notes.

use base::Timestamp;
use db::{Error, Tx, on};
use sqlx::AssertSqlSafe;

use super::{Queryable, key, uuid};
use crate::{Note, NoteId, UserId};

db::row! {
    struct NoteRow {
        note_id: Vec<u8>,
        at: i64,
        author: String,
        note: String,
    }
}

pub(crate) async fn insert_note(tx: &mut Tx, user: UserId, author: &str, note: &str) -> Result<(), Error> {
    let now = tx.dialect().now();
    let text =
        format!("INSERT INTO user_notes (user_id, at, note_id, author, note) VALUES (?, {now}, ?, ?, ?)");
    let id = NoteId::generate();
    on!(tx, raw => {
        let query = sqlx::query(AssertSqlSafe(text)).bind(key(user.as_uuid())).bind(key(id.as_uuid()));
        query.bind(author).bind(note).execute(raw).await?;
    });
    Ok(())
}

/// Returns the notes about a user, newest first.
pub(crate) async fn notes(from: &mut impl Queryable, user: UserId, limit: u32) -> Result<Vec<Note>, Error> {
    const READ: &str = "SELECT note_id, at, author, note FROM user_notes
        WHERE user_id = ? ORDER BY at DESC, note_id DESC LIMIT ?";
    let rows: Vec<NoteRow> = on!(from, raw => {
        sqlx::query_as(READ).bind(key(user.as_uuid())).bind(i64::from(limit)).fetch_all(raw).await?
    });
    let note = |row: NoteRow| {
        let (id, at) = (NoteId::from_uuid(uuid(&row.note_id)?), Timestamp::from_millis(row.at));
        Ok(Note { id, at, author: row.author, text: row.note })
    };
    rows.into_iter().map(note).collect()
}
