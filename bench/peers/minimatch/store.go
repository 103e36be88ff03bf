package main

import (
	"time"

	cache "github.com/Code-Hex/go-generics-cache"
	pb "github.com/castaneai/minimatch/gen/openmatch"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

const (
	// The settings of minimatch's own load test.
	ticketCacheTTL      = 10 * time.Second
	backendLockInterval = 200 * time.Millisecond
)

// connect opens the Redis client and the locker. An extendInterval of 0 means the library's default.
func connect(redis string, extendInterval time.Duration) (rueidis.Client, rueidislock.Locker, error) {
	options := rueidis.ClientOption{InitAddress: []string{redis}, DisableCache: true}
	client, err := rueidis.NewClient(options)
	if err != nil {
		return nil, nil, err
	}
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   options,
		ExtendInterval: extendInterval,
	})
	return client, locker, err
}

func ticketCache() *cache.Cache[string, *pb.Ticket] {
	return cache.New[string, *pb.Ticket]()
}
