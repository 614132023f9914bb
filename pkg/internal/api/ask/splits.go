package ask

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
)

const (
	// splitEvery is how many tasks a part has on average. A part is what a list by name reads too much: etcd counts it
	// within 0.1 ms. For a million tasks, there are 4,000 names.
	splitEvery = 250
	// splitsFor is how long splits are used before the owners are asked again.
	splitsFor = time.Minute
	// splitsWithin is how long a request waits for splits.
	splitsWithin = 250 * time.Millisecond
	// maxSplitSets is for how many selections of namespaces the splits are kept.
	maxSplitSets = 32
)

// splitCache holds the splits of selections of namespaces. The zero value is empty.
type splitCache struct {
	mu   sync.Mutex
	sets map[string]*splitSet
}

// splitSet is the splits of one selection.
type splitSet struct {
	asking sync.Mutex // held by the request that asks the owners

	mu    sync.Mutex
	names []string
	asked time.Time // on the monotonic clock; zero: never
}

// Splits returns names of tasks in order, among those that the caller may read, which divide these tasks into parts of
// similar sizes (see store.BriefPage). They may be a minute old, and older while the owners do not answer, and contain
// deleted tasks. Splits returns none if nobody is able to answer quickly. within is nil for all namespaces.
func (a *Asker) Splits(ctx context.Context, namespace string, within []string) []string {
	q := Question{Namespace: namespace, Within: within, Order: readmodel.ByName, Splits: splitEvery}
	set := a.splits.setOf(q.Key())

	names, asked := set.read()
	if time.Since(asked) <= splitsFor {
		return names
	}

	// One request asks the owners. The others wait for the first answer, but not for newer ones.
	if asked.IsZero() {
		set.asking.Lock()
	} else if !set.asking.TryLock() {
		return names
	}
	defer set.asking.Unlock()

	if names, asked = set.read(); time.Since(asked) > splitsFor {
		names = set.keep(a.askSplits(ctx, httpapi.CallerOf(ctx), &q))
	}

	return names
}

// askSplits asks all scheduling nodes for splits. It returns those that arrive in time. The names of some shards are
// as good as those of all, with larger parts.
func (a *Asker) askSplits(ctx context.Context, caller httpapi.Caller, q *Question) (names []string) {
	// Others may wait for the answer: it does not end with this caller.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), splitsWithin)
	defer cancel()

	answers, _ := a.askNodes(ctx, caller, q, a.schedulingNodes(ctx), nil)
	for _, answer := range answers {
		names = append(names, answer.Splits...)
	}

	slices.Sort(names)

	return slices.Compact(names)
}

// setOf returns the set of a selection.
func (c *splitCache) setOf(key string) *splitSet {
	c.mu.Lock()
	defer c.mu.Unlock()

	set := c.sets[key]
	if set != nil {
		return set
	}

	if c.sets == nil || len(c.sets) >= maxSplitSets {
		c.sets = map[string]*splitSet{}
	}

	set = &splitSet{}
	c.sets[key] = set

	return set
}

// read returns the splits, and when the owners were asked.
func (s *splitSet) read() (names []string, asked time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.names, s.asked
}

// keep stores what the owners have answered, and returns the splits that are in force. An answer without names replaces
// nothing: the owners may be away.
func (s *splitSet) keep(names []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.asked = time.Now(); len(names) > 0 {
		s.names = names
	}

	return s.names
}
