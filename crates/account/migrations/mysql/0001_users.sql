-- Users. An erased one stays as a row without anything personal in it.
CREATE TABLE users (
    user_id BINARY(16) NOT NULL,
    state VARCHAR(16) NOT NULL,
    display_name VARCHAR(100) NULL,
    -- Words with commas between them.
    roles VARCHAR(100) NOT NULL,
    ban_reason VARCHAR(500) NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (user_id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
