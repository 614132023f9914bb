package schedule

import (
	"encoding/binary"
	"sync"

	"github.com/carillonhq/carillon/pkg/task"
)

// plans keeps what was parsed, so that a million tasks with a few thousand
// different rules hold a few thousand plans, and parse as many.
var plans = planCache{limit: 16384}

// A planCache is bounded: when it is full, some entry gives way. Schedules that
// hold its plan keep it; only the next parse of that text makes another.
type planCache struct {
	limit int

	mu    sync.RWMutex
	plans map[string]*plan
}

func (c *planCache) get(exprs []string, timezone string, dst task.DST) (*plan, error) {
	if !cacheable(exprs) {
		return newPlan(exprs, timezone, dst)
	}
	var space [128]byte
	key := appendKey(space[:0], exprs, timezone, dst)
	c.mu.RLock()
	p := c.plans[string(key)]
	c.mu.RUnlock()
	if p != nil {
		return p, nil
	}
	p, err := newPlan(exprs, timezone, dst)
	if err != nil {
		return nil, err
	}
	return c.put(string(key), p), nil
}

func (c *planCache) put(key string, p *plan) *plan {
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

// cacheable leaves out what is too long to be right, and @at, which hardly ever
// comes twice.
func cacheable(exprs []string) bool {
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

// appendKey writes the texts with their lengths, so that no text, right or
// wrong, can pass for two. The last three are always the zone and the policy.
func appendKey(key []byte, exprs []string, timezone string, dst task.DST) []byte {
	for _, text := range exprs {
		key = append(binary.AppendUvarint(key, uint64(len(text))), text...)
	}
	for _, text := range [...]string{timezone, dst.Gap, dst.Fold} {
		key = append(binary.AppendUvarint(key, uint64(len(text))), text...)
	}
	return key
}
