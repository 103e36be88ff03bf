-- Entries of the audit log whose change was committed: inserted by the transaction of the change itself.
CREATE TABLE audit_commits (
    entry_id BINARY(16) NOT NULL PRIMARY KEY
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
