-- Notes of operators about users. They are removed when the user is erased.
CREATE TABLE user_notes (
    user_id BINARY(16) NOT NULL,
    at BIGINT NOT NULL,
    note_id BINARY(16) NOT NULL,
    author VARCHAR(255) NOT NULL,
    note VARCHAR(2000) NOT NULL,
    PRIMARY KEY (user_id, at, note_id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
