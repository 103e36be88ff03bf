package main

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/castaneai/minimatch"
	pb "github.com/castaneai/minimatch/gen/openmatch"
	"github.com/castaneai/minimatch/gen/openmatch/openmatchconnect"
	"github.com/castaneai/minimatch/pkg/statestore"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/h2c"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// frontend serves tickets until it is killed.
func frontend(redis, rpc, listen string) error {
	client, locker, err := connect(redis, 0)
	if err != nil {
		return err
	}
	store := statestore.NewFrontendStoreWithTicketCache(
		statestore.NewRedisStore(client, locker), ticketCache(), statestore.WithTicketCacheTTL(ticketCacheTTL))
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	ready := func() { fmt.Printf("{\"open_match\":%q}\n", listener.Addr().String()) }
	switch rpc {
	case "grpc":
		// The keepalive settings of minimatch's load test.
		server := grpc.NewServer(grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: 3 * time.Second,
			Time:              time.Second,
			Timeout:           5 * time.Second,
		}))
		pb.RegisterFrontendServiceServer(server, minimatch.NewFrontendGPRCService(store))
		ready()
		return server.Serve(listener)
	case "connect":
		mux := http.NewServeMux()
		mux.Handle(openmatchconnect.NewFrontendServiceHandler(minimatch.NewFrontendService(store)))
		server := &http.Server{Handler: h2c.NewHandler(mux, &http2.Server{})}
		ready()
		return server.Serve(listener)
	default:
		return fmt.Errorf("unknown --rpc %q", rpc)
	}
}
