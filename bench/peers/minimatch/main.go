// Command minimatch runs minimatch as a frontend or a backend, as the reference of a benchmark.
//
//	minimatch frontend --redis 127.0.0.1:6379 --rpc grpc|connect
//	minimatch backend  --redis 127.0.0.1:6379
//
// Each prints one line when it is ready: {"open_match":"127.0.0.1:PORT"} or {"engine":true}.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("usage: minimatch frontend|backend [flags]"))
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	redis := flags.String("redis", "127.0.0.1:6379", "address of Redis")
	rpc := flags.String("rpc", "grpc", "frontend: grpc (grpc-go) or connect (Connect over h2c)")
	listen := flags.String("listen", "127.0.0.1:0", "frontend: listen address")
	tick := flags.Duration("tick", defaultTick, "backend: time between two ticks")
	if err := flags.Parse(os.Args[2:]); err != nil {
		fail(err)
	}
	switch os.Args[1] {
	case "frontend":
		fail(frontend(*redis, *rpc, *listen))
	case "backend":
		fail(backend(*redis, *tick))
	default:
		fail(fmt.Errorf("unknown command %q", os.Args[1]))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}
