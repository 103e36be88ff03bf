package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/castaneai/minimatch"
	pb "github.com/castaneai/minimatch/gen/openmatch"
	"github.com/castaneai/minimatch/pkg/statestore"
)

const defaultTick = 100 * time.Millisecond

// backend matches any two tickets until it is killed.
func backend(redis string, tick time.Duration) error {
	client, locker, err := connect(redis, backendLockInterval)
	if err != nil {
		return err
	}
	store := statestore.NewBackendStoreWithTicketCache(
		statestore.NewRedisStore(client, locker), ticketCache(), statestore.WithTicketCacheTTL(ticketCacheTTL))
	backend, err := minimatch.NewBackend(store, minimatch.AssignerFunc(assign))
	if err != nil {
		return err
	}
	profile := &pb.MatchProfile{Name: "duel", Pools: []*pb.Pool{{Name: "all"}}}
	backend.AddMatchFunction(profile, minimatch.MatchFunctionSimple1vs1)
	fmt.Println(`{"engine":true}`)
	return backend.Start(context.Background(), tick)
}

var (
	// The process id makes connections unique over several backends.
	process = strconv.Itoa(os.Getpid())
	matches atomic.Uint64
)

// assign gives each match a unique connection.
func assign(_ context.Context, made []*pb.Match) ([]*pb.AssignmentGroup, error) {
	groups := make([]*pb.AssignmentGroup, 0, len(made))
	for _, match := range made {
		ids := make([]string, 0, len(match.Tickets))
		for _, ticket := range match.Tickets {
			ids = append(ids, ticket.Id)
		}
		connection := process + "-" + strconv.FormatUint(matches.Add(1), 10) + ".bench:7777"
		groups = append(groups, &pb.AssignmentGroup{
			TicketIds:  ids,
			Assignment: &pb.Assignment{Connection: connection},
		})
	}
	return groups, nil
}
