package chaos_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// kind is a kind of task: how many of them a run of full size has, and their properties.
type kind struct {
	name     string
	many     int
	schedule string
	shell    string // what a process does
	path     string // what the target does, for HTTP tasks (see target.serve); without shell and path it is a noop
	change   func(i int, s *task.Spec)
}

// loadSpace is the namespace of the load. The callers have others.
const loadSpace = "load"

// ticker is the name of the tasks whose silence is measured: noops with a tick every second.
const ticker = "tick"

// escaped is an environment variable that marks a process that has left its attempt's group. It may outlive its
// attempt, as the executor documents.
const escaped = "CHAOS_ESCAPED"

// probed returns a shell command between the two lines of a probe.
func probed(body string) string {
	line := ` $CARILLON_RUN_ID $CARILLON_ATTEMPT $CARILLON_FENCING_TOKEN $t $$" >>"$PROBES"`
	return `read t _ </proc/uptime; echo "START` + line + "\n" + body + "\n" + `read t _ </proc/uptime; echo "END` + line
}

// runAfter lets a task run after another one, and at no other time.
func runAfter(s *task.Spec, source task.Source) {
	s.Schedule, s.Overlap, s.After = task.Schedules{task.ManualSchedule}, task.OverlapQueue, task.Sources{source}
}

func seconds(n float64) task.Duration { return task.Duration(n * float64(time.Second)) }

func again(attempts int, on ...task.State) task.Retry {
	return task.Retry{Attempts: attempts, Backoff: seconds(.5), Factor: 1, MaxBackoff: seconds(1), On: on}
}

var kinds = []kind{
	{ticker, 80, "* * * * * *", "", "", func(i int, s *task.Spec) {
		s.Missed.Policy = []string{task.MissedLatest, task.MissedSkip, task.MissedAll}[i%3]
		s.Missed.Limit = 5
		s.Overlap = []string{task.OverlapSkip, task.OverlapAllow}[i/3%2]
	}},
	{"two", 40, "*/2 * * * * *", "", "", nil},
	{"five", 40, "@every 5s", "", "", nil},
	{"minute", 20, "* * * * *", "", "", nil},
	{"quick", 4, "@every 250ms", "", "", func(_ int, s *task.Spec) { s.History.Record = task.RecordFailures }},
	{"probe", 24, "@every 3s", probed("sleep 0.05"), "", nil},
	{"beside", 8, "@every 2s", probed("sleep 3"), "", func(_ int, s *task.Spec) { s.Overlap = task.OverlapAllow }},
	{"replace", 12, "@every 6s", probed("sleep 2"), "", func(_ int, s *task.Spec) { s.Retry = again(3, task.Failed, task.Lost) }},
	{"once", 12, "@every 6s", probed("sleep 2"), "", func(_ int, s *task.Spec) { s.Retry = again(3, task.Failed) }},
	{"fails", 8, "@every 5s", probed(`[ "$CARILLON_ATTEMPT" -gt 1 ] || exit 1`), "", func(_ int, s *task.Spec) { s.Retry = again(3, task.Failed) }},
	{"long", 6, "@every 10s", probed("sleep 10"), "", func(i int, s *task.Spec) {
		if i%2 == 0 {
			s.Retry = again(3, task.Lost)
		}
	}},
	{"stubborn", 3, "@every 20s", probed("trap '' TERM INT HUP; sleep 60"), "", func(_ int, s *task.Spec) { s.Timeout, s.KillGrace = seconds(2), seconds(1) }},
	{"forks", 3, "@every 20s", probed(escaped + "=1 setsid sleep 30 >/dev/null 2>&1 </dev/null & sleep 0.1"), "", nil},
	{"holds", 3, "@every 20s", probed("sleep 6 & sleep 0.1"), "", nil},
	{"floods", 2, "@every 20s", probed("head -c 4000000 /dev/zero | tr '\\0' x"), "", nil},
	{"folds", 12, "@every 1s after completion", "", "", func(i int, s *task.Spec) { s.History.Keep = 1 + i%3 }},
	{"folds-second", 8, "", "", "", func(i int, s *task.Spec) {
		// A trim follows each run: a task is trimmed after as many records as it has ticks in ten minutes of January.
		s.Schedule, s.History.Keep = task.Schedules{"0 0 0 6 1 *", "* * * * 2-12 *"}, 1+i%3
	}},
	{"folds-failures", 8, "@every 2s after completion", probed(`[ $((CARILLON_FENCING_TOKEN % 3)) -gt 0 ] || exit 1`), "", func(i int, s *task.Spec) {
		s.History.Keep = 1 + i%3
	}},
	{"chain", 10, "*/2 * * * * *", probed("sleep 0.05"), "", func(i int, s *task.Spec) {
		s.History.Keep = 1 + i%3
		if i > 0 {
			runAfter(s, task.Source{Task: fmt.Sprintf("chain-%03d", i-1), When: task.WhenEnded})
		}
	}},
	{"fan", 20, "*/3 * * * * *", probed(`[ $((CARILLON_FENCING_TOKEN % 3)) -gt 0 ] || exit 1`), "", func(i int, s *task.Spec) {
		if i > 0 {
			s.Action = task.Action{Noop: &task.Noop{}}
			runAfter(s, task.Source{Task: "fan-000", When: []task.When{"", task.WhenFailed, task.WhenEnded}[i%3]})
			s.Overlap = []string{task.OverlapQueue, task.OverlapAllow, task.OverlapSkip, task.OverlapReplace}[i%4]
		}
	}},
	{"flow", 50, "@every 20s", "", "", func(_ int, s *task.Spec) { s.Action = task.Action{Workflow: noopSteps()} }},
	{"flow-loads", 24, "@every 12s", "", "", func(_ int, s *task.Spec) { s.Retry = again(2, task.Lost) }},
	{"flow-fails", 12, "@every 12s", "", "", func(_ int, s *task.Spec) { s.Retry = again(2, task.Failed, task.Lost) }},
	{"flow-hangs", 6, "@every 20s", "", "", func(_ int, s *task.Spec) { s.Timeout, s.KillGrace = seconds(4), seconds(1) }},
	{"http", 16, "@every 3s", "", "quick/50", func(i int, s *task.Spec) { s.Retry = again(3, task.Failed) }},
	{"http-post", 8, "@every 4s", "", "once/2000", nil},
	{"http-lost", 8, "@every 6s", "", "once/2000", func(_ int, s *task.Spec) { s.Retry = again(3, task.Failed, task.Lost) }},
	{"http-beside", 4, "@every 2s", "", "quick/3000", func(_ int, s *task.Spec) { s.Overlap = task.OverlapAllow }},
	{"http-closes", 4, "@every 5s", "", "closes/20", nil},
	{"http-fails", 4, "@every 5s", "", "fails/20", func(_ int, s *task.Spec) { s.Retry = again(3, task.Failed) }},
	{"http-busy", 4, "@every 7s", "", "busy/20", nil},
	{"http-slow", 3, "@every 20s", "", "quick/60000", func(_ int, s *task.Spec) { s.Timeout = seconds(2) }},
}

// kindOf returns the kind with a name.
func kindOf(name string) kind {
	return kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })]
}

// spec returns the i-th task of a kind.
func (w *world) spec(k kind, i int) task.Spec {
	s := task.Defaults()
	s.Namespace, s.Name = loadSpace, fmt.Sprintf("%s-%03d", k.name, i)
	s.Schedule, s.History.Keep = task.Schedules{k.schedule}, 5
	switch {
	case k.path != "":
		s.Action.HTTP = &task.HTTP{URL: "http://" + w.target.address + "/" + k.path, Headers: map[string]string{headerAttempt: "${run.attempt}"}}

		// Half of the tasks send requests that must not be repeated if their outcome is unknown.
		if i%2 == 0 {
			s.Action.HTTP.Body = "x"
		}
	case k.shell == "":
		s.Action.Noop = &task.Noop{}
	default:
		s.Action.Process = &task.Process{Shell: k.shell, Env: map[string]string{"PROBES": w.probes, markName: w.mark}}
	}

	if body, ok := flowKinds[k.name]; ok {
		s.Action = task.Action{Workflow: w.loadSteps(body)}
	}
	if k.change != nil {
		k.change(i, &s)
	}
	if i%5 == 0 {
		expect(i/5, &s)
	}

	return s
}

// load creates the tasks, at least one of each kind, and a ticker in each shard.
func (w *world) load(scale float64) error {
	var all []task.Spec
	for _, k := range kinds {
		for i := range max(1, int(float64(k.many)*scale)) {
			all = append(all, w.spec(k, i))
		}
	}

	if err := w.create(all...); err != nil {
		return err
	}

	for i := 1000; i < 2000; i++ { // until each shard has one of the names
		if err := w.recorder.CatchUp(w.ctx); err != nil {
			return err
		}

		for _, e := range w.recorder.Events() {
			if k, ok := w.keys.ParseShard(e.Key); ok && k.Kind == record.KindEntry && k.Ref.Namespace == loadSpace && strings.HasPrefix(k.Ref.Name, ticker) {
				w.ticking[k.Ref.Shard] = true
			}
		}

		if len(w.ticking) == w.shards {
			return nil
		}
		if err := w.create(w.spec(kindOf(ticker), i)); err != nil {
			return err
		}
	}

	return errors.New("the tasks do not spread over the shards")
}

// create creates tasks in bulk, through any node.
func (w *world) create(all ...task.Spec) error {
	return w.eventually(30*time.Second, func() error {
		var last error
		for _, n := range w.up() {
			var err error
			for r, e := range n.client.Tasks.ApplyAll(w.ctx, slices.Values(all), client.BatchOptions{}) {
				if e == nil {
					e = r.Err()
				}
				err = errors.Join(err, e)
			}

			if err == nil {
				return nil
			}

			last = err
		}

		return fmt.Errorf("no node creates the tasks: %w", last)
	})
}
