package check

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// run is a run, or a record of ticks that did not run, through all its places:
// queue, inboxes, history.
type run struct {
	id       string
	line     *lineage
	tick     int64 // 0 for a run without one
	count    int64
	trigger  string
	state    task.State
	reason   string
	in       map[string]attempt // by node: the inboxes that hold it
	queued   bool
	made     bool // it has been in the queue or in an inbox
	retrying bool // it waits, and was tried before
	attempts int  // those of which a record says how they ended
	ended    bool
	purged   bool // it went with its task
	text     string
	record   *task.Run // of ticks that did not run
	before   task.Time // a first attempt may start until then; zero: at any time
	token    int64     // of the attempt whose outcome is the run's; 0: none
	tokens   []int64
	decided  int64 // revision; 0 if before the history begins
	// activated is the revision since which it is active: from its dispatch, a
	// wait for the next attempt included, to its outcome.
	activated int64
	parenthood
}

// attempt is a record in an inbox.
type attempt struct {
	task.Assigned
	create int64
}

// scheduled reports whether a run with this trigger is the outcome of a tick.
func scheduled(trigger string) bool {
	return trigger == task.TriggerSchedule || trigger == task.TriggerCatchUp
}

// record is whatever the change puts on record for the run; nil: nothing.
func (ch *runChange) record() (*task.Run, string) {
	switch {
	case ch.ended != nil:
		return ch.ended, ch.endedKey
	case len(ch.puts) > 0:
		return &ch.puts[0].Run, ch.puts[0].key
	case ch.queued != nil:
		return &ch.queued.Run, ch.queueKey
	}
	return nil, ""
}

// runOf finds the run of a change, or begins it.
func (c *checker) runOf(ch *runChange) *run {
	t := c.task(ch.ref)
	r := t.runs[ch.id]
	rec, key := ch.record()
	if r == nil {
		if rec == nil {
			return nil // a record that could not be read is gone
		}
		r = &run{id: ch.id, line: t.line(rec.UID), trigger: rec.Trigger, count: rec.Ticks(), in: map[string]attempt{}}
		if scheduled(rec.Trigger) {
			r.tick = ms(rec.ScheduledTime)
		}
		t.runs[ch.id] = r
	}
	if rec != nil && (rec.UID != r.line.uid || rec.Trigger != r.trigger || (r.tick != 0 && ms(rec.ScheduledTime) != r.tick)) {
		c.breachOf("form", ch.ref, r.tick, key, "run %s has become another: its uid, trigger or tick has changed", ch.id)
	}
	return r
}

// judgeRun judges what a revision does to a run, and applies it.
func (c *checker) judgeRun(d *delta, ch *runChange) {
	r := c.runOf(ch)
	if r == nil {
		return
	}
	from := r.state
	rec, key := ch.record()
	if from == "" && rec != nil {
		c.judgeBirth(d, ch, r, rec, key)
	}
	if r.ended && (len(ch.puts) > 0 || ch.queued != nil) {
		c.breachOf("G3", ch.ref, r.tick, key, "run %s is given out again after its outcome %s", ch.id, r.state)
	}
	taken := c.takeAway(ch, r)
	for _, put := range ch.puts {
		if taken != nil && put.create == put.mod {
			c.breachOf("state", ch.ref, r.tick, put.key, "run %s goes from one inbox into another", ch.id)
		}
		c.judgeAttempt(d, ch, r, put)
	}
	if r.isPart() && from == "" {
		from = r.state
	}
	if ch.queued != nil {
		c.judgeQueued(d, ch, r, from, taken)
	}
	if ch.ended != nil {
		c.judgeEnded(d, ch, r, from, taken)
	}
	if ch.partGone {
		c.judgePartGone(d, ch, r)
	}
	c.judgeLate(ch, r)
	c.judgePlaces(d, ch, r)
}

// takeAway applies the deletes, and returns the attempt that they end.
func (c *checker) takeAway(ch *runChange, r *run) *attempt {
	var taken *attempt
	for _, node := range ch.gone {
		if a, ok := r.in[node]; ok {
			taken = &a
			delete(r.in, node)
		}
	}
	if ch.dequeued {
		r.queued, r.retrying = false, false
	}
	return taken
}

// move takes the run to a state, if that is legal.
func (c *checker) move(ch *runChange, r *run, from, to task.State, key string) {
	if from != to && !from.CanBecome(to) {
		c.breachOf("state", ch.ref, r.tick, key, "run %s goes from %q to %q", ch.id, from, to)
	}
	r.state = to
}

// judgeQueued judges a record in the queue: new, for the next attempt, handed
// back, or rewritten.
func (c *checker) judgeQueued(d *delta, ch *runChange, r *run, from task.State, taken *attempt) {
	w := ch.queued
	if w.UnderWay() {
		if !r.ended {
			c.move(ch, r, from, task.Running, ch.queueKey)
		}
		r.before, r.queued, r.reason = task.Time{}, true, ""
		c.judgeParent(d, ch, r)
		return
	}
	if w.State != task.Queued {
		c.breachOf("state", ch.ref, r.tick, ch.queueKey, "run %s waits as %q", ch.id, w.State)
	}
	switch {
	case taken != nil:
		c.judgeUnpaused(ch, r, &w.Run, ch.queueKey)
		c.judgeRetry(ch, r, taken, w)
		r.attempts, r.retrying = len(w.Attempts), len(w.Attempts) > 0
	case r.queued:
		c.needCommit(d, ch.ref, r.tick, ch.queueKey, "a waiting run")
	}
	if !r.ended {
		c.move(ch, r, from, task.Queued, ch.queueKey)
		r.reason = w.Reason
	}
	r.before = w.StartBefore
	r.queued = true
	c.judgeReason(ch.ref, r.tick, ch.queueKey, "run "+ch.id, task.Queued, w.Reason)
	if taken == nil && from == "" {
		c.judgeWaiting(ch, r, w)
	}
}

// judgeRetry judges what follows an attempt other than an end: another one that
// the policy wants, or the same one handed back (G9).
func (c *checker) judgeRetry(ch *runChange, r *run, taken *attempt, w *task.Waiting) {
	if len(w.Attempts) <= r.attempts {
		if taken.CancelRequested {
			c.breachOf("state", ch.ref, r.tick, ch.queueKey, "run %s is queued again after a cancel", ch.id)
		}
		return
	}
	last := w.Attempts[len(w.Attempts)-1]
	if last.Token != taken.create {
		c.breachOf("G10", ch.ref, r.tick, ch.queueKey, "run %s waits after an attempt with token %d; the attempt that ended has %d", ch.id, last.Token, taken.create)
	}
	if !taken.Retries(last.State, last.ExitCode) {
		c.breachOf("G9", ch.ref, r.tick, ch.queueKey, "run %s is to be tried again after attempt %d ended as %s, which its policy does not want (or it was cancelled)",
			ch.id, taken.Attempt, last.State)
	}
	c.judgeReason(ch.ref, r.tick, ch.queueKey, "an attempt of run "+ch.id, last.State, last.Reason)
	c.judgeTokens(ch, r, w.Attempts, 0, ch.queueKey)
	c.judgeStartedAt(ch, r, taken.StartBefore, firstStart(w.Run), ch.queueKey)
	for _, node := range ch.gone {
		c.judgeFrozenStart(ch, r, node, last.StartedAt, ch.queueKey)
	}
}

// judgeEnded judges a record of history: final, of an attempt that was on
// record (G10), and written once (G12).
func (c *checker) judgeEnded(d *delta, ch *runChange, r *run, from task.State, taken *attempt) {
	e := ch.ended
	if r.ended {
		if r.text != ch.endedText && !c.judgeGrowth(d, ch, r) {
			c.breachOf("G12", ch.ref, r.tick, ch.endedKey, "the outcome of run %s, %s, is overwritten with %s", ch.id, r.state, e.State)
		}
		return
	}
	if !e.State.Final() {
		c.breachOf("state", ch.ref, r.tick, ch.endedKey, "run %s is in history as %q", ch.id, e.State)
	}
	c.move(ch, r, from, e.State, ch.endedKey)
	c.judgeUnpaused(ch, r, e, ch.endedKey)
	switch {
	case taken != nil && e.Token != taken.create:
		c.breachOf("G10", ch.ref, r.tick, ch.endedKey, "run %s ends with token %d; the attempt that ended has %d", ch.id, e.Token, taken.create)
	case taken == nil && r.fan != nil:
		c.judgeConclusion(d, ch, r)
	case taken == nil && from.Active():
		c.breachOf("G12", ch.ref, r.tick, ch.endedKey, "run %s ends while its attempt stays in an inbox", ch.id)
	case taken == nil && e.Token != 0 && r.decided > 0 && !slices.Contains(r.tokens, e.Token):
		c.breachOf("G10", ch.ref, r.tick, ch.endedKey, "run %s ends with token %d, which no inbox had", ch.id, e.Token)
	}
	c.judgeTokens(ch, r, e.Attempts, e.Token, ch.endedKey)
	r.ended, r.reason, r.text, r.token = true, e.Reason, ch.endedText, e.Token
	if e.State == task.Skipped || e.State == task.Missed {
		r.record = e
	}
	c.judgeReason(ch.ref, r.tick, ch.endedKey, "run "+ch.id, e.State, e.Reason)
	c.judgeReplaced(d, ch, r, taken)
	if taken != nil {
		c.judgeStartedAt(ch, r, taken.StartBefore, firstStart(*e), ch.endedKey)
		for _, node := range ch.gone {
			c.judgeFrozenStart(ch, r, node, e.StartedAt, ch.endedKey)
		}
	}
	if r.isPart() {
		return
	}
	c.judgeDead(d, ch, r, taken)
	r.line.ended(c.revision, e)
	c.stats.end(r, e)
}

// judgeTokens checks that a run's attempts were on record (G10) and that their
// tokens grow (G11). last is the token after them; 0: none.
func (c *checker) judgeTokens(ch *runChange, r *run, attempts []task.Attempt, last int64, key string) {
	var before int64
	check := func(token int64) {
		if token != 0 && token <= before {
			c.breachOf("G11", ch.ref, r.tick, key, "run %s: token %d follows token %d", ch.id, token, before)
		}
		before = max(before, token)
	}
	for _, a := range attempts {
		check(a.Token)
		if a.Token != 0 && !slices.Contains(r.tokens, a.Token) && r.decided > 0 {
			c.breachOf("G10", ch.ref, r.tick, key, "run %s had no attempt with token %d", ch.id, a.Token)
		}
	}
	if !slices.ContainsFunc(attempts, func(a task.Attempt) bool { return a.Token == last }) {
		check(last)
	}
}

// judgeLate checks that only what had been declared lost is late (G12).
func (c *checker) judgeLate(ch *runChange, r *run) {
	for _, l := range ch.late {
		for node, a := range r.in {
			if a.create == l.Token {
				c.breachOf("G12", ch.ref, r.tick, ch.lateKey, "run %s has a late result, but its attempt is still in the inbox of %s", ch.id, node)
			}
		}
		if l.Token != 0 && !slices.Contains(r.tokens, l.Token) && r.decided > 0 {
			c.breachOf("G10", ch.ref, r.tick, ch.lateKey, "run %s has a late result of token %d, which no inbox had", ch.id, l.Token)
		}
		if r.ended && l.Token == r.token && r.state != task.Lost {
			c.breachOf("G12", ch.ref, r.tick, ch.lateKey, "run %s has a late result of token %d, whose outcome is %s, not lost", ch.id, l.Token, r.state)
		}
		c.stats.Late++
	}
}

// judgePlaces checks that after the revision the run is in one place, and not
// gone: G8 for two inboxes, else G3, or G4 if it went without an outcome.
func (c *checker) judgePlaces(d *delta, ch *runChange, r *run) {
	t := c.task(ch.ref)
	_, key := ch.record()
	r.made = r.made || len(r.in) > 0 || r.queued
	places := len(r.in)
	if r.queued {
		places++
	}
	if r.ended {
		places++
	}
	switch {
	case len(r.in) > 1:
		c.breachOf("G8", ch.ref, r.tick, key, "run %s is in the inboxes of %s at once", ch.id,
			strings.Join(slices.Sorted(maps.Keys(r.in)), " and "))
	case places > 1 && !r.ended:
		c.breachOf("G3", ch.ref, r.tick, key, "run %s waits and is in an inbox at once", ch.id)
	case r.queued && ch.ended != nil:
		c.breachOf("G3", ch.ref, r.tick, key, "run %s has ended and still waits", ch.id)
	case places == 0 && !r.purged && r.state != "":
		after := d.entries[ch.ref]
		isGone := t.entry == nil || t.entry.UID != r.line.uid || (after != nil && after.gone)
		if !ch.dequeued || !isGone {
			c.breachOf("G4", ch.ref, r.tick, cmp.Or(key, ch.queueKey, ch.goneKey), "run %s vanished as %q, without an outcome", ch.id, r.state)
		}
		r.purged = true
	}
	if !r.isPart() && (len(r.in) > 0 || r.queued && (r.retrying || r.underWay())) {
		if t.active[ch.id] == nil {
			r.activated = c.revision
		}
		t.active[ch.id] = r
	} else {
		delete(t.active, ch.id)
	}
}

// endRuns judges what is left of a task's runs when the history ends.
func (c *checker) endRuns(t *tasked) {
	for _, id := range slices.Sorted(maps.Keys(t.runs)) {
		r := t.runs[id]
		if !r.ended && !r.purged {
			c.stats.Open++
			if by := c.opts.Until.Add(-DefaultConverge); r.queued && !r.retrying && !c.opts.Until.IsZero() && !r.before.IsZero() && r.before.Before(by) && c.namespaceThawed(t.ref, by.UnixMilli()) {
				c.breachOf("G22", t.ref, r.tick, "", "run %s waits, and could not start before %s, its deadline", id, stamp(r.before.Time))
			}
			if c.opts.Ended {
				c.breachOf("G16", t.ref, r.tick, "", "run %s has not ended, it is %s", id, r.state)
			}
		}
	}
}

// listRun takes a run of the first list as it is.
func (c *checker) listRun(ch *runChange) {
	r := c.runOf(ch)
	if r == nil {
		return
	}
	for _, p := range ch.puts {
		r.state, r.attempts = p.State, len(p.Attempts)
		r.in[p.node] = attempt{Assigned: p.Assigned, create: p.create}
		r.tokens = append(r.tokens, p.create)
	}
	if w := ch.queued; w != nil && w.UnderWay() {
		r.state, r.queued, r.fan = task.Running, true, w.Fan
	} else if w != nil {
		r.state, r.reason, r.queued = task.Queued, w.Reason, true
		r.attempts, r.retrying = len(w.Attempts), len(w.Attempts) > 0
		r.before = w.StartBefore
	}
	if e := ch.ended; e != nil {
		r.state, r.reason, r.ended, r.text = e.State, e.Reason, true, ch.endedText
		if e.State == task.Skipped || e.State == task.Missed {
			r.record = e
		}
	}
	c.judgePlaces(newDelta(), ch, r)
	c.listOutcome(ch, r)
}

// listOutcome notes which ticks a listed record decides. A range can only be
// read by the schedule of today.
func (c *checker) listOutcome(ch *runChange, r *run) {
	if r.tick == 0 {
		return
	}
	t := c.task(ch.ref)
	ticks := []int64{r.tick}
	if e := ch.ended; e != nil && !e.Last.IsZero() && t.entry != nil && t.entry.line == r.line && r.line.stretch.ticks != nil {
		ticks, _ = rangeTicks(r.line.stretch.ticks, *e)
	}
	for _, at := range ticks {
		if other := r.line.outcomes[at]; other != nil && other != r && r.count == 1 {
			c.breachOf("G3", ch.ref, at, "", "the tick has two outcomes: %s and %s", other.id, r.id)
			continue
		}
		r.line.outcomes[at] = r
	}
}
