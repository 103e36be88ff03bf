CREATE TABLE drops (
    drop_id BINARY(16) NOT NULL,
    name VARCHAR(100) NOT NULL,
    state INT NOT NULL,
    -- What a unit is: the resource that the buyer's account is granted.
    resource VARCHAR(255) NOT NULL,
    opens_at BIGINT NULL,
    closes_at BIGINT NULL,
    -- When it was really opened and closed.
    opened_at BIGINT NULL,
    closed_at BIGINT NULL,
    -- Why it is over.
    end_reason INT NULL,
    created_at BIGINT NOT NULL,
    -- Counts up by one with every change of this row.
    version BIGINT NOT NULL,
    -- Price, limits, lanes, admission: versioned JSON that drops::model reads.
    terms MEDIUMTEXT NOT NULL,
    -- Of the shuffle: secret until the opening.
    seed BINARY(32) NOT NULL,
    -- Not 0: nobody is admitted, whatever the state.
    everyone_waits INT NOT NULL,
    PRIMARY KEY (drop_id),
    UNIQUE KEY by_name (name),
    KEY by_state (state, opens_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
