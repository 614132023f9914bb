package embedded

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/zap"
)

// runCompaction compacts old revisions at regular intervals, until ctx ends or the server stops. etcd's own
// compaction by revision runs only every five minutes. At 500 requests of group commit a second, that would leave
// 150,000 revisions more than those that should be kept. In a cluster of several members, only the leader compacts.
func (s *Server) runCompaction(ctx context.Context) {
	t := time.NewTicker(s.cfg.CompactionInterval)
	defer t.Stop()

	ages := revisionAges{keep: s.cfg.CompactionAge}
	ages.addSample(time.Now(), s.etcd.KV().Rev())
	var growth growthGate

	for {
		select {
		case <-ctx.Done():
			return
		case <-s.done:
			return
		case <-t.C:
		}

		now, rev := time.Now(), s.etcd.KV().Rev()
		ages.addSample(now, rev)

		// While the data use less than half of the quota, younger revisions are kept, too, so that events can be read, and
		// large data are compacted less often.
		upTo, size := rev-s.cfg.CompactionRetention, s.etcd.Backend().SizeInUse()
		worth := growth.addSize(size)
		if size <= s.cfg.QuotaBytes/2 {
			upTo = min(upTo, ages.oldestKept(now))
			if !worth {
				continue
			}
		}

		if upTo <= 0 || s.etcd.Leader() != s.etcd.MemberID() {
			continue
		}

		switch _, err := s.client.Compact(ctx, upTo); {
		case err == nil, errors.Is(err, rpctypes.ErrCompacted): // compacted by another client, or nothing new was written
			growth.startOver()
		case ctx.Err() != nil:
			return
		default:
			s.cfg.Logger.Warn("old revisions were not compacted", zap.Int64("rev", upTo), zap.Error(err))
		}
	}
}

// alwaysCompacted is the size of data in use, in bytes, up to which each compaction is worthwhile.
const alwaysCompacted = 256 << 20

// growthGate decides whether a compaction is worthwhile. A compaction visits all keys, which takes more than a second of CPU
// for the keys of a million tasks. So large data are compacted when they have grown by a twentieth since the last
// compaction. Old revisions can be at most the growth, so they take little space.
type growthGate struct {
	compacted bool  // there was a compaction since the start
	smallest  int64 // the smallest size since the last compaction, which deletes in the background; 0: not known
}

// addSize records the size of the data in use, and reports whether a compaction is worthwhile.
func (g *growthGate) addSize(size int64) bool {
	if g.smallest == 0 || size < g.smallest {
		g.smallest = size
	}

	return !g.compacted || size <= alwaysCompacted || size-g.smallest >= g.smallest/20
}

// startOver records that a compaction has begun.
func (g *growthGate) startOver() { g.compacted, g.smallest = true, 0 }

// revisionAges records how old the revisions are, because etcd does not store that. Its precision is the interval
// between two samples.
type revisionAges struct {
	keep  time.Duration // the age up to which revisions are kept; 0 disables the limit
	known []age         // the samples, the oldest first; the first is old enough, or the only one
}

// age is one sample.
type age struct {
	at  time.Time
	rev int64 // the newest revision at that time
}

// addSample records that rev is the newest revision at the time now.
func (a *revisionAges) addSample(now time.Time, rev int64) {
	if a.keep > 0 {
		a.known = append(a.known, age{now, rev})
	}
}

// oldestKept returns the newest revision that is known to be older than keep, up to which etcd may be compacted. It
// returns 0 if there is none, and the highest number if keep is 0.
func (a *revisionAges) oldestKept(now time.Time) int64 {
	if a.keep == 0 {
		return 1<<63 - 1
	}

	// Drop a sample when the next one is old enough, too.
	for len(a.known) > 1 && now.Sub(a.known[1].at) >= a.keep {
		a.known = a.known[1:]
	}

	if len(a.known) == 0 || now.Sub(a.known[0].at) < a.keep {
		return 0
	}

	return a.known[0].rev
}
