package scheduler

import (
	"slices"
	"sync"
	"time"
)

// pace is how fast an engine starts runs of ticks that came to light late, so that
// an outage is not followed by a stampede: a bucket of tokens that all workers of a
// node share. A worker keeps a line of its tasks that wait for one, and looks at no
// more of them than there are tokens.
type pace struct {
	rate func() float64 // tokens per second

	mu     sync.Mutex
	bucket bucket
	turns  []*worker // those with a line; who has waited longest is first
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

// enough is a token, but for what arithmetic loses.
const enough = 1 - 1e-6

// take takes a token; false if there is none.
func (p *pace) take(now time.Time) bool {
	rate := p.rate()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bucket.fill(now, rate)
	if p.bucket.level < enough {
		return false
	}
	p.bucket.level--
	return true
}

// give gives tokens back that were not used.
func (p *pace) give(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bucket.level += float64(n)
}

// shortTurn is how often a worker looks after its line at most: then several tasks
// go on in one commit.
const shortTurn = 50 * time.Millisecond

// turn is how many tasks of a worker's line may have a token now, and when it may
// ask again. Of several workers each has its share, and its turn after the others.
func (p *pace) turn(w *worker, now time.Time) (n int, again time.Duration) {
	rate := p.rate()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bucket.fill(now, rate)
	if !slices.Contains(p.turns, w) {
		p.turns = append(p.turns, w)
	}
	left := p.bucket.level
	if left >= enough {
		n = max(1, int(left)/len(p.turns))
		left -= float64(n)
		p.leave(w)
		p.turns = append(p.turns, w)
	}
	need := 1 - left + float64(slices.Index(p.turns, w))
	again = maxIdleSleep
	if seconds := need / rate; seconds < maxIdleSleep.Seconds() {
		again = time.Duration(seconds * float64(time.Second))
	}
	return n, max(again, shortTurn)
}

func (p *pace) leave(w *worker) {
	p.turns = slices.DeleteFunc(p.turns, func(o *worker) bool { return o == w })
}

// done takes out a worker that has no line any more.
func (p *pace) done(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave(w)
}

// catchUpRate is this node's share of the cluster's rate: as large as its share of
// the shards.
func (e *Engine) catchUpRate() float64 {
	c := e.cfg.Cluster()
	e.mu.Lock()
	owned := max(len(e.workers), 1)
	e.mu.Unlock()
	rate := float64(c.CatchUp())
	if owned < c.Shards {
		rate *= float64(owned) / float64(c.Shards)
	}
	return rate
}

// shardTokens are the tokens of an engine as one of its shards takes them.
type shardTokens struct {
	pace   *pace
	worker *worker
}

func (t shardTokens) Take(now time.Time) bool                 { return t.pace.take(now) }
func (t shardTokens) Return(n int)                            { t.pace.give(n) }
func (t shardTokens) Turn(now time.Time) (int, time.Duration) { return t.pace.turn(t.worker, now) }
func (t shardTokens) Leave()                                  { t.pace.done(t.worker) }
