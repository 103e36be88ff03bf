CREATE TABLE drops (
    drop_id BLOB NOT NULL,
    name TEXT NOT NULL,
    state INTEGER NOT NULL,
    -- What a unit is: the resource that the buyer's account is granted.
    resource TEXT NOT NULL,
    opens_at INTEGER NULL,
    closes_at INTEGER NULL,
    -- When it was really opened and closed.
    opened_at INTEGER NULL,
    closed_at INTEGER NULL,
    -- Why it is over.
    end_reason INTEGER NULL,
    created_at INTEGER NOT NULL,
    -- Counts up by one with every change of this row.
    version INTEGER NOT NULL,
    -- Price, limits, lanes, admission: versioned JSON that drops::model reads.
    terms TEXT NOT NULL,
    -- Of the shuffle: secret until the opening.
    seed BLOB NOT NULL,
    -- Not 0: nobody is admitted, whatever the state.
    everyone_waits INTEGER NOT NULL,
    PRIMARY KEY (drop_id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX drops_by_name ON drops (name);
CREATE INDEX drops_by_state ON drops (state, opens_at)
