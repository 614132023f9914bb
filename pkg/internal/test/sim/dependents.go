package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// The workload of dependents: tasks run after others, in chains and fans, while users change the links, and delete and create tasks. People
// damage records by hand. Nodes die when they send triggers, and when they take them.

// runAfterOthers makes most tasks run after tasks whose names sort before theirs, so that there are no cycles. A task without sources
// often has more ends than its dependents can take.
func runAfterOthers(s *task.Spec, r *rand.Rand) {
	var n int
	if _, err := fmt.Sscanf(s.Name, "t%d", &n); err != nil {
		return
	}

	if s.Schedule.AtBoot() || s.Receiver != nil || n == 0 || r.IntN(4) == 0 {
		if r.IntN(4) > 0 && !s.Schedule.AtBoot() {
			tickOften(s, r)
		}
		return
	}

	s.After = drawSources(n, r)
	if s.Join = ""; len(s.After) > 1 {
		s.Join = task.JoinAny
	}

	switch isBeside := s.Schedule.HasTicks() && r.IntN(4) == 0; {
	case isBeside:
	case r.IntN(3) == 0:
		withoutSchedule(s)
	default: // what a user gets who names nothing but the sources
		withoutSchedule(s)
		setOverlap(s, task.OverlapQueue, r)
		s.Queue.Limit = pickRandom(r, []int{1, 3, 100, 100})
	}

	if s.Action.Process != nil && r.IntN(2) == 0 {
		s.Timeout, s.Action.Process.Command[1] = 0, pickRandom(r, []string{"50ms", "300ms", "1s"})
	}
}

// tickOften gives a task many runs, which do not take long.
func tickOften(s *task.Spec, r *rand.Rand) {
	s.Schedule = task.Schedules{pickRandom(r, []string{"* * * * * *", "*/2 * * * * *", "*/3 * * * * *"})}
	s.Jitter, s.Start, s.End, s.MaxRuns, s.TTL, s.PauseAfter, s.Shadow = 0, task.Time{}, task.Time{}, 0, 0, 0, false
	if s.Action.Process != nil {
		s.Timeout, s.Action.Process.Command[1] = 0, pickRandom(r, []string{"50ms", "300ms", "1s"})
	}
}

// withoutSchedule leaves only the sources to start a task.
func withoutSchedule(s *task.Spec) {
	s.Schedule, s.Missed = task.Schedules{task.ManualSchedule}, task.Defaults().Missed
	s.Jitter, s.Start, s.End, s.MaxRuns, s.TTL = 0, task.Time{}, task.Time{}, 0, 0
	if s.Alerts != nil {
		s.Alerts.MaxLateness, s.Alerts.SuccessBy = 0, ""
	}
}

// drawSources draws the sources of task n: the task before it, the first one, or several.
func drawSources(n int, r *rand.Rand) task.Sources {
	one := func(n int) task.Source {
		s := task.Source{Task: fmt.Sprintf("t%02d", n), When: pickRandom(r, []task.When{"", "", task.WhenEnded, task.WhenFailed})}
		if r.IntN(2) == 0 {
			s.Results = []string{"rows"}
		}
		return s
	}

	switch r.IntN(4) {
	case 0:
		return task.Sources{one(0)}
	case 1:
		if n > 1 {
			return task.Sources{one(n - 1), one(n - 2)}
		}
	}

	return task.Sources{one(n - 1)}
}

// editSources changes the sources of a task. In one of three cases, the API may have to refuse a cycle.
func (u *user) editSources(ctx context.Context, c *client.Client, name, mark string) (client.Task, error) {
	var n int
	if _, err := fmt.Sscanf(name, "t%d", &n); err != nil {
		return client.Task{}, err
	}

	fields := map[string]any{"after": nil, "join": nil}
	switch {
	case u.rng.IntN(3) == 0:
		fields["after"] = task.Sources{{Task: u.drawName()}}
	case n > 0 && u.rng.IntN(5) > 0:
		sources := drawSources(n, u.rng)
		if fields["after"] = sources; len(sources) > 1 {
			fields["join"] = task.JoinAny
		}
	}

	return u.patchTask(ctx, c, name, mark, fields)
}

// damageLinks damages a record of a source or of a dependent by hand, or writes the record of an ended run again as it is.
func (u *user) damageLinks(ctx context.Context) error {
	kind := pickRandom(u.rng, []record.Kind{record.KindSent, record.KindTrigger, record.KindTrigger, record.KindSubscriber, record.KindEnded, record.KindEnded})
	all, err := u.etcd.Get(ctx, u.admin.Keys().Shards(), clientv3.WithPrefix())
	if err != nil {
		return err
	}

	var keys, values []string
	for _, e := range all.Kvs {
		if k, ok := u.admin.Keys().ParseShard(string(e.Key)); ok && k.Kind == kind && !k.Late {
			keys, values = append(keys, string(e.Key)), append(values, string(e.Value))
		}
	}
	if len(keys) == 0 {
		return nil
	}

	i := u.rng.IntN(len(keys))
	value := pickRandom(u.rng, []string{"", "damaged", "{}"})
	if kind == record.KindEnded {
		value = values[i]
	}

	// The record may have been deleted since.
	res, err := u.etcd.Txn(ctx).If(clientv3.Compare(clientv3.Value(keys[i]), "=", values[i])).Then(clientv3.OpPut(keys[i], value)).Commit()
	if err == nil && res.Succeeded {
		u.logLine("> by hand: %s", keys[i])
		u.countReached("written by hand: " + string(kind))
	}

	return err
}

// linkPhaseOf reports whether a request sends triggers, or takes them.
func linkPhaseOf(keys record.Keys, op clientv3.Op) (sends, takes bool) {
	if !op.IsTxn() {
		k, ok := keys.ParseShard(string(op.KeyBytes()))
		return ok && op.IsPut() && k.Kind == record.KindSent, ok && op.IsDelete() && k.Kind == record.KindTrigger
	}

	_, then, _ := op.Txn()
	for _, o := range then {
		s, t := linkPhaseOf(keys, o)
		sends, takes = sends || s, takes || t
	}

	return sends, takes
}

// killInSend kills a node when it sends triggers or takes them, and starts it again when the fault ends.
func killInSend(w *world) func(*world) {
	n := w.someNode()
	if n == nil {
		return nil
	}

	inSend := w.rng.IntN(2) == 0

	return n.killInTrap(map[bool]string{true: "send", false: "take"}[inSend], func(op clientv3.Op) bool {
		sends, takes := linkPhaseOf(w.admin.Keys(), op)
		return inSend && sends || !inSend && takes
	})
}

// isSent reports whether no end of a run is owed to a dependent, and no trigger waits.
func (w *world) isSent() bool {
	all, err := w.etcd.Get(w.life, w.admin.Keys().Shards(), clientv3.WithPrefix())
	if err != nil {
		w.abort(fmt.Errorf("look for ends that were not sent: %w", err))
	}

	records := make([]check.Event, len(all.Kvs))
	for i, e := range all.Kvs {
		records[i] = check.Event{Key: string(e.Key), Value: e.Value, ModRevision: e.ModRevision, CreateRevision: e.CreateRevision}
	}

	return len(check.Owed(w.admin.Keys(), records)) == 0
}

// countLink adds what a record of a source or of a dependent shows. mu is held.
func (w *world) countLink(k record.ShardKey, text string, deleted, created bool) {
	switch {
	case k.Kind == record.KindTrigger && created:
		w.counts["trigger sent"]++
	case k.Kind == record.KindSubscriber && !deleted:
		w.counts["link written"]++
	case k.Kind == record.KindEnded && created:
		// Decode the record, because its text also contains the states of the runs that sent the triggers.
		r, err := record.DecodeEnded(k, []byte(text))
		if err != nil || r.Trigger != task.TriggerAfter {
			return
		}

		w.counts["trigger's run "+string(r.State)]++
		if strings.Contains(text, `"count":`) {
			w.counts["several triggers in a record"]++
		}
	}
}
