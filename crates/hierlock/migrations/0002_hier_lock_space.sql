-- One row: how ids become buckets, which all processes must agree on, and the last fencing token.
CREATE TABLE hier_lock_space (
    id TINYINT NOT NULL PRIMARY KEY,
    buckets INT NOT NULL,
    hash VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    complete BOOLEAN NOT NULL,
    last_token BIGINT UNSIGNED NOT NULL
) ENGINE=InnoDB
