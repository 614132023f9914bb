package ask

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
)

const (
	// shareFor is how long an answer is given again. Callers that ask the same at the same time share one. Counting the ticks
	// of a million tasks takes the owners much longer than most questions, so a load is given again for shareLoadFor: not
	// longer than rememberFor, so that nobody gets an answer from before what they have written.
	shareFor     = time.Second
	shareLoadFor = 10 * time.Second
	// keepFor is how long the last answer to a question is kept for when the owners cannot be asked, and maxKept how
	// many are kept.
	keepFor = 10 * time.Minute
	maxKept = 64
	// watchedFor is how long ago a question may have been asked that somebody still watches. Those who watch a list ask
	// every few seconds.
	watchedFor = 30 * time.Second
	// maxKeptRows is the maximum number of rows that are kept with an answer.
	maxKeptRows = 200
	// rememberFor is for how long a subject's lists must contain what it has written. Owners that are further behind say so.
	rememberFor = 10 * time.Second
	// maxWriters is the number of subjects for which the cache remembers when they last wrote something.
	maxWriters = 1000
)

// cache holds the last answers to questions. The zero value is empty. All times are those of the monotonic clock.
type cache struct {
	mu      sync.Mutex
	entries map[string]*entry
	wrote   map[string]*writes // what subjects have written, if that is less than rememberFor ago
}

// writes are the last writes of a subject.
type writes struct {
	at        time.Time // the last one
	revisions Revisions // those of the last ones, as far as they are known
}

// entry is what is known of one question.
type entry struct {
	used     time.Time   // guarded by cache.mu
	repeated bool        // it was asked more than once; guarded by cache.mu
	subject  string      // who has asked last; guarded by cache.mu
	refused  atomic.Bool // it was asked, and there is no answer

	mu     sync.Mutex
	asking *asking // the owners are being asked; nil: nobody asks them
	answer *Answer // the last answer; nil: none
	asked  time.Time
	rows   keptRows
}

// asking is a question that is on its way. Its other fields are set before done is closed.
type asking struct {
	began  time.Time
	needed Revisions // what the answer must contain
	done   chan struct{}
	answer Answer
	err    error
}

// keptRows are the rows of a list as they were last shown.
type keptRows struct {
	view string // what the rows depend on, apart from the question
	rows any
	info Answer
	at   time.Time
}

// entryOf returns the entry of a question of a subject, and drops those that were not used for long.
func (c *cache) entryOf(key, subject string) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()

	now := time.Now()
	if e := c.entries[key]; e != nil {
		e.used, e.repeated, e.subject = now, true, subject
		return e
	}

	for k, e := range c.entries {
		if now.Sub(e.used) > keepFor {
			delete(c.entries, k)
		}
	}

	if len(c.entries) >= maxKept {
		delete(c.entries, c.leastWanted(now))
	}
	if c.entries == nil {
		c.entries = map[string]*entry{}
	}

	e := &entry{used: now, subject: subject}
	c.entries[key] = e

	return e
}

// leastWanted returns the key of the entry to drop: the one that was not used for the longest time, of those with the
// smallest rank. Entries of subjects that have more than their share go before those of others, so that nobody who asks
// many different questions replaces what others need while the owners are busy. The caller must hold mu.
func (c *cache) leastWanted(now time.Time) (key string) {
	kept := map[string]int{} // by subject
	for _, e := range c.entries {
		kept[e.subject]++
	}
	share := len(c.entries) / len(kept)

	var least *entry
	var minRank int
	for k, e := range c.entries {
		rank := e.rank(now, kept[e.subject] > share)
		if least == nil || cmp.Or(cmp.Compare(rank, minRank), e.used.Compare(least.used)) < 0 {
			key, least, minRank = k, e, rank
		}
	}

	return key
}

// rank returns how much an entry is wanted. overShare is set if its subject has more entries than its share. A question
// that was asked more than once, and lately, is probably watched: if the owners are busy, its answer is needed soon. The
// caller must hold the mu of the cache.
func (e *entry) rank(now time.Time, overShare bool) int {
	switch {
	case e.refused.Load() || now.Sub(e.used) > watchedFor:
		return 0
	case overShare && !e.repeated:
		return 1
	case overShare:
		return 2
	case !e.repeated:
		return 3
	default:
		return 4
	}
}

// noteWrite notes that a subject has written something, and at which revisions, as far as that is known: it must not get
// an answer that may be older.
func (c *cache) noteWrite(subject string, revisions Revisions) {
	c.mu.Lock()
	defer c.mu.Unlock()

	now := time.Now()
	if len(c.wrote) >= maxWriters {
		for s, w := range c.wrote {
			if now.Sub(w.at) > rememberFor {
				delete(c.wrote, s)
			}
		}
	}

	// If still too many subjects write, nobody shares an answer that is older than this.
	if len(c.wrote) >= maxWriters {
		clear(c.wrote)
		c.wrote[""] = &writes{at: now}
	}
	if c.wrote == nil {
		c.wrote = map[string]*writes{}
	}

	w := c.wrote[subject]
	if w == nil || now.Sub(w.at) > rememberFor {
		w = &writes{}
		c.wrote[subject] = w
	}

	w.at, w.revisions = now, w.revisions.With(revisions)
}

// lastWrite returns when a subject has last written something, zero if it has not done so within rememberFor, and the
// revisions that its answers must contain.
func (c *cache) lastWrite(subject string) (at time.Time, revisions Revisions) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, s := range []string{subject, ""} {
		if w := c.wrote[s]; w != nil && time.Since(w.at) <= rememberFor {
			revisions = revisions.With(w.revisions)
			if w.at.After(at) {
				at = w.at
			}
		}
	}

	return at, revisions
}

// shared returns an answer that was asked for after a time and not longer ago than within, and contains some revisions, or
// begins to ask. If it returns neither, the caller must ask and call finish. An answer in which shards are missing is not
// shared for longer than shareFor.
func (e *entry) shared(after time.Time, needed Revisions, within time.Duration) (*Answer, *asking, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if a := e.answer; a != nil {
		if len(a.Missing) > 0 {
			within = min(within, shareFor)
		}
		if e.asked.After(after) && time.Since(e.asked) <= within && a.needed.cover(needed) {
			return a, nil, false
		}
	}
	if e.asking != nil && e.asking.began.After(after) && e.asking.needed.cover(needed) {
		return nil, e.asking, false
	}

	e.asking = &asking{began: time.Now(), needed: needed, done: make(chan struct{})}

	return nil, e.asking, true
}

// lead asks, and passes on the outcome, also after a panic, because others wait for it.
func (e *entry) lead(under *asking, ask func() (Answer, error)) {
	var answer Answer
	var err error
	panicked := callgroup.Catch(func() { answer, err = ask() })
	if panicked != nil {
		err = panicked
	}

	answer.entry = e
	e.finish(under, answer, err)

	if panicked != nil {
		panic(panicked)
	}
}

// finish passes on the outcome of asking. An answer is kept.
func (e *entry) finish(a *asking, answer Answer, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	a.answer, a.err = answer, err
	close(a.done)

	if e.asking == a {
		e.asking = nil
	}
	if err == nil && (e.answer == nil || a.began.After(e.asked)) {
		e.answer, e.asked = &answer, a.began
	}
	e.refused.Store(e.answer == nil)
}

// old returns the last answer, if it may still be given.
func (e *entry) old() (Answer, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.answer == nil || time.Since(e.asked) > keepFor {
		return Answer{}, false
	}

	return *e.answer, true
}

// keepRows keeps the rows of a list, with the answer that they belong to.
func (e *entry) keepRows(view string, rows any, a Answer) {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.rows = keptRows{view: view, rows: rows, info: a, at: time.Now()}
}

// oldRows returns the rows that were last shown in the same view, if they may still be shown.
func (e *entry) oldRows(view string) (rows any, a Answer, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()

	k := e.rows
	if k.view != view || k.rows == nil || time.Since(k.at) > keepFor {
		return nil, Answer{}, false
	}

	return k.rows, k.info, true
}
