-- Entries of the audit log whose change was committed: inserted by the transaction of the change itself.
CREATE TABLE audit_commits (entry_id BLOB NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID
