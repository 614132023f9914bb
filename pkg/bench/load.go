package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

const benchNamespace = "bench"

// load describes the tasks of a benchmark. They are equal except for their anchors. Each has one tick in every
// period, spread evenly or all at once. Task i has its ticks at origin + the offset of i + k periods, k ≥ 1.
type load struct {
	tasks   int
	period  time.Duration // whole milliseconds
	herd    bool          // all tasks have their ticks at the same instants
	origin  time.Time     // no tick is due at or before it
	end     time.Time     // no tick is due after it; zero: ticks do not end
	action  task.Action
	overlap string
	keep    int  // ended runs that are kept for each task
	held    bool // the runs stay in the inbox of a node without a process
}

// anchorOffset returns how much later than the origin the anchor of task i is.
func (l load) anchorOffset(i int) time.Duration {
	if l.herd {
		return 0
	}
	return time.Duration(int64(i)*l.period.Milliseconds()/int64(l.tasks)) * time.Millisecond
}

func taskName(i int) string { return fmt.Sprintf("t%07d", i) }

// makeTask returns the spec and the entry of task i.
func (l load) makeTask(i int) (task.Task, task.Entry) {
	spec := task.Defaults()
	spec.Namespace, spec.Name = benchNamespace, taskName(i)
	spec.Schedule = task.Schedules{"@every " + l.period.String()}
	spec.Action, spec.Overlap, spec.History.Keep = l.action, l.overlap, l.keep
	if !l.end.IsZero() {
		spec.End = task.At(l.end)
	}

	anchor := task.At(l.origin.Add(l.anchorOffset(i)))
	t := task.Task{Spec: spec, UID: task.NewUID(), Generation: 1, CreatedAt: anchor, UpdatedAt: anchor, UpdatedBy: task.NewActor("bench")}

	return t, task.NewEntry(t, task.At(l.origin), anchor)
}

// timetable lists the ticks of a load in one shard, in the order in which they are decided.
type timetable struct {
	origin, period int64 // ms
	due            []due // by offset, then name
}

// due is one task of a timetable.
type due struct {
	offset int64 // in ms after the start of each period
	name   string
}

// allTimetables returns the timetables of all shards.
func (l load) allTimetables(shards int) []timetable {
	tables := make([]timetable, shards)
	for i := range tables {
		tables[i].origin, tables[i].period = l.origin.UnixMilli(), l.period.Milliseconds()
	}

	for i := range l.tasks {
		t := &tables[shard.Of(benchNamespace, taskName(i), shards)]
		t.due = append(t.due, due{l.anchorOffset(i).Milliseconds(), benchNamespace + "/" + taskName(i)})
	}

	for _, t := range tables {
		slices.SortFunc(t.due, func(a, b due) int { return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.name, b.name)) })
	}

	return tables
}

// nthTick returns the n-th tick of the shard, in ms; n starts at 0.
func (t *timetable) nthTick(n int) int64 {
	cycle, i := n/len(t.due), n%len(t.due)
	return t.origin + int64(cycle+1)*t.period + t.due[i].offset
}

// isDecided reports whether a watermark decides the n-th tick.
func (t *timetable) isDecided(n int, w record.Watermark) bool {
	return w.Decided(task.At(time.UnixMilli(t.nthTick(n))), t.due[n%len(t.due)].name)
}

// createTasks writes n tasks, many in each request.
func (c *cluster) createTasks(ctx context.Context, n int, of func(i int) (task.Task, task.Entry)) error {
	const atOnce = 60
	return c.writeTasks(ctx, n, atOnce, func(s *store.Store, _ *putCollector, i int) error {
		t, e := of(i)
		_, err := s.CreateTask(ctx, c.taskRef(t.Namespace, t.Name), t, e)

		return err
	})
}

// refOf returns a task's name with its shard.
func refOf(namespace, name string, shards int) record.Ref {
	return record.Ref{Namespace: namespace, Name: name, Shard: shard.Of(namespace, name, shards)}
}

// writeTasks calls write for n tasks, and sends what it puts to etcd, atOnce tasks in each request. write puts with the
// store, or adds to the collector. No comparisons are needed, because nobody else writes these keys.
func (c *cluster) writeTasks(ctx context.Context, n, atOnce int, write func(s *store.Store, ops *putCollector, i int) error) error {
	const callers = 4

	step := fmt.Sprintf("create %s tasks", formatNumber(float64(n)))
	c.progress.beginStep("%s", step)

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	var next, made atomic.Int64
	var wg sync.WaitGroup

	for range callers {
		wg.Go(func() {
			var ops putCollector
			s := store.New(c.client, &ops, c.keys)

			for first := int(next.Add(int64(atOnce))) - atOnce; first < n && ctx.Err() == nil; first = int(next.Add(int64(atOnce))) - atOnce {
				last := min(first+atOnce, n)
				ops = ops[:0]

				var err error
				for i := first; i < last && err == nil; i++ {
					err = write(s, &ops, i)
				}

				if err == nil {
					_, err = c.client.Txn(ctx).Then(ops...).Commit()
				}

				if err != nil {
					cancel(fmt.Errorf("create the tasks: %w", err))
					return
				}

				c.progress.showStatus("%s: %s", step, formatNumber(float64(made.Add(int64(last-first)))))
			}
		})
	}

	wg.Wait()

	return context.Cause(ctx)
}

// putCollector is a committer that only collects puts.
type putCollector []clientv3.Op

// Commit collects the puts of a transaction, and reports a success.
func (p *putCollector) Commit(_ context.Context, t kv.Txn) (kv.Result, error) {
	for _, op := range t.Then {
		if op.IsPut() { // there is nothing to delete yet
			*p = append(*p, op)
		}
	}

	return kv.Result{Succeeded: true}, nil
}

// population is a set of many tasks as users have them, of some hundred kinds. They have no tick for
// quietAfterOrigin after the origin. Instead, the first few of them have a tick each second from fireAt until end, spread
// over the second.
type population struct {
	tasks, firing  int // how many tasks there are, and how many of them fire each second
	origin, fireAt time.Time
	end            time.Time // zero: ticks do not end
	rules          []rule
	keep           int
	apps           int  // how many values the label app has, and with it how many sets of labels there are
	alerts         bool // tasks that do not fire have an expectation
}

// usualApps is how many values the label app has, unless the benchmark says otherwise.
const usualApps = 1000

// rule is the schedule of tasks of one kind.
type rule struct{ expr, zone string }

// quietAfterOrigin is how long after its origin a population has no ticks: longer than it takes to measure a
// node's memory.
const quietAfterOrigin = 2 * time.Hour

// newPopulation returns a population without the rules that would have a tick too early.
func newPopulation(tasks, firing, keep int, origin time.Time) (population, error) {
	p := population{tasks: tasks, firing: firing, keep: keep, origin: origin, fireAt: origin, apps: usualApps}
	for _, r := range populationRules() {
		s, err := schedule.Parse(task.Timing{Schedule: task.Schedules{r.expr}, Timezone: r.zone}, origin)
		if err != nil {
			return p, fmt.Errorf("%s: %w", r.expr, err)
		}

		if next, ok := s.Next(origin); ok && next.After(origin.Add(quietAfterOrigin)) {
			p.rules = append(p.rules, r)
		}
	}

	return p, nil
}

// populationRules lists the schedules of reports, backups and cleanups, as many clusters have them.
func populationRules() (all []rule) {
	add := func(zone, format string, args ...any) {
		all = append(all, rule{fmt.Sprintf(format, args...), zone})
	}

	for _, zone := range []string{"UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo"} {
		for hour := range 24 {
			for _, minute := range []int{0, 15, 30, 47} {
				add(zone, "%d %d * * *", minute, hour)
			}

			add(zone, "5 %d * * 1-5", hour)
			add(zone, "10 %d * * 0", hour)
			add(zone, "20 %d 1 * *", hour)
			add(zone, "0 %d 1 1,4,7,10 *", hour)
		}
	}

	for hours := 3; hours <= 24; hours++ {
		add("UTC", "@every %dh", hours)
	}

	return all
}

// makeTask returns the spec and the entry of task i.
func (p population) makeTask(i int) (task.Task, task.Entry) {
	spec := task.Defaults()
	spec.Namespace, spec.History.Keep = benchNamespace, p.keep
	anchor := p.origin
	if i < p.firing {
		spec.Name, spec.Schedule, spec.Overlap, spec.Action = fmt.Sprintf("heartbeat-%07d", i), task.Schedules{"@every 1s"}, task.OverlapAllow, noopAction
		anchor = p.fireAt.Add(time.Duration(i*1000/p.firing)*time.Millisecond - time.Second)
		if !p.end.IsZero() {
			spec.End = task.At(p.end)
		}
	} else {
		r := p.rules[i%len(p.rules)]
		spec.Schedule, spec.Timezone = task.Schedules{r.expr}, r.zone
		p.addDetails(&spec, i)
	}

	created := task.At(p.origin)
	t := task.Task{Spec: spec, UID: task.NewUID(), Generation: 1, CreatedAt: created, UpdatedAt: created, UpdatedBy: task.NewActor("bench")}

	return t, task.NewEntry(t, created, task.At(anchor))
}

// addDetails gives task i a name and an action. The sizes of the tasks differ.
func (p population) addDetails(s *task.Spec, i int) {
	what := []string{"report", "backup", "sync-orders", "cleanup", "reindex"}[i%5]
	s.Name = fmt.Sprintf("%s-%07d", what, i)
	s.Labels = map[string]string{"team": fmt.Sprintf("team-%d", i%40), "app": fmt.Sprintf("app-%d", i%p.apps), "env": []string{"prod", "staging"}[i%2]}

	process := &task.Process{Command: []string{"/usr/local/bin/" + what, "--customer", fmt.Sprintf("c%07d", i)}}
	if i%4 == 0 {
		process = &task.Process{Shell: fmt.Sprintf("/usr/local/bin/%s --customer c%07d | zstd > /var/backups/%s-%07d.zst", what, i, what, i)}
	}

	if i%3 == 0 {
		process.Env = map[string]string{"BUCKET": fmt.Sprintf("s3://%s-%d", what, i%100), "LANG": "C.UTF-8"}
	}

	s.Action = task.Action{Process: process}
	if i%2 == 0 {
		s.Timeout = task.Duration(10 * time.Minute)
	}

	if p.alerts {
		s.Alerts = &task.Alerts{Notify: []string{"receiver"}, SuccessWithin: task.Duration(26 * time.Hour)}
	}

	if i%10 == 0 {
		s.Retry.Attempts = 3
	}
}
