package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/test/check/oracle"
	"github.com/carillonhq/carillon/pkg/scheduler/background"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// statesOf says which tasks are in a state, and the state that a view of each task shows.
type statesOf struct {
	failing, overdue, waiting, running []string // in order
	views                              map[string]string
	onlyOnBoard
}

// onlyOnBoard is what neither lists nor views show.
type onlyOnBoard struct {
	newestDead map[string][]string // of a failing task, the runs that died last, which are several if they died in one revision
	waitingFor map[string]int      // waiting runs, by reason
	attempts   int                 // in inboxes
}

// recordedStates computes the states of tasks from the records in etcd alone, at one revision. It shares no code with what
// it is compared with, apart from the decoders of records.
func (w *world) recordedStates() statesOf {
	w.Helper()
	keys := w.store.Keys()
	res, err := w.client.Get(w.ctx, keys.Shard(0), clientPrefix)
	w.ok(err)
	inboxes, err := w.client.Get(w.ctx, keys.Runs(), clientPrefix, clientv3.WithRev(res.Header.Revision))
	w.ok(err)

	type state struct {
		entry         task.Entry
		create        int64
		dead, success int64 // the highest create revisions
		newestDead    []string
		isWaiting     bool
		runs          map[string]bool // those that are active
	}

	// The entries come first, because the ids of runs say to which task of a name they belong.
	tasks := map[string]*state{}
	var mark record.Watermark
	for _, e := range res.Kvs {
		switch k, ok := keys.ParseShard(string(e.Key)); {
		case ok && k.Kind == record.KindEntry:
			entry, err := record.DecodeEntry(e.Value)
			w.ok(err)
			tasks[k.Ref.String()] = &state{entry: entry, create: e.CreateRevision, runs: map[string]bool{}}
		case ok && k.Kind == record.KindWatermark:
			mark, err = record.DecodeWatermark(e.Value)
			w.ok(err)
		}
	}

	all := statesOf{views: map[string]string{}, onlyOnBoard: onlyOnBoard{newestDead: map[string][]string{}, waitingFor: map[string]int{}}}
	of := func(ref record.Ref, run string) *state {
		s := tasks[ref.String()]
		if s == nil || !strings.Contains(run, "Z-"+s.entry.UID[:4]) {
			return nil
		}
		return s
	}

	for _, e := range res.Kvs {
		k, _ := keys.ParseShard(string(e.Key))
		s := of(k.Ref, k.Run)
		if s == nil || k.Late {
			continue
		}

		switch k.Kind {
		case record.KindDead:
			if e.CreateRevision > s.dead {
				s.dead, s.newestDead = e.CreateRevision, nil
			}
			if e.CreateRevision == s.dead {
				s.newestDead = append(s.newestDead, k.Run)
			}
		case record.KindEnded:
			if run, err := record.DecodeRunValue(e.Value); err == nil && run.State == task.Succeeded {
				s.success = max(s.success, e.CreateRevision)
			}
		case record.KindQueued:
			run, err := record.DecodeWaitingValue(e.Value)
			w.ok(err)
			switch {
			case task.IsPart(k.Run):
			case run.Fan != nil && run.State == task.Running:
				s.runs[k.Run] = true
			default:
				s.isWaiting = true
				all.waitingFor[run.Reason]++
			}
		}
	}

	for _, e := range inboxes.Kvs {
		if k, ok := keys.ParseRun(string(e.Key)); ok {
			all.attempts++
			run, _, isPart := task.ParentOf(k.Run)
			if !isPart {
				run = k.Run
			}
			if s := of(k.Ref, run); s != nil {
				s.runs[run] = true
			}
		}
	}

	for _, name := range slices.Sorted(maps.Keys(tasks)) {
		s := tasks[name]
		isFailing, isOverdue := s.dead > s.success, isOverdueByRecords(w, name, s.entry, s.create, mark)

		for _, is := range []struct {
			list *[]string
			in   bool
		}{{&all.failing, isFailing}, {&all.overdue, isOverdue}, {&all.waiting, s.isWaiting}, {&all.running, len(s.runs) > 0}} {
			if is.in {
				*is.list = append(*is.list, name)
			}
		}

		if isFailing {
			all.newestDead[name] = s.newestDead
		}

		all.views[name] = client.TaskOK
		switch {
		case isFailing:
			all.views[name] = client.TaskFailing
		case s.entry.Paused:
			all.views[name] = client.TaskPaused
		case len(s.runs) > 0:
			all.views[name] = client.TaskRunning
		case s.isWaiting:
			all.views[name] = client.TaskWaiting
		}
	}

	return all
}

// isOverdueByRecords reports whether the first undecided tick of a task was due more than two seconds ago. Ticks up to the
// entry's from are decided, and those up to the watermark, if its writer had seen the creation of the entry.
func isOverdueByRecords(w *world, name string, e task.Entry, create int64, mark record.Watermark) bool {
	if e.Paused {
		return false
	}

	timing, err := oracle.NewTiming(e)
	w.ok(err)

	for after := e.From.UnixMilli(); ; {
		tick, ok := timing.NextTick(after)
		if !ok {
			return false
		}

		due := timing.DueAt(tick)
		at := mark.Time.UnixMilli()
		isDecided := create <= mark.Seen && (due < at || due == at && (mark.Last == "" || name <= mark.Last))
		if !isDecided {
			return due < w.clock().UnixMilli()-2000
		}
		after = tick
	}
}

// shownStates returns what lists and views say about the tasks.
func (tw *testWorker) shownStates() statesOf {
	w := tw.world
	w.Helper()
	ask := func(term string) []string {
		line, err := readmodel.ParseQueryLine(term)
		w.ok(err)
		q := &readmodel.Query{Filter: readmodel.Filter{Conditions: line.Conditions()}, Order: readmodel.ByName, Limit: 1000, Now: w.clock().UnixMilli()}
		scan := readmodel.NewScan(q, "n1")
		scan.Add(readmodel.ShardAnswer{}, tw.state.rows.Index)
		answer := scan.Answer()

		var names []string
		for _, p := range answer.Places {
			names = append(names, p.Name)
		}

		c := answer.Shards[0].Counts
		for of, n := range map[string]int{"state:failing": c.Failing, "state:overdue": c.Overdue, "state:waiting": c.Waiting, "state:running": c.Active} {
			if of == term && n != len(names) {
				w.Errorf("a list counts %d tasks with %s, and shows %q", n, term, names)
			}
		}

		return names
	}

	all := statesOf{failing: ask("state:failing"), overdue: ask("state:overdue"), waiting: ask("state:waiting"), running: ask("state:running"), views: map[string]string{}}
	viewer := views.Viewer{Store: w.store, Ref: func(_, name string) record.Ref { return ref(name) }, Now: w.clock}
	specs, _, err := w.store.Tasks(w.ctx, "default", "", 1000)
	w.ok(err)
	shown, err := viewer.ReadTasks(asAnyone(w.ctx), specs, 0, nil)
	w.ok(err)
	for _, v := range shown {
		all.views["default/"+v.Name] = v.State
	}

	return all
}

// noRecords is a Keeper of access records without any.
type noRecords struct{ httpapi.Keeper }

func (noRecords) View() *authority.View { return &authority.View{Table: &access.Table{}} }

// asAnyone returns the context of a request whose caller may read everything: another node judged that.
func asAnyone(ctx context.Context) context.Context {
	judge := &httpapi.Judge{Keeper: noRecords{}, Now: time.Now}
	return httpapi.WithRights(ctx, judge.RightsOf(httpapi.Caller{Forwarder: "n1"}, "test"))
}

// agree compares what lists, the board and views say about the tasks with the records.
func (tw *testWorker) agree() {
	tw.world.Helper()
	tw.see()
	want, got := tw.world.recordedStates(), tw.shownStates()
	got.onlyOnBoard = want.onlyOnBoard
	if !reflect.DeepEqual(got, want) {
		tw.world.Errorf("shown are\n %+v, recorded are\n %+v", got, want)
	}

	if unknown := tw.boardAgrees(want); len(unknown) == 0 {
		return
	}

	// The owner has requested what it does not know.
	tw.serveReader(func() bool {
		return !slices.ContainsFunc(tw.board(1000).Lists.Failing, func(f task.BoardFailing) bool { return f.Run == "" })
	})
	tw.boardAgrees(want)
}

// boardAgrees compares the lists and counts of the board with the records. It returns the failing tasks that the board
// does not know how they have failed.
func (tw *testWorker) boardAgrees(want statesOf) (unknown []string) {
	tw.world.Helper()
	b := tw.board(1000)

	// The board shows attempts instead of tasks that run.
	got := statesOf{running: want.running, views: want.views, onlyOnBoard: onlyOnBoard{newestDead: want.newestDead, waitingFor: b.Counts.Waiting, attempts: b.Counts.ActiveCount}}
	for _, f := range b.Lists.Failing {
		name := f.Namespace + "/" + f.Task
		got.failing = append(got.failing, name)

		if f.Run == "" {
			unknown = append(unknown, name)
			if f.State != task.Failed || f.Reason != "" || f.ExitCode != nil || !f.EndedAt.IsZero() {
				tw.world.Errorf("the board does not know how %s has failed, and shows %+v", name, f)
			}
			continue
		}

		if !slices.Contains(want.newestDead[name], f.Run) {
			tw.world.Errorf("the board shows that run %q of %s has failed, want one of %q", f.Run, name, want.newestDead[name])
		}
	}
	for _, t := range b.Lists.Overdue {
		got.overdue = append(got.overdue, t.Namespace+"/"+t.Task)
	}
	listed := 0
	for _, w := range b.Lists.Waits {
		if !task.IsPart(w.Run) { // parts are listed, and do not count
			got.waiting = append(got.waiting, w.Namespace+"/"+w.Task)
			listed++
		}
	}
	for _, list := range []*[]string{&got.failing, &got.overdue, &got.waiting} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}

	waiting := 0
	for _, n := range want.waitingFor {
		waiting += n
	}

	if got := valueOf(tw.e.metrics.TasksFailing); got != float64(len(want.failing)) {
		tw.world.Errorf("carillon_tasks_failing is %g, want %d", got, len(want.failing))
	}

	if !reflect.DeepEqual(got, want) || b.Counts.WaitingCount != waiting || listed != waiting || b.Counts.FailingCount != len(want.failing) || b.Counts.OverdueCount != len(want.overdue) || b.Counts.Tasks != len(want.views) {
		tw.world.Errorf("on the board are\n %+v, counts %+v, recorded are\n %+v", got, b.Counts, want)
	}

	return unknown
}

// readPast reads how runs had ended before the shard was loaded, as the engine does in parallel with its workers.
func (tw *testWorker) readPast() {
	tw.world.Helper()
	tw.requestPast()
	tw.serveReader(func() bool { return tw.state.rows.Index.Size().Unread == 0 })
}

// serveReader has what was requested of the past read, and passes it to the worker, until done returns true.
func (tw *testWorker) serveReader(done func() bool) {
	tw.world.Helper()
	ctx, cancel := context.WithCancel(tw.world.ctx)
	defer cancel()

	// As in runLoop, the index is published first: the reader drops requests of a shard that is not served.
	tw.served.Store(&served{index: tw.state.rows.Index})

	ended := make(chan struct{})
	go func() { defer close(ended); _ = tw.e.pastRuns.Run(ctx) }()
	defer func() { cancel(); <-ended }()

	for !done() {
		select {
		case r := <-tw.reviews:
			tw.world.ok(r.reviewBy(ctx, tw.worker))
		case <-time.After(time.Minute):
			tw.world.Fatal("the past is not read")
		}
	}
}

// play is one random history of what happens to a few tasks.
type play struct {
	*world
	rand  *rand.Rand
	h     *testWorker
	uids  int
	lost  []record.Held // attempts that were declared lost; their nodes do not know yet
	steps []string
}

// Whatever happens to tasks, lists, counts, the board and views agree with the records on which of them are failing,
// overdue, waiting and running.
//
// Verifies: G30
func TestStates_AgreeWithTheRecords(t *testing.T) {
	t.Parallel()

	seeds := 80
	if testing.Short() {
		seeds = 20
	}

	for _, seed := range seedsUpTo(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()

			inVirtualTime(t, func(t *testing.T) {
				p := &play{world: newWorld(t, "n1", "n2"), rand: rand.New(rand.NewPCG(seed, 7))}
				t.Cleanup(func() {
					if t.Failed() {
						t.Log("\n" + strings.Join(p.steps, "\n"))
					}
				})

				p.h = p.work("n1")
				for i := 0; i < 120 && !t.Failed(); i++ {
					p.step()
					if p.rand.IntN(3) > 0 {
						p.h.agree()
					}
				}
			})
		})
	}
}

func (p *play) say(format string, args ...any) {
	p.steps = append(p.steps, fmt.Sprintf("%7.3f ", p.clock().Sub(start).Seconds())+fmt.Sprintf(format, args...))
}

func (p *play) step() {
	total := 0
	steps := []stepOf{
		{20, p.round}, {14, p.pass}, {20, p.finish}, {4, p.finishTogether}, {6, p.create}, {5, p.manual}, {3, p.pauseOrResume},
		{2, p.removeOne}, {5, p.dismiss}, {2, p.failOften}, {4, p.dismissNewest}, {3, p.retry}, {3, p.lose}, {2, p.late}, {4, p.takeOver}, {6, p.trim},
	}
	for _, s := range steps {
		total += s.weight
	}

	n := p.rand.IntN(total)
	for _, s := range steps {
		if n -= s.weight; n < 0 {
			s.do()
			return
		}
	}
}

// one returns one of some things; ok is false if there are none.
func one[T any](p *play, from []T) (v T, ok bool) {
	if len(from) == 0 {
		return v, false
	}
	return from[p.rand.IntN(len(from))], true
}

// task returns the name of a task; ok is false if there are none.
func (p *play) task() (name string, ok bool) {
	specs, _, err := p.store.Tasks(p.ctx, "default", "", 100)
	p.ok(err)
	t, ok := one(p, specs)

	return t.Name, ok
}

func (p *play) round() {
	p.say("a round")
	p.h.see()
	p.ok(p.h.runRound(p.h.ctx))
	p.h.rowsMatch()
}

func (p *play) pass() {
	d, _ := one(p, []float64{0.1, 0.5, 1, 1, 1.9, 2, 2.001, 3, 5})
	now := p.clock().Sub(start).Seconds() + d
	if p.rand.IntN(2) == 0 {
		now = math.Ceil(now)
	}
	p.at(now)
}

func (p *play) create() {
	name, _ := one(p, []string{"a", "b", "c", "d"})
	if _, err := p.store.Task(p.ctx, ref(name)); err != nil {
		p.createNamed(name)
	}
}

func (p *play) createNamed(name string) {
	schedule, _ := one(p, []string{"* * * * * *", "*/4 * * * * *", "@every 3s", "@manual"})
	overlap, _ := one(p, []option{allow, func(*task.Task) {}, queues(3, "")})
	shape, _ := one(p, []option{func(*task.Task) {}, func(*task.Task) {}, parts(3), on("node = n9")})
	retry, _ := one(p, []option{func(*task.Task) {}, retries(2, 2*time.Second, task.Failed)})
	history, _ := one(p, []task.History{{Keep: 1, Record: task.RecordAll}, {Keep: 3, Record: task.RecordFailures}, {Keep: 20, Record: task.RecordAll}})
	jitter, _ := one(p, []time.Duration{0, time.Second, 3 * time.Second})

	p.say("%s is created: %s, %+v", name, schedule, history)
	p.uids++
	p.world.create(name, cronned(schedule), overlap, shape, retry, func(t *task.Task) {
		t.UID = fmt.Sprintf("u%03daaaaaaaaaaaa", p.uids)
		t.History = history
		if schedule[0] != '@' {
			t.Jitter = task.Duration(jitter)
		}
	})
}

func (p *play) removeOne() {
	name, ok := p.task()
	if !ok {
		return
	}

	p.say("%s is deleted", name)
	p.remove(name)
	if p.rand.IntN(2) == 0 {
		p.createNamed(name)
	}
}

func (p *play) manual() {
	if name, ok := p.task(); ok {
		p.say("%s is triggered", name)
		p.trigger(name)
	}
}

func (p *play) pauseOrResume() {
	name, ok := p.task()
	if !ok {
		return
	}

	isPaused := p.entry(name).Paused
	p.say("%s is paused: %t", name, !isPaused)
	if isPaused {
		p.resume(name)
	} else {
		p.pause(name)
	}
}

// held returns the attempts in the inboxes of nodes.
func (p *play) held() []record.Held {
	all, err := p.store.Active(p.ctx)
	p.ok(err)
	slices.SortFunc(all, func(a, b record.Held) int { return strings.Compare(a.Task+a.ID, b.Task+b.ID) })

	return all
}

var finalStates = []task.State{task.Succeeded, task.Succeeded, task.Succeeded, task.Failed, task.Failed, task.TimedOut, task.Cancelled, task.Cancelled, task.Lost}

func (p *play) finish() {
	if h, ok := one(p, p.held()); ok {
		state, _ := one(p, finalStates)
		p.say("%s of %s: %s", h.ID, h.Task, state)
		p.end(h, state)
	}
}

// finishTogether ends two runs of a task in one revision.
func (p *play) finishTogether() {
	all := p.held()
	first, ok := one(p, all)
	others := slices.DeleteFunc(all, func(h record.Held) bool {
		return h.Task != first.Task || h.ID == first.ID || task.IsPart(h.ID) || h.UID != first.UID
	})
	second, more := one(p, others)
	if !ok || !more || task.IsPart(first.ID) {
		return
	}

	var ops []clientv3.Op
	keys := p.store.Keys()
	both := []record.Held{first, second}
	slices.SortFunc(both, func(a, b record.Held) int { return strings.Compare(a.ID, b.ID) })
	for _, h := range both {
		end := h.Run
		end.State, _ = one(p, finalStates)
		end.EndedAt, end.Token, end.Reason = task.At(p.clock()), h.Create, why(h, end.State)
		p.say("%s of %s: %s, together", h.ID, h.Task, end.State)

		ops = append(ops, clientv3.OpDelete(keys.Run(h.Node, h.Ref(), h.ID)))
		ended := clientv3.OpPut(keys.Ended(h.Ref(), h.ID), string(record.EncodeEnded(end)))
		if !record.NeedsDeadLetter(h, end) {
			ops = append(ops, ended)
			continue
		}

		dead := clientv3.OpPut(keys.DeadRun(h.Ref(), h.ID), string(record.EncodeDead(h, end)))
		if p.rand.IntN(2) == 0 {
			ended, dead = dead, ended
		}
		ops = append(ops, ended, dead)
	}

	_, err := p.client.Txn(p.ctx).Then(ops...).Commit()
	p.ok(err)
}

// failOften ends more manual runs of a task than the owner keeps the details of.
func (p *play) failOften() {
	name, ok := p.task()
	if !ok {
		return
	}

	n := background.MaxPastDead + p.rand.IntN(5)
	p.say("%d runs of %s fail", n, name)
	st, err := p.store.Task(p.ctx, ref(name))
	p.ok(err)

	for range n {
		now := task.At(p.clock())
		end := task.Run{
			ID: task.ManualRunID(now.Time, st.Task.UID), Namespace: "default", Task: name, UID: st.Task.UID, ScheduledTime: now, CreatedAt: now, EndedAt: now,
			Attempt: 1, State: task.TimedOut, Reason: task.ReasonTimeout, Trigger: task.TriggerManual, Node: "n1",
		}
		_, err := p.client.Txn(p.ctx).Then(
			clientv3.OpPut(p.store.Keys().Ended(ref(name), end.ID), string(record.EncodeEnded(end))),
			clientv3.OpPut(p.store.Keys().DeadRun(ref(name), end.ID), string(record.EncodeWaiting(task.Waiting{Run: end}))),
		).Commit()
		p.ok(err)
	}
}

// dismissNewest dismisses all dead runs of a task but the oldest ones.
func (p *play) dismissNewest() {
	name, _, ok := p.deadRun()
	if !ok {
		return
	}

	list, err := p.store.DeadRuns(p.ctx, ref(name))
	p.ok(err)
	slices.SortFunc(list, func(a, b record.Dead) int { return cmp.Compare(b.Mod, a.Mod) })
	list = list[:max(0, len(list)-1-p.rand.IntN(3))]
	p.say("the newest %d dead runs of %s are dismissed", len(list), name)
	for _, d := range list {
		p.ok(p.store.Dismiss(p.ctx, ref(name), d, task.NewActor("ann"), p.clock()))
	}
}

// lose declares an attempt lost, although it is in progress.
func (p *play) lose() {
	if h, ok := one(p, p.held()); ok {
		p.say("%s of %s is declared lost", h.ID, h.Task)
		p.end(h, task.Lost)
		p.lost = append(p.lost, h)
	}
}

// late reports the result of an attempt that was declared lost.
func (p *play) late() {
	h, ok := one(p, p.lost)
	if !ok {
		return
	}

	p.say("%s of %s succeeds, too late", h.ID, h.Task)
	end := h.Run
	end.State, end.EndedAt = task.Succeeded, task.At(p.clock())
	_ = p.store.Finish(p.ctx, h, end, executor.Next(h.Assigned, end, p.clock(), 0.5))
	p.lost = slices.DeleteFunc(p.lost, func(o record.Held) bool { return o.Create == h.Create })
}

// deadRun returns a dead run of a task.
func (p *play) deadRun() (name string, d record.Dead, ok bool) {
	name, ok = p.task()
	if !ok {
		return name, d, false
	}

	st, err := p.store.Task(p.ctx, ref(name))
	p.ok(err)
	list, err := p.store.DeadRuns(p.ctx, ref(name))
	p.ok(err)
	d, ok = one(p, slices.DeleteFunc(list, func(d record.Dead) bool { return !task.RunBelongs(d.ID, st.Task.UID) }))

	return name, d, ok
}

// dismiss dismisses a dead run. A dismissal that is interrupted only rewrites its record.
func (p *play) dismiss() {
	name, d, ok := p.deadRun()
	if !ok {
		return
	}

	if p.rand.IntN(3) == 0 {
		p.say("the dismissal of %s of %s is interrupted", d.ID, name)
		d.DismissedBy = task.NewActor("ann")
		p.put(p.store.Keys().DeadRun(ref(name), d.ID), string(record.EncodeWaiting(d.Waiting)))
		return
	}

	p.say("%s of %s is dismissed", d.ID, name)
	p.ok(p.store.Dismiss(p.ctx, ref(name), d, task.NewActor("ann"), p.clock()))
}

func (p *play) retry() {
	name, d, ok := p.deadRun()
	if !ok {
		return
	}

	p.say("%s of %s is started again", d.ID, name)
	st, err := p.store.Task(p.ctx, ref(name))
	p.ok(err)
	now := task.At(p.clock())
	p.ok(p.store.Revive(p.ctx, st, d, task.Waiting{Run: task.Run{
		ID: task.ManualRunID(now.Time, st.Task.UID), Namespace: "default", Task: name, UID: st.Task.UID, ScheduledTime: now, CreatedAt: now, Attempt: 1,
		State: task.Queued, Reason: task.ReasonManual, Trigger: task.TriggerManual, Requests: task.Requests{RetryOf: d.ID},
	}}))
}

// takeOver makes a node the owner that has seen nothing, and has to read the past.
func (p *play) takeOver() {
	node, _ := one(p, []string{"n1", "n2"})
	p.say("%s owns the shard", node)
	p.h.die()
	p.h = p.work(node)
	p.h.readPast()
}

// trim trims all histories.
func (p *play) trim() {
	p.say("the histories are trimmed")
	specs, _, err := p.store.Tasks(p.ctx, "default", "", 100)
	p.ok(err)
	for _, t := range specs {
		p.h.trimTo(t.Name, t.History)
	}
}
