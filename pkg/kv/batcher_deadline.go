package kv

import (
	"slices"
	"sync/atomic"
	"time"
)

// deadline is how long the Batcher waits for the answer to a request if all its callers resolve an unknown outcome
// themselves. etcd never answers a request that was proposed to a leader which has just lost its leadership. Waiting
// for the 5 s of the client would stop all shards for that time. On the other hand, a slow etcd must not receive the
// same requests again and again. So the deadline follows the time that answers take.
type deadline struct{ d atomic.Int64 }

// The limits of a deadline.
const (
	leastDeadline = 1500 * time.Millisecond
	mostDeadline  = 5 * time.Second
)

// nextTimeout returns the deadline of the next request.
func (d *deadline) nextTimeout() time.Duration { return max(time.Duration(d.d.Load()), leastDeadline) }

// observeAnswer records how long a request took. The next deadline is three times that, or twice the present deadline if
// the request was not answered, within the limits.
func (d *deadline) observeAnswer(took time.Duration, unanswered bool) {
	next := 3 * took
	if unanswered {
		next = 2 * d.nextTimeout()
	}
	d.d.Store(int64(min(next, mostDeadline)))
}

// allResolvedByCaller reports whether every caller in the pack resolves an unknown outcome itself.
func allResolvedByCaller(pack []*ticket) bool {
	return !slices.ContainsFunc(pack, func(t *ticket) bool { return !t.txn.ResolvedByCaller })
}
