module playhouse/tests/rueidislock

go 1.22.7

// The version that minimatch requires.
require github.com/redis/rueidis v1.0.31
