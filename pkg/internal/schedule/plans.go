package schedule

import (
	"encoding/binary"
	"sync"

	"github.com/carillonhq/carillon/pkg/task"
)

// sharedPlans caches parsed plans. A million tasks with a few thousand different schedules hold a few thousand
// plans, and each is parsed once.
var sharedPlans = planCache{limit: 16384}

// planCache is a cache with a limit. When it is full, arbitrary entries are removed. Schedules that use a removed
// plan keep it, and the next parse of the same text creates another.
type planCache struct {
	limit int // the maximum of cached plans

	mu    sync.RWMutex
	plans map[string]*plan // by the key that appendKey makes
}

// getPlan returns the plan of a timing from the cache, or parses it. Errors are not cached.
func (c *planCache) getPlan(t task.Timing) (*plan, error) {
	if !isCacheable(t.Schedule) {
		return newPlan(t)
	}

	var space [128]byte
	key := appendKey(space[:0], t)
	c.mu.RLock()
	p := c.plans[string(key)]
	c.mu.RUnlock()

	if p != nil {
		return p, nil
	}

	p, err := newPlan(t)
	if err != nil {
		return nil, err
	}

	return c.putPlan(string(key), p), nil
}

// putPlan adds a plan, and returns the plan to use: another goroutine may have added an equal one first.
func (c *planCache) putPlan(key string, p *plan) *plan {
	c.mu.Lock()
	defer c.mu.Unlock()

	if have := c.plans[key]; have != nil {
		return have
	}

	if c.plans == nil {
		c.plans = make(map[string]*plan)
	}

	for old := range c.plans {
		if len(c.plans) < c.limit {
			break
		}
		delete(c.plans, old)
	}

	c.plans[key] = p

	return p
}

// isCacheable reports whether a plan may be cached. It excludes texts that are too long to be valid, and @at, which
// is rarely used twice.
func isCacheable(exprs []string) bool {
	if len(exprs) > MaxExpressions {
		return false
	}

	for _, text := range exprs {
		if len(text) > maxLength || len(text) > 2 && text[0] == '@' && text[1] == 'a' && text[2] == 't' {
			return false
		}
	}

	return true
}

// appendKey appends the cache key of a timing. Each text is preceded by its length and the list by its number of
// texts, so that different timings, valid or not, have different keys. Zone and policy follow, then bounds and
// jitter if any is set.
func appendKey(key []byte, t task.Timing) []byte {
	key = binary.AppendUvarint(key, uint64(len(t.Schedule)))
	for _, text := range t.Schedule {
		key = append(binary.AppendUvarint(key, uint64(len(text))), text...)
	}

	for _, text := range [...]string{t.Timezone, t.DST.Gap, t.DST.Fold} {
		key = append(binary.AppendUvarint(key, uint64(len(text))), text...)
	}

	if !t.Start.IsZero() || !t.End.IsZero() || t.Jitter != 0 {
		// Seconds and nanoseconds, which cannot overflow for any time. The bounds have not been checked yet.
		for _, at := range [...]task.Time{t.Start, t.End} {
			key = binary.AppendVarint(binary.AppendVarint(key, at.Unix()), int64(at.Nanosecond()))
		}

		key = binary.AppendVarint(key, int64(t.Jitter))
	}

	return key
}
