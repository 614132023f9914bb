package kv

import (
	"slices"
	"sync/atomic"
	"time"
)

// deadline is how long a request is waited for of which all callers settle an
// unknown outcome by themselves. What was proposed to an etcd that has just lost
// its leader is never answered: to wait for it for the whole of the client's 5 s
// is to stand still. But an etcd that is slow must not be asked the same again and
// again, so the deadline follows what answers take.
type deadline struct{ d atomic.Int64 }

const (
	leastDeadline = 1500 * time.Millisecond
	mostDeadline  = 5 * time.Second
)

func (d *deadline) timeout() time.Duration { return max(time.Duration(d.d.Load()), leastDeadline) }

// observeAnswer takes in how long a request took: thrice that is waited for the next one;
// after one that was not answered, twice as long as for that.
func (d *deadline) observeAnswer(took time.Duration, unanswered bool) {
	next := 3 * took
	if unanswered {
		next = 2 * d.timeout()
	}
	d.d.Store(int64(min(next, mostDeadline)))
}

// allResolvedByCaller says that nobody in the pack relies on the answer alone.
func allResolvedByCaller(pack []*ticket) bool {
	return !slices.ContainsFunc(pack, func(t *ticket) bool { return !t.txn.ResolvedByCaller })
}
