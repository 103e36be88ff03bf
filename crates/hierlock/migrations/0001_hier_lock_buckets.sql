-- What locks are taken on: 0 users, 1 accounts, 2 resources. Filled once, and never written while locking.
CREATE TABLE hier_lock_buckets (
    level TINYINT NOT NULL,
    bucket INT NOT NULL,
    PRIMARY KEY (level, bucket)
) ENGINE=InnoDB
