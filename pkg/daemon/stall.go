package daemon

import (
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// stallAge is after how long without a commit a node with overdue ticks stalls.
	stallAge = 10 * time.Second
	// stallFirst and stallMost are how long it owns no shards then: longer each time
	// that it happens soon after the last.
	stallFirst, stallMost = 30 * time.Second, 10 * time.Minute
)

// shardWorkers decide the ticks of the node's shards.
type shardWorkers interface {
	// Stalled returns the shards whose workers have decided nothing for an age, and an
	// error if that is so for all that the workers do.
	Stalled(now time.Time, age time.Duration) (shards []int, all error)
	// Restart has the worker of a shard begin anew.
	Restart(shard int)
}

// stallMonitor has stalled workers begin anew, and gives the node's shards up if all
// of them stall. It looks when etcd has just taken an announcement, and has so for
// a while: that etcd is away is no reason. It belongs to one goroutine.
type stallMonitor struct {
	workers     shardWorkers
	env         Environment
	eligibility *eligibility
	log         *zap.Logger

	strikes int
	rest    time.Duration
	until   time.Time // it owns no shards; zero if it may
	back    time.Time // since when it may again
}

// checkStalls judges the node; steady is for how long etcd has taken each announcement.
func (s *stallMonitor) checkStalls(now time.Time, steady time.Duration) {
	if !s.until.IsZero() && !now.Before(s.until) {
		s.until, s.back = time.Time{}, now
		s.eligibility.setReason(task.UnfitStalled, nil)
	}

	if steady < stallAge {
		s.strikes = 0
		return
	}

	shards, all := s.workers.Stalled(s.env.Now(), stallAge)
	if len(shards) == 0 && all == nil {
		s.strikes = 0
		return
	}

	// Once may be the end of a pause of the whole process.
	if s.strikes++; s.strikes < 2 {
		return
	}

	s.strikes = 0

	for _, id := range shards {
		s.log.Warn("a worker made no progress and is restarted", zap.Int("shard", id))
		s.workers.Restart(id)
	}

	if all == nil || !s.until.IsZero() {
		return
	}

	if s.rest = min(max(2*s.rest, stallFirst), stallMost); now.Sub(s.back) > 2*stallMost {
		s.rest = stallFirst
	}

	s.until = now.Add(s.rest)
	s.eligibility.setReason(task.UnfitStalled, all)
}
