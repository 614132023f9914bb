package node

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
)

// ActiveScanner finds the active attempts, with one scan for all shards that ask at about the same time. It serves
// requests only while Run is running.
//
// It guarantees that a result comes from a scan that began after the request for it. The owner of a shard
// makes the request after it has opened the shard. So no attempt of an earlier owner can appear that the
// scan has missed (G8). A scan that fails is repeated as long as the scanner runs.
type ActiveScanner struct {
	scan func(context.Context) ([]store.ActiveKey, int64, error)
	asks chan chan map[int][]store.ActiveKey
}

// gatherTime is how long a scan waits for further requests, because shards are usually opened together.
const gatherTime = 10 * time.Millisecond

// NewActiveScanner returns an ActiveScanner that lists the active attempts with scan.
func NewActiveScanner(scan func(context.Context) ([]store.ActiveKey, int64, error)) *ActiveScanner {
	return &ActiveScanner{scan: scan, asks: make(chan chan map[int][]store.ActiveKey)}
}

// Ask requests a scan. It returns the channel that delivers the active attempts of all shards, by shard,
// once. It returns an error if ctx ends before the scanner accepts the request. The map is shared and must
// not be changed.
func (s *ActiveScanner) Ask(ctx context.Context) (<-chan map[int][]store.ActiveKey, error) {
	answer := make(chan map[int][]store.ActiveKey, 1)

	select {
	case s.asks <- answer:
		return answer, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Run serves requests until ctx ends.
func (s *ActiveScanner) Run(ctx context.Context) error {
	for {
		var waiting []chan map[int][]store.ActiveKey

		select {
		case <-ctx.Done():
			return ctx.Err()
		case a := <-s.asks:
			waiting = append(waiting, a)
		}

		// Collect the requests of other shards for a short time.
		timer := time.NewTimer(gatherTime)

		for more := true; more; {
			select {
			case a := <-s.asks:
				waiting = append(waiting, a)
			case <-timer.C:
				more = false
			case <-ctx.Done():
				return ctx.Err()
			}
		}

		// The scan begins after all of these requests. Later ones wait for the next scan.
		keys, err := s.scanUntilDone(ctx)
		if err != nil {
			return err
		}

		byShard := map[int][]store.ActiveKey{}
		for _, k := range keys {
			byShard[k.Ref.Shard] = append(byShard[k.Ref.Shard], k)
		}

		for _, w := range waiting {
			w <- byShard
		}
	}
}

// scanUntilDone scans until a scan succeeds or ctx ends.
func (s *ActiveScanner) scanUntilDone(ctx context.Context) ([]store.ActiveKey, error) {
	for {
		keys, _, err := s.scan(ctx)
		if err == nil {
			return keys, nil
		}

		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
