package schedule

import (
	"encoding/binary"
	"sync"

	"github.com/carillonhq/carillon/pkg/task"
)

// sharedPlans keeps what was parsed, so that a million tasks with a few thousand
// different rules hold a few thousand plans, and parse as many.
var sharedPlans = planCache{limit: 16384}

// A planCache is bounded: when it is full, some entry gives way. Schedules that
// hold its plan keep it; only the next parse of that text makes another.
type planCache struct {
	limit int

	mu    sync.RWMutex
	plans map[string]*plan
}

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

// isCacheable leaves out what is too long to be right, and @at, which hardly ever
// comes twice.
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

// appendKey writes the texts with their number and lengths, so that no text,
// right or wrong, can pass for two; then the zone, the policy, and the bounds and
// the jitter, if there are any.
func appendKey(key []byte, t task.Timing) []byte {
	key = binary.AppendUvarint(key, uint64(len(t.Schedule)))
	for _, text := range t.Schedule {
		key = append(binary.AppendUvarint(key, uint64(len(text))), text...)
	}

	for _, text := range [...]string{t.Timezone, t.DST.Gap, t.DST.Fold} {
		key = append(binary.AppendUvarint(key, uint64(len(text))), text...)
	}

	if !t.Start.IsZero() || !t.End.IsZero() || t.Jitter != 0 {
		// In seconds and nanoseconds, which overflow for no time at all: the bounds
		// are not checked yet.
		for _, at := range [...]task.Time{t.Start, t.End} {
			key = binary.AppendVarint(binary.AppendVarint(key, at.Unix()), int64(at.Nanosecond()))
		}

		key = binary.AppendVarint(key, int64(t.Jitter))
	}

	return key
}
