package scheduler

import (
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// past is what has happened to a task whose future depends on it.
type past struct {
	own  task.Own // as it is in the entry
	turn string   // the node that had the last run; with strategy round-robin only

	// What its history tells. The watch tells of each end; what was before, or what
	// it did not tell, is read (see needHistory).
	studied bool  // ends are all that own does not count yet
	upTo    int64 // the revision of the reading: the watch may tell of it again
	ends    []end // in the order of mod
	known   bool  // ended is when the last of what has ended did
	ended   int64 // ms; 0: nothing has

	deletion *retention.Deletion // under way, or nil
}

// end is how a run ended, or a tick that did not run.
type end struct {
	mod   int64 // revision of the record
	state task.State
}

func (e end) failed() bool {
	return e.state == task.Failed || e.state == task.TimedOut || e.state == task.Lost
}

// needHistorySet are the tasks whose history is to be read before more is decided of them.
type needHistorySet map[*taskState]struct{}

// own is what the entry says has happened to the task.
func (t *taskState) own() task.Own {
	if t.past == nil {
		return task.Own{}
	}
	return t.past.own
}

func (t *taskState) setOwn(own *task.Own) {
	if own == nil && t.past == nil {
		return
	}
	if own == nil {
		own = &task.Own{}
	}
	t.history().own = *own
}

// history is t's past, made if need be.
func (t *taskState) history() *past {
	if t.past == nil {
		t.past = &past{}
	}
	return t.past
}

// counts reports whether it matters how runs of the task end.
func (t *taskState) counts() bool { return t.how.PauseAfter > 0 }

// follows reports whether it matters when runs of the task end.
func (t *taskState) follows() bool { return t.when.Period > 0 }

// depends reports whether the task's future depends on its past.
func (t *taskState) depends() bool {
	return t.present && !t.bad && (t.counts() || t.follows() || t.how.TTL > 0)
}

// idle reports whether nothing of the task waits or is active. What is left of a
// deleted task of the same name does not count.
func (t *taskState) idle() bool {
	t.dropIdleActivity()
	l := t.activity
	if l == nil {
		return true
	}

	own := func(run string) bool { return !t.orphan(run) }

	return !slices.ContainsFunc(l.active, func(a *attempt) bool { return own(a.run) }) &&
		!slices.ContainsFunc(l.queue, func(q *waiting) bool { return own(q.ID) }) &&
		!slices.ContainsFunc(l.unreadable, own) &&
		!slices.ContainsFunc(slices.Collect(maps.Keys(l.returned)), own)
}

// spent reports whether as many ticks became runs as the task may have.
func (t *taskState) spent() bool { return t.how.MaxRuns > 0 && t.own().Runs >= t.how.MaxRuns }

// silence is until when a paused task has no ticks; false: for good.
func (t *taskState) silence() (until int64, ends bool) {
	own := t.own()
	at, ends := task.Entry{Paused: true, Own: &own}.Silence()
	if !ends {
		return 0, false
	}
	return at.UnixMilli(), true
}

// noteEnd takes from a record of history what matters of it.
func (t *taskState) noteEnd(ev *store.ShardEvent, now int64) {
	p := t.past
	if p == nil || ev.Late || t.orphan(ev.Run) || p.studied && ev.Mod <= p.upTo {
		return
	}
	r, err := record.DecodeEnded(ev.ShardKey, ev.Value)
	if err != nil {
		return // the history reader ignores it, too
	}
	p.setEnded(r.EndedAt.UnixMilli(), now)
	if p.studied && t.counts() {
		p.ends = append(p.ends, end{ev.Mod, r.State})
	}
}

// setEnded notes when something ended, in ms. What ended last may have been told
// before it: a node that was cut off records an end late. Nobody guards the clock of
// the node that says so.
func (p *past) setEnded(at, now int64) {
	p.known, p.ended = true, max(p.ended, min(at, now+clockSlack.Milliseconds()))
}

// forgetLastEnd has t's history read when it matters: something has ended, or a tick was
// decided, and the record of that is yet to be told.
func (t *taskState) forgetLastEnd() {
	if t.past != nil {
		t.past.known = false
	}
}

// inARow is how many runs have failed in a row, if failures had before these ends.
func inARow(failures int, ends []end) int {
	for _, e := range ends {
		switch {
		case e.failed():
			failures++
		case e.state == task.Succeeded:
			failures = 0
		}
	}
	return failures
}

// uncounted are the ends that Own.Failures does not count yet.
func (p *past) uncounted() []end {
	i := slices.IndexFunc(p.ends, func(e end) bool { return e.mod > p.own.Counted })
	if i < 0 {
		return nil
	}
	return p.ends[i:]
}
