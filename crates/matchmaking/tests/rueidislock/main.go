// Command rueidislock fetches tickets from Redis as minimatch does: in several commands, under the lock of rueidislock.
//
//	rueidislock REDIS PREFIX ROUNDS
//
// It prints the ids that each round took.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// tick is the time between two rounds. A backend of minimatch waits for 100 ms.
const tick = 20 * time.Millisecond

func main() {
	address, prefix := os.Args[1], os.Args[2]
	rounds, err := strconv.Atoi(os.Args[3])
	check(err)
	option := rueidis.ClientOption{InitAddress: []string{address}, DisableCache: true}
	client, err := rueidis.NewClient(option)
	check(err)
	// The defaults of minimatch: two of three keys.
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: option})
	check(err)
	for range rounds {
		locked, unlock, err := locker.WithContext(context.Background(), prefix+"fetchTicketsLock")
		check(err)
		fmt.Println(strings.Join(fetch(locked, client, prefix), " "))
		unlock()
		time.Sleep(tick)
	}
}

// fetch marks up to five tickets as pending.
func fetch(ctx context.Context, client rueidis.Client, prefix string) []string {
	all, pending := prefix+"allTickets", prefix+"proposed_ticket_ids"
	ids, err := client.Do(ctx, client.B().Smembers().Key(all).Build()).AsStrSlice()
	check(err)
	taken, err := client.Do(ctx, client.B().Zrange().Key(pending).Min("0").Max("-1").Build()).AsStrSlice()
	check(err)
	// Long enough for a step in between, if the lock lets one through.
	time.Sleep(5 * time.Millisecond)
	held := map[string]bool{}
	for _, id := range taken {
		held[id] = true
	}
	var free []string
	now := float64(time.Now().Unix())
	for _, id := range ids {
		if held[id] || len(free) == 5 {
			continue
		}
		mark := client.B().Zadd().Key(pending).ScoreMember().ScoreMember(now, id).Build()
		check(client.Do(ctx, mark).Error())
		free = append(free, id)
	}
	return free
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
