//! The table of a queue. Its statements are part of a migration, so they must not change once they are released.

/// A `SELECT` column, in the same database, that counts the unfinished items of a key. It takes one parameter, the
/// [hash of the key](crate::WorkQueue::key_hash).
#[macro_export]
macro_rules! unfinished_column {
    ($table:literal) => {
        concat!(
            "(SELECT COUNT(*) FROM ",
            $table,
            " unfinished WHERE unfinished.key_hash = ? AND unfinished.state IN (0, 2))"
        )
    };
}

/// The statement that creates a queue's table on MySQL and MariaDB.
#[macro_export]
macro_rules! mysql_table {
    ($table:literal) => {
        concat!(
            "CREATE TABLE ",
            $table,
            " (
    id BIGINT NOT NULL AUTO_INCREMENT,
    item_id BINARY(16) NOT NULL,
    user_id BINARY(16) NOT NULL,
    item_key VARCHAR(600) NOT NULL,
    key_hash BIGINT NOT NULL,
    state INT NOT NULL,
    due_at BIGINT NOT NULL,
    attempts INT NOT NULL,
    lease BIGINT NOT NULL,
    holder BINARY(16) NULL,
    created_at BIGINT NOT NULL,
    cause VARCHAR(1000) NULL,
    payload MEDIUMBLOB NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY by_item_id (item_id),
    KEY by_state (state, due_at, id),
    KEY by_key (key_hash, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
"
        )
    };
}

/// The statements that create a queue's table on SQLite.
#[macro_export]
macro_rules! sqlite_table {
    ($table:literal) => {
        concat!(
            "CREATE TABLE ",
            $table,
            " (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    item_id BLOB NOT NULL UNIQUE,
    user_id BLOB NOT NULL,
    item_key TEXT NOT NULL,
    key_hash INTEGER NOT NULL,
    state INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    lease INTEGER NOT NULL,
    holder BLOB NULL,
    created_at INTEGER NOT NULL,
    cause TEXT NULL,
    payload BLOB NOT NULL
) STRICT;
CREATE INDEX ",
            $table,
            "_by_state ON ",
            $table,
            " (state, due_at, id);
CREATE INDEX ",
            $table,
            "_by_key ON ",
            $table,
            " (key_hash, id);
"
        )
    };
}
