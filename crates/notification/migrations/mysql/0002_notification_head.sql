-- How many notifications each user was ever given. Whoever adds some holds this row until they are committed, so that the positions
-- of a user become visible in their order.
CREATE TABLE notification_head (
    user_id BINARY(16) NOT NULL,
    position BIGINT NOT NULL,
    -- Nothing more is kept for a user who was erased.
    erased_at BIGINT NULL,
    PRIMARY KEY (user_id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
