package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	explain "github.com/carillonhq/carillon/pkg/internal/why"
	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// These variables change what TestLedger_WhyAgreesWithEveryRecord does: with whyDaysEnv, all tasks live for that many days and
// are asked about 1,000 times; whySeedEnv is the seed. The etcd in memory remembers all changes: thirty days take some 4 GB.
const (
	whyDaysEnv = "CARILLON_LEDGER_WHY_DAYS"
	whySeedEnv = "CARILLON_LEDGER_WHY_SEED"
)

// A chronicle is a list of everything that happened to a task, with a resolution of a second. It knows when the task had
// ticks without package schedule.
type chronicle struct {
	name      string
	created   float64 // in seconds after start, as everything here
	end       float64
	outcomes  []uint16 // by second: the index of the outcome; 0: there is none
	kinds     []outcome
	requested map[int64]bool
	versions  []chronicleVersion
}

// An outcome is how a tick ended.
type outcome struct {
	state  task.State
	reason string
}

// A chronicleVersion is a version of a task: since when it is in force, in seconds, and which seconds are its ticks.
type chronicleVersion struct {
	since    float64
	paused   bool
	interval int64 // in seconds
}

// note adds an outcome for a second.
func (c *chronicle) note(second int64, o outcome) {
	i := slices.Index(c.kinds, o)
	if i < 0 {
		i = len(c.kinds)
		c.kinds = append(c.kinds, o)
	}

	for int64(len(c.outcomes)) <= second {
		c.outcomes = append(c.outcomes, 0)
	}

	c.outcomes[second] = uint16(i + 1)
}

// outcomeAt returns the outcome of a second. ok is false if there is none.
func (c *chronicle) outcomeAt(second int64) (o outcome, ok bool) {
	if second < 0 || second >= int64(len(c.outcomes)) || c.outcomes[second] == 0 {
		return outcome{}, false
	}
	return c.kinds[c.outcomes[second]-1], true
}

// version returns the version in force at a second.
func (c *chronicle) version(second int64) chronicleVersion {
	for _, v := range slices.Backward(c.versions) {
		if v.since < float64(second) {
			return v
		}
	}
	return chronicleVersion{paused: true, interval: 1}
}

// isTick reports whether the task had a tick at a second.
func (c *chronicle) isTick(second int64) bool {
	v := c.version(second)
	return float64(second) > c.created && !v.paused && second%v.interval == 0
}

// noteRuns adds the records of a history. A record of several ticks covers those that have no record of their own.
func (c *chronicle) noteRuns(runs []task.Run) {
	second := func(t task.Time) int64 { return int64(t.Sub(start) / time.Second) }

	for _, r := range runs {
		switch {
		case !r.State.Final():
		case r.Trigger == task.TriggerManual:
			c.requested[second(r.ScheduledTime)] = true
		case r.Count <= 1:
			c.note(second(r.ScheduledTime), outcome{r.State, r.Reason})
		default:
			for s := second(r.ScheduledTime); s <= second(r.Last); s++ {
				if _, ok := c.outcomeAt(s); !ok && c.isTick(s) {
					c.note(s, outcome{r.State, r.Reason})
				}
			}
		}
	}
}

// judge compares an answer about a second with the chronicle. It returns what is wrong with it, and whether it is exact.
func (c *chronicle) judge(second int64, a task.Answer) (wrong string, exact bool) {
	o, ran := c.outcomeAt(second)
	isUnknown := a.Verdict == task.VerdictForgotten || a.Verdict == task.VerdictUnreadable
	saysFailed := strings.Contains(a.Sentence, "did not succeed;")

	switch {
	case isUnknown && len(a.Unknown) == 0:
		return "it does not say what is not known", false
	case isUnknown && saysFailed && (!ran || o.state == task.Succeeded):
		return "it did not fail", false
	case isUnknown:
		return "", false
	case ran && string(a.Verdict) != string(o.state):
		return fmt.Sprintf("it was %s (%s)", o.state, o.reason), false
	case ran && a.Reason != "" && a.Reason != o.reason:
		return "its reason was " + o.reason, false
	case ran:
		return "", true
	case c.requested[second]:
		if a.Tick != nil {
			return "it was a requested run", false
		}
		return "", true
	case c.isTick(second):
		// Its run has not ended, or the task was changed before the tick was decided.
		if !slices.Contains([]task.Verdict{task.VerdictRunning, task.VerdictWaiting, task.VerdictOvertaken}, a.Verdict) {
			return "it was a tick without an outcome", false
		}
		return "", true
	}

	allowed := []task.Verdict{task.VerdictNoTick, task.VerdictPaused}
	if float64(second) <= c.created {
		allowed = []task.Verdict{task.VerdictNoTask}
	}
	if !slices.Contains(allowed, a.Verdict) {
		return "it was no tick", false
	}

	return "", true
}

// ask asks about a second through the real account of the task.
func (c *chronicle) ask(w *world, q explain.Question, from, to time.Time) task.Answer {
	w.Helper()
	a, err := w.store.Account(w.ctx, ref(c.name), from, to)
	w.ok(err)

	f := explain.Facts{
		Namespace: "default", Name: c.name, Task: a.Task, Entry: a.Entry, Versions: a.Versions, Runs: a.Runs, Late: a.Late, Dead: a.Dead,
		Newer: a.Newer, CutAt: a.CutAt.Time, Nodes: a.Nodes, Limits: &task.Namespace{Name: "default", RunAs: []string{"*"}},
		Freezes: a.Freezes, Now: w.clock(), Revision: a.Revision, Ledger: ledger.NewBook(a.Task.UID, a.Ledger),
	}
	for _, p := range a.Unread {
		f.Unread = append(f.Unread, explain.Period{From: p.From.Time, To: p.To.Time})
	}
	if a.Watermark != nil {
		f.Watermark = &explain.Watermark{Time: a.Watermark.Time.Time, All: a.Watermark.Decided(a.Watermark.Time, "default/"+c.name)}
		f.Covered = a.EntryMade <= a.Watermark.Seen
	}

	return explain.For(f, q)
}

// askAll asks about random seconds, half of which are ticks, and about ranges. It returns how many answers were exact, and
// for the others what they say is not known.
func (c *chronicle) askAll(w *world, random *rand.Rand, questions int) (exact int, unknown map[string]int) {
	w.Helper()
	unknown = map[string]int{}

	failures := 0
	for n := range questions {
		second := int64(c.created) - 100 + random.Int64N(int64(c.end-c.created)+100)
		for n%2 == 0 && !c.isTick(second) && float64(second) < c.end {
			second++
		}

		at := sec(float64(second))
		if at.After(w.clock()) {
			continue
		}

		a := c.ask(w, explain.Question{At: explain.Instant(at), Timezone: "UTC"}, at, at)
		wrong, isExact := c.judge(second, a)
		switch {
		case wrong != "":
			if failures++; failures > 5 {
				return exact, unknown
			}
			w.Errorf("%s: the answer about %s (+%d) is %s (%s): %s\n%s\n%v", c.name, at.Format(time.DateTime), second, a.Verdict, a.Reason, wrong, a.Sentence, a.Lines)
		case isExact:
			exact++
		default:
			unknown[a.Unknown[0]]++
		}
	}

	return exact, unknown
}

// askRanges asks about random ranges, and about days. It returns how many answers were exact.
func (c *chronicle) askRanges(w *world, random *rand.Rand, questions int) (exact int) {
	w.Helper()

	for n := range questions {
		from := int64(c.created) + random.Int64N(int64(c.end-c.created))
		to := from + random.Int64N(max(1, (int64(c.end)-from)>>random.IntN(12)))
		if n == 0 {
			from, to = int64(c.created)+1, int64(c.end)
		}

		first, last := sec(float64(from)), sec(float64(to))
		q := explain.Question{From: explain.Instant(first), To: explain.Instant(last), Timezone: "UTC"}

		if n%5 == 1 {
			day, err := explain.ReadMoment(first.Format(time.DateOnly), schedule.TimeBase{})
			w.ok(err)
			q = explain.Question{At: &day, Timezone: "UTC"}
			first, last = q.Span(w.clock())
			from, to = int64(first.Sub(start)/time.Second), min(int64(last.Sub(start)/time.Second), int64(c.end))
		}

		a := c.ask(w, q, first, last)
		if c.judgeRange(w, from, to, a) {
			exact++
		}

		if n == 0 {
			w.Logf("%s: %s (%d lines)", c.name, a.Sentence, len(a.Stretches))
		}
	}

	return exact
}

// judgeRange compares the counts of an answer with the chronicle. No state may count more ticks than had it. If the answer names
// nothing that is not known, the counts must be those of the chronicle. It reports whether they are.
func (c *chronicle) judgeRange(w *world, from, to int64, a task.Answer) bool {
	w.Helper()
	want := map[task.Verdict]int64{}
	for s := from; s <= to; s++ {
		if o, ok := c.outcomeAt(s); ok {
			want[task.Verdict(o.state)]++
		}
	}

	isExact := true
	var lines int64
	for _, s := range task.States() {
		v := task.Verdict(s)
		if !s.Final() {
			continue
		}

		isExact = isExact && a.Counts[v] == want[v]
		if a.Counts[v] > want[v] || a.Counts[v] < want[v] && len(a.Unknown) == 0 {
			w.Errorf("%s: from +%d to +%d, %d %s, not %d\n%s %v", c.name, from, to, a.Counts[v], v, want[v], a.Sentence, a.Unknown)
		}
	}

	for _, s := range a.Stretches {
		if !s.Manual {
			lines += s.Count
		}
	}
	for _, n := range a.Counts {
		lines -= n
	}
	if lines != 0 && len(a.Stretches) < 200 {
		w.Errorf("%s: from +%d to +%d, the lines have %d more ticks than the sentence\n%s", c.name, from, to, lines, a.Sentence)
	}

	return isExact
}

// checkComplete checks that each tick for which the ledger claims to be complete is in the ledger or in the history. It
// returns the time since which it is, in seconds.
func (c *chronicle) checkComplete(w *world) (since float64, ok bool) {
	w.Helper()
	a, err := w.store.Account(w.ctx, ref(c.name), w.clock(), w.clock())
	w.ok(err)
	book := ledger.NewBook(a.Task.UID, a.Ledger)
	at, ok := book.CompleteSince(a.Task.CreatedAt.Time)
	since = at.Sub(start).Seconds()
	if !ok {
		return since, false
	}

	known := make([]bool, len(c.outcomes))
	note := func(first, last task.Time) {
		for s := max(0, int64(first.Sub(start)/time.Second)); s <= min(int64(last.Sub(start)/time.Second), int64(len(known)-1)); s++ {
			known[s] = true
		}
	}
	for _, l := range book.Lines {
		if l.Kind == task.LedgerSucceeded || l.Kind == task.LedgerException || l.Kind == task.LedgerHour {
			note(l.First, l.Last)
		}
	}
	for _, r := range a.Runs {
		if r.Trigger != task.TriggerManual {
			note(r.ScheduledTime, task.At(later(r.ScheduledTime.Time, r.Last.Time)))
		}
	}

	for s := range c.outcomes {
		if _, ended := c.outcomeAt(int64(s)); ended && float64(s) >= since && !known[s] {
			w.Errorf("%s: complete since +%g, but neither ledger nor history has +%d", c.name, since, s)
			return since, true
		}
	}

	return since, true
}

// later returns the later one of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// edit changes a task as the API does, and adds the version to the chronicle.
func (c *chronicle) edit(w *world, change string, opts ...option) {
	w.Helper()
	old, err := w.store.Task(w.ctx, ref(c.name))
	w.ok(err)
	t, now := old.Task, task.At(w.clock())
	for _, o := range opts {
		o(&t)
	}

	t.Generation, t.UpdatedAt, t.UpdatedBy, t.Change = t.Generation+1, now, task.NewActor("ann"), change
	since, anchor := old.Entry.From, old.Entry.Anchor
	resumed := old.Task.Paused && !t.Paused
	if (resumed || !task.SameTicks(old.Task.Spec, t.Spec)) && since.Before(now.Time) {
		since = now
	}

	e := task.NewEntry(t, since, anchor)
	own := task.Own{}
	if old.Entry.Own != nil {
		own = *old.Entry.Own
		own.Pauses = slices.Clone(own.Pauses)
	}

	if !old.Task.Paused && t.Paused {
		own.Pauses = append(own.Pauses, task.Pause{Since: now, By: task.NewActor("ann")})
		own.Pauses = own.Pauses[max(0, len(own.Pauses)-task.KeepPauses):]
	}
	if n := len(own.Pauses); n > 0 && resumed {
		own.Pauses[n-1].Ended, own.Pauses[n-1].EndedBy = now, task.NewActor("ann")
	}

	e.Own = &own
	_, err = w.store.UpdateTask(w.ctx, old, t, e)
	w.ok(err)
	c.addVersion(w, t)
}

// addVersion adds a version that is in force from now on.
func (c *chronicle) addVersion(w *world, t task.Task) {
	c.versions = append(c.versions, chronicleVersion{w.clock().Sub(start).Seconds(), t.Paused, intervals[t.Schedule[0]]})
}

// intervals are the schedules of the tests, with the seconds between their ticks. They begin at noon.
var intervals = map[string]int64{
	"* * * * * *": 1, "*/2 * * * * *": 2, "* * * * *": 60, "*/2 * * * *": 120, "0 * * * *": 3600, "0 */2 * * *": 7200, "0 12 * * *": 86400, "0 */12 * * *": 43200,
}

// newChronicle creates a task now.
func newChronicle(w *world, name string, opts ...option) *chronicle {
	w.Helper()
	w.create(name, opts...)
	st, err := w.store.Task(w.ctx, ref(name))
	w.ok(err)
	c := &chronicle{name: name, created: w.clock().Sub(start).Seconds(), requested: map[int64]bool{}}
	c.addVersion(w, st.Task)

	return c
}

// readHistory adds what the task's history contains now.
func (c *chronicle) readHistory(w *world) {
	w.Helper()
	a, err := w.store.Account(w.ctx, ref(c.name), w.clock(), w.clock())
	w.ok(err)
	c.noteRuns(a.Runs)
}

// A life is the random course of events of tasks whose ticks a real worker decides.
type life struct {
	*world
	random *rand.Rand
	tasks  []*chronicle
	owner  *testWorker
	frozen bool
	paused map[string]bool
	until  map[string]float64 // of a task with an outage or a run that takes long: until when
	ending task.State         // how runs end during an outage
	edits  int                // one in this many edits is made, because only the latest versions are kept
}

// step decides the ticks up to a time, and ends runs.
func (l *life) step(s float64) {
	l.Helper()
	l.owner.decide(s)
	l.at(s + 1)

	for _, c := range l.tasks {
		for _, held := range l.active(c.name) {
			state := task.Succeeded
			switch roll := l.random.IntN(1000); {
			case l.until[c.name] > s && l.ending == "": // the run takes long
				continue
			case l.until[c.name] > s && roll < 950:
				state = l.ending
			case roll < 20:
				state = []task.State{task.Failed, task.TimedOut, task.Lost, task.Cancelled}[roll%4]
			}

			l.end(held, state)
		}
	}

	l.owner.decide(s + 2)

	for range len(l.owner.e.trims.Pending()) {
		job := <-l.owner.e.trims.Pending()
		for _, c := range l.tasks {
			if c.name == job.Ref.Name {
				c.readHistory(l.world)
			}
		}

		l.ok(l.owner.e.trims.Trim(l.ctx, job))
	}
}

// disturb makes something happen between two ticks. It returns for how many seconds nobody decides.
func (l *life) disturb(s float64, c *chronicle) (absence float64) {
	l.Helper()
	l.at(s)

	what := l.random.IntN(8)
	if l.paused[c.name] && l.random.IntN(2) == 0 {
		what = 0
	} else if what < 3 && l.random.IntN(l.edits) > 0 {
		what = 3 + l.random.IntN(5)
	}

	switch what {
	case 0:
		change := map[bool]string{false: task.ChangePaused, true: task.ChangeResumed}[l.paused[c.name]]
		l.paused[c.name] = !l.paused[c.name]
		c.edit(l.world, change, func(t *task.Task) { t.Paused = l.paused[c.name] })
	case 1:
		next := map[string]string{"* * * * *": "*/2 * * * *", "0 * * * *": "0 */2 * * *", "0 12 * * *": "0 */12 * * *"}
		c.edit(l.world, task.ChangeUpdated, func(t *task.Task) {
			for a, b := range next {
				if t.Schedule[0] == a {
					t.Schedule = task.Schedules{b}
				} else if t.Schedule[0] == b {
					t.Schedule = task.Schedules{a}
				}
			}
		})
	case 2:
		c.edit(l.world, task.ChangeUpdated, func(t *task.Task) { t.Description += "." })
	case 3:
		if l.frozen = !l.frozen; l.frozen {
			l.freeze("")
		} else {
			l.unfreeze("")
		}
	case 4:
		name := map[string]string{"n1": "n2", "n2": "n1"}[l.owner.e.cfg.Node]
		l.owner.leave()
		l.owner = nil
		absence = float64(l.random.Int64N(3 * c.versions[len(c.versions)-1].interval))
		l.at(s + absence)
		l.owner = l.work(name)
	case 5:
		l.trigger(c.name)
	default:
		l.ending = []task.State{"", task.Failed, task.TimedOut, task.Failed}[l.random.IntN(4)]
		l.until[c.name] = s + float64(l.random.Int64N(40*c.versions[len(c.versions)-1].interval))
	}

	return absence
}

// Tasks live through failures, outages, pauses, freezes, edits and changes of their owner, in virtual time. Every answer about
// a random moment is that of a list of all records, or says what is not known.
func TestLedger_WhyAgreesWithEveryRecord(t *testing.T) {
	t.Parallel()
	seed, days, minutes, seconds, questions := uint64(1), 8, 16*60, 3*3600, 100
	if n, err := strconv.ParseUint(os.Getenv(whySeedEnv), 10, 64); err == nil {
		seed = n
	}
	if n, err := strconv.Atoi(os.Getenv(whyDaysEnv)); err == nil {
		days, minutes, seconds, questions = n, n*24*60, n*86400, 1000
	}

	for name, c := range map[string]struct {
		schedule string
		interval float64
		steps    int
		calm     int           // the number of steps between events
		memory   time.Duration // of the ledger; 0: the default
	}{
		"by the minute":                 {"* * * * *", 60, minutes, 60, 0},
		"by the minute, for some hours": {"* * * * *", 60, minutes, 60, time.Duration(minutes) * time.Minute / 4},
		"hourly":                        {"0 * * * *", 3600, days * 24, 15, 0},
		"hourly, for some days":         {"0 * * * *", 3600, days * 24, 15, time.Duration(days) * 24 * time.Hour / 4},
		"daily":                         {"0 12 * * *", 86400, 30, 6, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, uint64(c.steps)))
			w := newWorld(t, "n1", "n2")
			w.at(0.5)
			l := &life{world: w, random: random, owner: w.work("n1"), paused: map[string]bool{}, until: map[string]float64{}}
			l.edits = max(1, c.steps/c.calm/20)
			options := []option{cronned(c.schedule), keep(4), missed(task.MissedLatest, 100)}
			if c.memory > 0 {
				options = append(options, remember(c.memory))
			}
			chronicle := newChronicle(w, "a", options...)
			l.tasks = append(l.tasks, chronicle)

			s := 0.0
			for n := range c.steps {
				s += c.interval
				l.step(s)
				if n%100 == 99 {
					compact(w)
				}
				if l.paused["a"] && random.IntN(10) == 0 || random.IntN(c.calm) == 0 {
					s += c.interval * float64(int(l.disturb(s+c.interval/2+0.5, chronicle)/c.interval))
				}
			}

			s += c.interval
			l.step(s)
			chronicle.readHistory(w)
			chronicle.end = s
			w.at(s + 3)
			report(t, chronicle, w, random, questions)
		})
	}

	t.Run("by the second", func(t *testing.T) {
		t.Parallel()
		random := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, "n1")
		w.at(0.5)
		options := []option{keep(20)}
		if seed%2 == 0 { // a second task would double the time that this takes
			options = append(options, remember(time.Duration(seconds)*time.Second/4))
		}
		chronicle := newChronicle(w, "a", options...)
		generate(w, chronicle, random, seconds)
		report(t, chronicle, w, random, questions)
	})
}

// compact makes etcd forget former revisions, so that reads do not pass by deleted records.
func compact(w *world) {
	w.Helper()
	_, err := w.client.Compact(w.ctx, w.put(w.store.Keys().Shard(0)+"sync", ""))
	w.ok(err)
}

// report asks, and logs how many answers were exact.
func report(t *testing.T, c *chronicle, w *world, random *rand.Rand, questions int) {
	t.Helper()
	exact, unknown := c.askAll(w, random, questions)
	t.Logf("%d of %d answers are exact; the others: %v", exact, questions, unknown)
	t.Logf("%d of %d answers about ranges are exact", c.askRanges(w, random, questions/5), questions/5)

	since, ok := c.checkComplete(w)
	t.Logf("history and ledger are complete since +%g of +%g: %t", since, c.end, ok)
}

// remember sets for how long the ledger of a task remembers ticks.
func remember(d time.Duration) option {
	return func(t *task.Task) { t.History.Ledger = new(task.Duration(d)) }
}

// fullStore is a store whose etcd may be full: it accepts only deletions.
type fullStore struct {
	*store.Store
	isFull bool
}

func (s *fullStore) FoldHistory(ctx context.Context, f store.Fences, h store.HistoryFold) error {
	if s.isFull {
		return rpctypes.ErrNoSpace
	}
	return s.Store.FoldHistory(ctx, f, h)
}

// A generator writes the records that an owner would write for a task that ticks every second, and trims them as it would.
// A worker would take hours for a month of seconds.
type generator struct {
	*world
	*chronicle
	random  *rand.Rand
	uid     string
	puts    []clientv3.Op
	late    map[int64][]task.Run // runs that take long, by the second in which they end
	growing *task.Run            // a record of several ticks that did not run

	edits int // one in this many edits is made, because only the latest versions are kept

	// The course of events: what happens until when.
	mode  string
	until int64
}

// generate creates the records of a number of seconds.
func generate(w *world, c *chronicle, random *rand.Rand, seconds int) {
	w.Helper()
	a, err := w.store.Account(w.ctx, ref(c.name), start, start)
	w.ok(err)
	g := &generator{world: w, chronicle: c, random: random, uid: a.Task.UID, late: map[int64][]task.Run{}, edits: max(1, seconds/200_000)}
	etcd := &fullStore{Store: w.store}
	trimmer := background.NewTrimmer(etcd, func() task.Cluster { return task.Cluster{} }, w.clock, zap.NewNop())
	job := background.Trim{Fences: w.assign("n1"), Ref: ref(c.name), UID: g.uid, Created: a.EntryMade, History: a.Task.History}

	for s := int64(1); s <= int64(seconds); s++ {
		w.at(float64(s))
		if s >= g.until {
			g.changeMode(s)
		}

		g.tick(s)
		for _, r := range g.late[s] {
			g.write(r)
		}
		delete(g.late, s)

		if s%60 != 0 && s != int64(seconds) {
			continue
		}

		g.flush()

		// A full etcd deletes records without a fold. The last trim tells of it.
		etcd.isFull = g.mode == "full" && s != int64(seconds)
		job.Schedule = g.schedule()
		w.ok(trimmer.Trim(w.ctx, job))

		if s%600 == 0 {
			compact(w)
		}
	}

	c.end = float64(seconds)
	w.at(c.end + 0.3)
	w.put(w.store.Keys().Watermark(0), record.Encode(record.Watermark{Time: task.At(sec(c.end)), Seen: a.Revision, Nonce: "n"}))
}

// schedule returns the schedule that is in force.
func (g *generator) schedule() schedule.Schedule {
	g.Helper()
	st, err := g.store.Task(g.ctx, ref(g.name))
	g.ok(err)
	s, err := schedule.Parse(st.Task.Timing(), start)
	g.ok(err)

	return *s
}

// changeMode begins the next part of the course of events.
func (g *generator) changeMode(s int64) {
	g.Helper()
	before := g.mode
	g.mode, g.until, g.growing = "usual", s+g.random.Int64N(7200), nil

	switch before {
	case "paused":
		g.at(float64(s) - 0.5)
		g.edit(g.world, task.ChangeResumed, func(t *task.Task) { t.Paused = false })
		g.at(float64(s))

		return
	case "usual":
	default:
		return
	}

	length, what := int64(30), g.random.IntN(12)
	if (what == 5 || what == 8) && g.random.IntN(g.edits) > 0 {
		what = g.random.IntN(4)
	}

	switch what {
	case 0, 1:
		g.mode, length = "outage", 5000
	case 2:
		g.mode, length = "failing", 20000
	case 3:
		g.mode, length = "skipped", 3000
	case 4:
		g.mode, length = "missed", 60
	case 5:
		g.mode, length = "paused", 1000
		g.at(float64(s) - 0.5)
		g.edit(g.world, task.ChangePaused, func(t *task.Task) { t.Paused = true })
		g.at(float64(s))
	case 6:
		g.mode = "requested"
	case 7:
		g.mode, length = "full", 90
	case 8:
		g.at(float64(s) - 0.5)
		g.edit(g.world, task.ChangeUpdated, func(t *task.Task) {
			t.Schedule = task.Schedules{map[string]string{"* * * * * *": "*/2 * * * * *", "*/2 * * * * *": "* * * * * *"}[t.Schedule[0]]}
		})
		g.at(float64(s))
	}

	g.until = s + 1 + g.random.Int64N(length)
}

// tick writes the record of a second.
func (g *generator) tick(s int64) {
	if g.mode == "requested" && g.random.IntN(5) == 0 {
		r := g.run(s, task.Succeeded, "")
		r.ID, r.Trigger = task.ManualRunID(r.ScheduledTime.Time, g.uid), task.TriggerManual
		r.ScheduledTime = task.At(r.ScheduledTime.Add(300 * time.Millisecond))
		g.write(r)
	}

	if !g.isTick(s) {
		return
	}

	state, reason := task.Succeeded, ""
	roll := g.random.IntN(100_000)
	switch {
	case g.mode == "outage", g.mode == "failing" && roll < 5000, roll < 60:
		state, reason = task.Failed, task.ReasonExit
		if g.mode != "outage" && roll%7 == 0 {
			state, reason = task.TimedOut, task.ReasonTimeout
		}
	case g.mode == "skipped" && roll < 90_000:
		g.grow(s, task.Skipped, task.ReasonFrozen)
		return
	case g.mode == "missed":
		g.grow(s, task.Missed, task.ReasonNoOwner)
		return
	case roll < 70: // it takes long
		r := g.run(s, task.Succeeded, "")
		end := s + 1 + g.random.Int64N(300)
		g.late[end] = append(g.late[end], r)
		g.growing = nil

		return
	}

	g.growing = nil
	g.write(g.run(s, state, reason))
}

// run returns the record of a run that has ended.
func (g *generator) run(s int64, state task.State, reason string) task.Run {
	at, late := task.At(sec(float64(s))), int64(7)
	r := task.Run{
		ID: task.RunID(at.Time, g.uid), UID: g.uid, ScheduledTime: at, State: state, Reason: reason, Trigger: task.TriggerSchedule, Node: "n1", Owner: "n1", Attempt: 1,
		CreatedAt: at, DispatchedAt: at, StartedAt: at, EndedAt: task.At(at.Add(400 * time.Millisecond)), LatenessMS: &late,
	}
	if reason == task.ReasonExit {
		code := 1 + g.random.IntN(2)
		r.ExitCode = &code
	}

	return r
}

// grow adds a tick to the record of ticks that did not run, or begins one.
func (g *generator) grow(s int64, state task.State, reason string) {
	at := task.At(sec(float64(s)))
	if r := g.growing; r == nil || r.State != state || r.Count >= 400 {
		g.growing = &task.Run{ID: task.RunID(at.Time, g.uid), UID: g.uid, ScheduledTime: at, State: state, Reason: reason, Trigger: task.TriggerSchedule, Owner: "n1", CreatedAt: at, EndedAt: at}
	} else {
		r.Count, r.Last = max(r.Count, 1)+1, at
	}

	g.note(s, outcome{state, reason})
	g.putRecord(*g.growing)
}

// write writes a record, and adds it to the chronicle.
func (g *generator) write(r task.Run) {
	g.noteRuns([]task.Run{r})
	g.putRecord(r)
}

// putRecord writes a record.
func (g *generator) putRecord(r task.Run) {
	g.puts = append(g.puts, clientv3.OpPut(g.store.Keys().Ended(ref(g.name), r.ID), string(record.EncodeEnded(r))))
}

// flush sends the writes, in their order.
func (g *generator) flush() {
	g.Helper()
	for len(g.puts) > 0 {
		// A transaction must not write a key twice.
		keys := map[string]bool{}
		n := 0
		for n < len(g.puts) && n < 100 && !keys[string(g.puts[n].KeyBytes())] {
			keys[string(g.puts[n].KeyBytes())] = true
			n++
		}

		_, err := g.client.Txn(g.ctx).Then(g.puts[:n]...).Commit()
		g.ok(err)
		g.puts = g.puts[n:]
	}
}
