-- All versions of the rule sets, profiles and queues that were set at run time. Rows are only added.
CREATE TABLE matchmaking_definition (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    state TEXT NOT NULL,
    content TEXT NOT NULL,
    author TEXT NOT NULL,
    note TEXT,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (kind, name, version)
) STRICT;
-- Of two writers that checked the same revision, the second one fails.
CREATE UNIQUE INDEX matchmaking_definition_by_revision ON matchmaking_definition (revision);
