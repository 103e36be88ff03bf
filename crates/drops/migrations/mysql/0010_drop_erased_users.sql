-- Users who were erased lately: a join that was already under way must not bring them back.
CREATE TABLE drop_erased_users (
    user_id BINARY(16) NOT NULL,
    erased_at BIGINT NOT NULL,
    PRIMARY KEY (user_id),
    KEY by_age (erased_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
