package kv

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/zap"
)

// runCompaction forgets old revisions every now and then, until ctx ends or the server stops. etcd's own compaction by revision comes
// every five minutes, whatever is written: at 500 requests of group commit a second that is 150,000 revisions beside
// those that are to be kept. Of several members the leader does it.
func (s *Server) runCompaction(ctx context.Context) {
	t := time.NewTicker(s.cfg.CompactionInterval)
	defer t.Stop()

	ages := revisionAges{keep: s.cfg.CompactionAge}
	ages.addSample(time.Now(), s.etcd.Server.KV().Rev())

	for {
		select {
		case <-ctx.Done():
			return
		case <-s.done:
			return
		case <-t.C:
		}

		now, rev := time.Now(), s.etcd.Server.KV().Rev()
		ages.addSample(now, rev)

		upTo := rev - s.cfg.CompactionRetention
		if s.etcd.Server.Backend().SizeInUse() <= s.cfg.QuotaBytes/2 {
			upTo = min(upTo, ages.oldestKept(now))
		}

		if upTo <= 0 || s.etcd.Server.Leader() != s.etcd.Server.MemberID() {
			continue
		}

		switch _, err := s.client.Compact(ctx, upTo); {
		case err == nil, errors.Is(err, rpctypes.ErrCompacted): // by somebody else, or nothing was written since
		case ctx.Err() != nil:
			return
		default:
			orNop(s.cfg.Logger).Warn("old revisions were not compacted", zap.Int64("rev", upTo), zap.Error(err))
		}
	}
}

// revisionAges knows how old revisions are, to the interval in which it is told: etcd does not.
type revisionAges struct {
	keep  time.Duration // 0: no revision is too young
	known []age         // the oldest first; the first is old enough, or the only one
}

type age struct {
	at  time.Time
	rev int64 // the newest at that time
}

func (a *revisionAges) addSample(now time.Time, rev int64) {
	if a.keep > 0 {
		a.known = append(a.known, age{now, rev})
	}
}

// oldestKept is the newest revision that is older than keep; 0 if it knows of none.
func (a *revisionAges) oldestKept(now time.Time) int64 {
	if a.keep == 0 {
		return 1<<63 - 1
	}

	for len(a.known) > 1 && now.Sub(a.known[1].at) >= a.keep {
		a.known = a.known[1:]
	}

	if len(a.known) == 0 || now.Sub(a.known[0].at) < a.keep {
		return 0
	}

	return a.known[0].rev
}
