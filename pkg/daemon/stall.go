package daemon

import (
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// stallAge is how long a node with overdue ticks may be without a commit before it counts as stalled.
	stallAge = 10 * time.Second
	// stallFirst and stallMost limit how long a stalled node owns no shards. The time doubles each
	// time the node stalls again soon.
	stallFirst, stallMost = 30 * time.Second, 10 * time.Minute
)

// shardWorkers is the part of the scheduler that the stall monitor uses.
type shardWorkers interface {
	// Stalled returns the shards whose workers have decided nothing for an age, and an
	// error if that is so for all that the workers do.
	Stalled(now time.Time, age time.Duration) (shards []int, all error)
	// Restart makes the worker of a shard start over.
	Restart(shard int)
}

// stallMonitor restarts stalled workers, and releases the node's shards if all
// of them stall. It checks only after announcements that etcd has accepted for
// some time, because an unavailable etcd is no reason to move shards. One goroutine owns it.
type stallMonitor struct {
	workers     shardWorkers
	env         Environment
	eligibility *eligibility
	log         *zap.Logger

	strikes int           // number of checks in a row that found a stall
	rest    time.Duration // how long the node owns no shards after the latest stall
	until   time.Time     // the end of that time; zero: the node may own shards
	back    time.Time     // when that time last ended
}

// checkStalls checks the workers. steady is how long etcd has accepted every announcement.
func (s *stallMonitor) checkStalls(now time.Time, steady time.Duration) {
	if !s.until.IsZero() && !now.Before(s.until) {
		s.until, s.back = time.Time{}, now
		s.eligibility.setReason(task.IneligibleStalled, nil)
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

	// A single finding may be the end of a pause of the whole process, after which all workers are late.
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
	s.eligibility.setReason(task.IneligibleStalled, all)
}
