module playhouse/bench/peers/minimatch

go 1.22.7

// The versions that minimatch itself requires.
require (
	github.com/Code-Hex/go-generics-cache v1.3.1
	github.com/castaneai/minimatch v1.0.0
	github.com/redis/rueidis v1.0.31
	golang.org/x/net v0.29.0
	google.golang.org/grpc v1.68.0
)
