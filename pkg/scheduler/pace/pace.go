// Package pace limits how fast a node starts runs of ticks that came to light late, so that an outage
// is not followed by a stampede. All shards of a node share one bucket of tokens (Limiter). A shard keeps a
// line of its tasks that wait for a token, and looks at no more of them than its turn gives it (Share).
//
// In any stretch of time there are no more tokens than the rate gives, and one second's worth that the
// bucket holds at first. Shards that wait have their turns one after another, so that none starves. The
// package has no clock: a time that is told late, and a clock that is set back, give no tokens.
package pace

import (
	"slices"
	"sync"
	"time"
)

const (
	// shortestTurn is how often a shard looks after its line at most: then several tasks go on in
	// one commit.
	shortestTurn = 50 * time.Millisecond

	// LongestTurn is how long a shard waits at most until it asks for its next turn.
	LongestTurn = 5 * time.Second
)

// A Limiter is the bucket of tokens that all shards of a node share. It is safe for concurrent use.
type Limiter struct {
	rate func() float64 // tokens per second

	mu     sync.Mutex
	bucket bucket
	turns  []*Share // those with a line; who has waited longest is first
}

// NewLimiter returns a Limiter with a full bucket. It asks rate how many tokens there are per second
// whenever tokens are wanted.
func NewLimiter(rate func() float64) *Limiter { return &Limiter{rate: rate} }

// NewShare returns what one shard takes its tokens by.
func (l *Limiter) NewShare() *Share { return &Share{limiter: l} }

// Snapshot returns how many tokens there are now, and how many shards have a line.
func (l *Limiter) Snapshot(now time.Time) (tokens float64, lines int) {
	rate := l.rate()

	l.mu.Lock()
	defer l.mu.Unlock()

	l.bucket.fill(now, rate)

	return l.bucket.level, len(l.turns)
}

// leaveLine takes a shard out of those that have a line. The caller holds the lock.
func (l *Limiter) leaveLine(s *Share) {
	l.turns = slices.DeleteFunc(l.turns, func(other *Share) bool { return other == s })
}

// A Share is how one shard takes tokens of a Limiter.
type Share struct{ limiter *Limiter }

// Take takes a token; false if there is none.
func (s *Share) Take(now time.Time) bool {
	l := s.limiter
	rate := l.rate()

	l.mu.Lock()
	defer l.mu.Unlock()

	l.bucket.fill(now, rate)

	if l.bucket.level < oneToken {
		return false
	}

	l.bucket.level--

	return true
}

// Return gives tokens back that were not used.
func (s *Share) Return(n int) {
	l := s.limiter

	l.mu.Lock()
	defer l.mu.Unlock()

	l.bucket.level += float64(n)
}

// Turn returns how many tasks of the shard's line may have a token now, and when the shard may ask
// again. It puts the shard among those that have a line. Of several shards each has its share, and
// its turn after the others.
func (s *Share) Turn(now time.Time) (n int, again time.Duration) {
	l := s.limiter
	rate := l.rate()

	l.mu.Lock()
	defer l.mu.Unlock()

	l.bucket.fill(now, rate)

	if !slices.Contains(l.turns, s) {
		l.turns = append(l.turns, s)
	}

	left := l.bucket.level
	if left >= oneToken {
		n = max(1, int(left)/len(l.turns))
		left -= float64(n)
		l.leaveLine(s)
		l.turns = append(l.turns, s)
	}

	need := 1 - left + float64(slices.Index(l.turns, s))
	again = LongestTurn
	if seconds := need / rate; seconds < LongestTurn.Seconds() {
		again = time.Duration(seconds * float64(time.Second))
	}

	return n, max(again, shortestTurn)
}

// Leave says that the shard has no line any more.
func (s *Share) Leave() {
	l := s.limiter

	l.mu.Lock()
	defer l.mu.Unlock()

	l.leaveLine(s)
}

// bucket holds one second's worth of tokens, at least one.
type bucket struct {
	level float64
	at    time.Time // when it was at that level; zero: it is full
}

// fill adds what came since it was filled last. What is told late of the time adds
// nothing, nor does a clock that was set back.
func (b *bucket) fill(now time.Time, rate float64) {
	const setBack = time.Minute
	most := max(rate, 1)

	switch {
	case b.at.IsZero():
		b.level, b.at = most, now
	case now.After(b.at):
		b.level, b.at = b.level+rate*now.Sub(b.at).Seconds(), now
	case b.at.Sub(now) > setBack:
		b.at = now
	}

	b.level = min(b.level, most)
}

// oneToken is a token, but for what arithmetic loses.
const oneToken = 1 - 1e-6
