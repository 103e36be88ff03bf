//! The table of definitions. Its unique revision orders all changes.

use base::Timestamp;
use db::{Db, Error, Tx, Value};

use super::model::{Content, Definition, DefinitionKey, DefinitionKind};

const TABLE: &str = "matchmaking_definition";

db::row! {
    struct DefinitionRow {
        kind: String,
        name: String,
        version: i64,
        revision: i64,
        state: String,
        content: String,
        author: String,
        note: Option<String>,
        created_at: i64,
    }
}

/// Returns the newest revision. It is 0 if nothing was ever stored.
pub(super) async fn newest_revision(db: &Db) -> Result<i64, Error> {
    const NEWEST: &str = "SELECT COALESCE(MAX(revision), 0) FROM matchmaking_definition";
    let reading = async {
        let mut connection = db.connection().await?;
        let (revision,): (i64,) = db::on!(connection, raw => sqlx::query_as(NEWEST).fetch_one(raw).await?);
        Ok(revision)
    };
    db.bounded(reading).await
}

/// Returns the newest version of each definition as of a revision.
pub(super) async fn as_of(db: &Db, revision: i64) -> Result<Vec<Definition>, Error> {
    const AS_OF: &str = "SELECT d.kind, d.name, d.version, d.revision, d.state, d.content, d.author, d.note, d.created_at \
        FROM matchmaking_definition d \
        JOIN (SELECT MAX(revision) AS revision FROM matchmaking_definition WHERE revision <= ? GROUP BY kind, name) latest \
        ON latest.revision = d.revision ORDER BY d.kind, d.name";
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<DefinitionRow> = db::on!(connection, raw => {
            sqlx::query_as(AS_OF).bind(revision).fetch_all(raw).await?
        });
        rows.into_iter().map(DefinitionRow::definition).collect()
    };
    db.bounded(reading).await
}

/// Returns the versions of a definition before `before`, the newest first.
pub(super) async fn history(
    db: &Db,
    key: &DefinitionKey,
    before: i64,
    limit: u32,
) -> Result<Vec<Definition>, Error> {
    const HISTORY: &str = "SELECT kind, name, version, revision, state, content, author, note, created_at \
        FROM matchmaking_definition WHERE kind = ? AND name = ? AND version < ? ORDER BY version DESC LIMIT ?";
    let reading = async {
        let mut connection = db.connection().await?;
        let rows: Vec<DefinitionRow> = db::on!(connection, raw => {
            let query = sqlx::query_as(HISTORY).bind(key.kind.word()).bind(&key.name).bind(before);
            query.bind(i64::from(limit)).fetch_all(raw).await?
        });
        rows.into_iter().map(DefinitionRow::definition).collect()
    };
    db.bounded(reading).await
}

/// Inserts a version with the commit of the caller's transaction. The commit fails with [`Error::Duplicate`] if another
/// change got the revision first.
pub(super) fn insert(tx: &mut Tx, new: &Definition) {
    const INSERT: &str = "INSERT INTO matchmaking_definition (kind, name, version, revision, state, content, author, note, created_at)";
    let text = match &new.content {
        Content::Text(text) => text,
        Content::File | Content::Removed => "",
    };
    let row = [
        new.key.kind.word().into(),
        new.key.name.as_str().into(),
        new.version.into(),
        new.revision.into(),
        new.content.word().into(),
        text.into(),
        new.author.as_str().into(),
        new.note.as_deref().into(),
        Value::Now,
    ];
    tx.insert_at_commit(INSERT, [row]);
}

impl DefinitionRow {
    fn definition(self) -> Result<Definition, Error> {
        let corrupt = |cause: &str| Error::Corrupt {
            table: TABLE,
            row: self.revision.to_string(),
            cause: cause.to_owned(),
        };
        let kind = DefinitionKind::parse(&self.kind).ok_or_else(|| corrupt("its kind is unknown"))?;
        let content = Content::from_row(&self.state, self.content.clone());
        Ok(Definition {
            content: content.ok_or_else(|| corrupt("its state is unknown"))?,
            key: DefinitionKey { kind, name: self.name },
            version: self.version,
            revision: self.revision,
            author: self.author,
            note: self.note,
            created_at: Timestamp::from_millis(self.created_at),
        })
    }
}
