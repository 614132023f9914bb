package daemon

import (
	"math/rand/v2"
	"time"
)

const (
	// rejoinFirst is how long a node waits at most before it joins again; each loss
	// that follows soon doubles that, up to rejoinMost.
	rejoinFirst, rejoinMost = time.Second, 16 * time.Second
	// rejoinCalm is how long a session has to last for the losses before it to count no more.
	rejoinCalm = 2 * time.Minute
)

// losses counts sessions that were lost one soon after the other. An etcd leader
// that stalls can end the sessions of all nodes at once: they must not all come
// back at once, and less and less so if that does not end it.
type losses struct{ n int }

// nextDelay is how long to wait before joining again, after a session that lasted so long.
func (l *losses) nextDelay(lasted time.Duration) time.Duration {
	if lasted > rejoinCalm {
		l.n = 0
	}

	most := min(rejoinFirst<<min(l.n, 10), rejoinMost)
	l.n++

	return rand.N(most)
}
