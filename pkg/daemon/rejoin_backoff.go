package daemon

import (
	"math/rand/v2"
	"time"
)

const (
	// firstRejoinDelay is the maximum delay before a node joins again. Each further loss soon after the last
	// doubles it, up to maxRejoinDelay.
	firstRejoinDelay, maxRejoinDelay = time.Second, 16 * time.Second
	// rejoinResetAfter is how long a session has to last so that earlier losses no longer count.
	rejoinResetAfter = 2 * time.Minute
)

// rejoinBackoff counts sessions that were lost soon after each other. An etcd leader
// that stalls can end the sessions of all nodes at once. Random delays keep them from joining again at the same time,
// and longer delays reduce the load if the sessions are lost again.
type rejoinBackoff struct{ n int }

// nextDelay returns a random delay before the next join, after a session that lasted for the given time.
func (l *rejoinBackoff) nextDelay(lasted time.Duration) time.Duration {
	if lasted > rejoinResetAfter {
		l.n = 0
	}

	most := min(firstRejoinDelay<<min(l.n, 10), maxRejoinDelay)
	l.n++

	return rand.N(most)
}
