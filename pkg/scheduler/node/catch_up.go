// Package node holds what the workers of a node's shards share. All types are safe for concurrent use.
//
//   - CatchUpLimiter limits how fast runs of late ticks start.
//   - ScanLimiter limits what queries about many tasks cost.
//   - ActiveScanner finds the active attempts for shards that are being opened.
//   - Metrics and Recent count what the workers decide.
//
// The package reads and writes no keys: ActiveScanner gets the function that reads them.
package node

import (
	"slices"
	"sync"
	"time"
)

const (
	// minTurn is the minimum time between two turns of a shard, so that several tasks go into one
	// commit.
	minTurn = 50 * time.Millisecond

	// MaxTurn is the maximum time until a shard asks for its next turn.
	MaxTurn = 5 * time.Second
)

// CatchUpLimiter limits how fast a node starts runs of late ticks, so that an outage is not followed by a
// burst. It is a bucket of tokens that all shards of the node share. A shard keeps a line of its tasks that
// wait for a token, and examines no more of them than its turn allows (CatchUpShare).
//
// In any period, the number of tokens is at most what the rate gives, plus one second's worth that the
// bucket holds at first. Shards that wait have their turns one after another, so that none starves. The
// limiter reads no clock: a time that arrives late, and a clock that is set back, give no tokens.
type CatchUpLimiter struct {
	rate func() float64 // tokens per second

	mu     sync.Mutex
	bucket tokenBucket
	turns  []*CatchUpShare // shards with a line; the one that has waited longest is first
}

// NewCatchUpLimiter returns a CatchUpLimiter with a full bucket. It calls rate for the number of tokens per second
// whenever tokens are requested.
func NewCatchUpLimiter(rate func() float64) *CatchUpLimiter { return &CatchUpLimiter{rate: rate} }

// NewShare returns the share of one shard.
func (l *CatchUpLimiter) NewShare() *CatchUpShare { return &CatchUpShare{limiter: l} }

// Snapshot returns how many tokens there are now, and how many shards have a line.
func (l *CatchUpLimiter) Snapshot(now time.Time) (tokens float64, lines int) {
	rate := l.rate()

	l.mu.Lock()
	defer l.mu.Unlock()

	l.bucket.fill(now, rate)

	return l.bucket.level, len(l.turns)
}

// leaveLine removes a shard from those that have a line. The caller holds the lock.
func (l *CatchUpLimiter) leaveLine(s *CatchUpShare) {
	l.turns = slices.DeleteFunc(l.turns, func(other *CatchUpShare) bool { return other == s })
}

// CatchUpShare takes tokens of a CatchUpLimiter for one shard.
type CatchUpShare struct{ limiter *CatchUpLimiter }

// Take takes a token. It returns false if there is none.
func (s *CatchUpShare) Take(now time.Time) bool {
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

// Return gives back n tokens that were not used.
func (s *CatchUpShare) Return(n int) {
	l := s.limiter

	l.mu.Lock()
	defer l.mu.Unlock()

	l.bucket.level += float64(n)
}

// Turn returns how many tasks of the shard's line may have a token now, and after which time the shard may
// ask again. It adds the shard to those that have a line. Several shards share the tokens equally, and take
// turns. Turn takes no tokens: the shard takes each one with Take.
func (s *CatchUpShare) Turn(now time.Time) (n int, again time.Duration) {
	l := s.limiter
	rate := l.rate()

	l.mu.Lock()
	defer l.mu.Unlock()

	l.bucket.fill(now, rate)

	if !slices.Contains(l.turns, s) {
		l.turns = append(l.turns, s)
	}

	left := l.bucket.level

	// Give the shard its share of the tokens, and move it to the end of the line.
	if left >= oneToken {
		n = max(1, int(left)/len(l.turns))
		left -= float64(n)
		l.leaveLine(s)
		l.turns = append(l.turns, s)
	}

	// Wait until there is a token for this shard, after one for each shard that is ahead of it.
	need := 1 - left + float64(slices.Index(l.turns, s))
	again = MaxTurn
	if seconds := need / rate; seconds < MaxTurn.Seconds() {
		again = time.Duration(seconds * float64(time.Second))
	}

	return n, max(again, minTurn)
}

// Leave declares that the shard has no line any more.
func (s *CatchUpShare) Leave() {
	l := s.limiter

	l.mu.Lock()
	defer l.mu.Unlock()

	l.leaveLine(s)
}

// tokenBucket holds up to one second's worth of tokens, and at least one.
type tokenBucket struct {
	level float64
	at    time.Time // when it had that level; zero: it is full
}

// fill adds the tokens that have accrued since the last call. A time before that adds nothing.
func (b *tokenBucket) fill(now time.Time, rate float64) {
	const setBack = time.Minute
	most := max(rate, 1)

	switch {
	case b.at.IsZero():
		b.level, b.at = most, now
	case now.After(b.at):
		b.level, b.at = b.level+rate*now.Sub(b.at).Seconds(), now
	case b.at.Sub(now) > setBack:
		// The clock was set back by so much that waiting for it to catch up would stop all late runs. Count
		// from now.
		b.at = now
	}

	b.level = min(b.level, most)
}

// oneToken is the level that counts as one token, less the rounding errors of the arithmetic.
const oneToken = 1 - 1e-6
