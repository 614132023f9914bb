// Package activescan answers which attempts are active, with one scan for all shards that ask at
// about the same time. An answer comes from a scan that began after it was asked for: the owner of a
// shard asks after it has opened the shard, so that no attempt of an earlier owner can appear behind the
// scan's back. A scan that fails is tried again for as long as the scanner runs.
package activescan

import (
	"context"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
)

// A Scanner scans for those that ask it. It answers nobody unless Run is under way.
type Scanner struct {
	scan func(context.Context) ([]store.ActiveKey, int64, error)
	asks chan chan map[int][]store.ActiveKey
}

// gatherTime is how long a scan waits for others to ask: shards are opened together.
const gatherTime = 10 * time.Millisecond

// New returns a Scanner that lists the active attempts with scan.
func New(scan func(context.Context) ([]store.ActiveKey, int64, error)) *Scanner {
	return &Scanner{scan: scan, asks: make(chan chan map[int][]store.ActiveKey)}
}

// Ask returns the channel that the answer comes by: the active attempts of all shards. It fails if ctx ends before the scanner takes the
// request.
func (s *Scanner) Ask(ctx context.Context) (<-chan map[int][]store.ActiveKey, error) {
	answer := make(chan map[int][]store.ActiveKey, 1)

	select {
	case s.asks <- answer:
		return answer, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Run scans for those that ask until ctx ends.
func (s *Scanner) Run(ctx context.Context) error {
	for {
		var waiting []chan map[int][]store.ActiveKey

		select {
		case <-ctx.Done():
			return ctx.Err()
		case a := <-s.asks:
			waiting = append(waiting, a)
		}

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

// scanUntilDone scans until a scan succeeds.
func (s *Scanner) scanUntilDone(ctx context.Context) ([]store.ActiveKey, error) {
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
