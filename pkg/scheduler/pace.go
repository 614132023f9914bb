package scheduler

import (
	"slices"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
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
	again = glance
	if seconds := need / rate; seconds < glance.Seconds() {
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

// lostAfter is the cluster's setting as it is now. It is for what has no attempt, such as
// a part that waits for its node. An attempt has its own: see watch.lostAfter.
func (p *plan) lostAfter() time.Duration { return p.cluster.EffectiveLostAfter().Std() }

// paced reports whether a waiting run needs a token to start.
func (q *waiting) paced() bool { return q.Trigger == task.TriggerCatchUp && !q.begun() }

// line is the tasks of a worker that wait for a token, in the order in which they
// came. A task may stand in it without need.
type line struct {
	tasks   []*taskState
	turn    time.Time // when to look after it
	granted int       // tokens for those that were taken off it in this round
}

// wait puts a task into the line, if it is not in it.
func (l *line) wait(t *taskState) {
	if live := t.live; live != nil && !live.inLine {
		live.inLine = true
		if len(l.tasks) == 0 {
			l.turn = time.Time{}
		}
		l.tasks = append(l.tasks, t)
	}
}

// next takes the first task off the line that waits still; nil if there is none.
func (l *line) next() *taskState {
	for len(l.tasks) > 0 {
		t := l.tasks[0]
		l.tasks[0] = nil
		if l.tasks = l.tasks[1:]; len(l.tasks) == 0 {
			l.tasks = nil
		}
		if t.live != nil && t.live.inLine {
			t.live.inLine = false
			return t
		}
	}
	return nil
}

// goOn has as many tasks of the line looked at as may have a token now.
func (s *shardState) goOn(now time.Time) {
	l := &s.line
	l.granted = 0
	if len(l.tasks) == 0 || now.Before(l.turn) && l.turn.Sub(now) <= glance { // more: the clock was set back
		return
	}
	var again time.Duration
	l.granted, again = s.tokens.Turn(now)
	l.turn = now.Add(again)
	for range l.granted {
		t := l.next()
		if t == nil {
			break
		}
		s.look(t)
	}
	if len(l.tasks) == 0 {
		s.tokens.Leave()
	}
}

// token takes a token for a run of t; false if there is none, or others of the
// shard have waited longer. It goes back if the plan is undone.
func (p *plan) token(t *taskState) bool {
	l := &p.s.line
	if len(l.tasks) > 0 && l.granted == 0 || !p.s.tokens.Take(p.clock) {
		l.wait(t)
		return false
	}
	l.granted = max(l.granted-1, 0)
	p.tokens++
	return true
}

// giveBack gives back the token that was taken last.
func (p *plan) giveBack() {
	p.tokens--
	p.s.tokens.Return(1)
}
