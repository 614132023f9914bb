package scheduler

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
)

// scanner answers which attempts are active, with one scan for all the workers
// that ask at about the same time. An answer comes from a scan that began after
// it was asked for: a worker asks after it has opened its shard, so that no
// attempt of an earlier owner can appear behind the scan's back.
type scanner struct {
	scan func(context.Context) ([]store.ActiveKey, int64, error)
	asks chan chan map[int][]store.ActiveKey
}

// gather is how long a scan waits for more workers to ask: they open their
// shards together.
const gather = 10 * time.Millisecond

func newScanner(scan func(context.Context) ([]store.ActiveKey, int64, error)) *scanner {
	return &scanner{scan: scan, asks: make(chan chan map[int][]store.ActiveKey)}
}

// ask returns the channel that the answer comes by. It fails if ctx ends before the scanner takes the
// request.
func (s *scanner) ask(ctx context.Context) (<-chan map[int][]store.ActiveKey, error) {
	answer := make(chan map[int][]store.ActiveKey, 1)

	select {
	case s.asks <- answer:
		return answer, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// run serves until ctx ends.
func (s *scanner) run(ctx context.Context) error {
	for {
		var waiting []chan map[int][]store.ActiveKey
		select {
		case <-ctx.Done():
			return ctx.Err()
		case a := <-s.asks:
			waiting = append(waiting, a)
		}
		timer := time.NewTimer(gather)
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

func (s *scanner) scanUntilDone(ctx context.Context) ([]store.ActiveKey, error) {
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
