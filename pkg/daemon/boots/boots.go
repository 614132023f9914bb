// Package boots creates the runs of tasks with the schedule @reboot while its node leads.
//
//	nodes/…: a node with another boot id ──► which tasks match it? ──► boots/nodes/… and queue/…, in one transaction
//	                                              ▲
//	                                      boots/tasks/… and their entries
//
// A run for a boot is a manual run that names its node. Its owner starts it when the node can take it.
//
// # Guarantees
//
//   - A task has exactly one run for each boot of a node that matches it, if it runs at boot since before the node has joined the
//     cluster, and is not paused (G62). The record of the boot is written with the runs, and compared, in a transaction of the leader's
//     term. So it does not matter where a leader dies, nor whether the answer of etcd arrives.
//   - The daemon of a node may restart, and lose its session, as often as it wants: the boot is the same.
//
// It does not guarantee that the run starts. Its start deadline may pass, somebody may cancel it, or the node may never return.
//
// # Keys
//
// The package writes boots/nodes/ with queue records, or with history records of runs that are skipped. It reads boots/tasks/ and
// entries.
//
// # Failures
//
// The state is in etcd, so the next leader continues where this one stopped. While etcd is unavailable, or the clock is not trusted, the
// package waits.
package boots

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon/leaderterm"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

const (
	// passEvery is the shortest interval between two comparisons of the nodes with their records. All nodes together announce
	// themselves many times a second.
	passEvery = time.Second
	// seenEvery is how old the time at which a node was seen may become while it is present.
	seenEvery = 24 * time.Hour
	// startWithin is how long a run may wait for its node, unless the task has a start deadline. A node that never returns, or that
	// boots again and again before it accepts runs, would else leave more and more of them.
	startWithin = 24 * time.Hour
	// forgetAfter is how long the record of a node that is gone is kept. A node that returns later counts as new.
	forgetAfter = 30 * 24 * time.Hour
)

// Config is the configuration of a Watcher.
type Config struct {
	Store *store.Store
	// Task returns the reference of a task with its shard.
	Task func(namespace, name string) record.Ref
	// Nodes returns the nodes that are present.
	Nodes func() []task.Node
	// Subscribe registers a signal that is sent when the nodes change, and returns a function that ends that.
	Subscribe func(wake.Signal) (unsubscribe func())
	// Access returns what the access records say now, and the mod revision of their fence; nil: that is not known yet.
	Access func() (Access, int64)
	// Freezes returns the freezes that are in force, and the mod revision of their record; nil: they are not known yet.
	Freezes func() (*task.Freezes, int64)
	// Gap returns what lost histories of the cluster may have decided; nil: there were none. May be nil.
	Gap func() *task.Gap
	// MayWrite returns why nothing may be written now, or nil: the clock is not trusted, or etcd was restored.
	MayWrite func() error
	Now      func() time.Time
	Logger   *zap.Logger
}

// Access says where tasks may run.
type Access interface {
	// LimitNode returns a node with only the labels that it may have.
	LimitNode(n task.Node) task.Node
	// Namespace returns the record of a namespace, or nil if there is none.
	Namespace(name string) *task.Namespace
}

// Watcher creates the runs for the boots of nodes.
type Watcher struct {
	cfg Config
	log *zap.Logger
}

// New returns a Watcher. It does no I/O.
func New(cfg Config) *Watcher { return &Watcher{cfg: cfg, log: cfg.Logger.Named("boots")} }

// Run creates runs until ctx ends or the leader's term is over. It is called once for each term, one after the other.
func (w *Watcher) Run(ctx context.Context, fence kv.Fence) error {
	changed := wake.NewSignal()
	defer w.cfg.Subscribe(changed)()
	changed.Send()

	t := &term{Watcher: w, fence: fence}
	pass := func(ctx context.Context) error {
		err := t.makePass(ctx)
		if err != nil {
			t.known = nil // what was written is not known; the next pass reads it
		}

		return err
	}

	return leaderterm.Loop{Pass: pass, Every: passEvery, Changed: changed, Failure: "could not create the runs for the boots of nodes; retrying", Log: w.log}.Run(ctx)
}

// term is what a leader knows in one term.
type term struct {
	*Watcher
	fence kv.Fence
	known map[string]record.Boot // the last boots of nodes, as they are in etcd; nil: not read yet
}

// makePass handles the boots of all nodes that are not handled yet.
func (t *term) makePass(ctx context.Context) error {
	// Without a clock, runs have no time and no deadline.
	if t.cfg.MayWrite() != nil {
		return nil
	}

	access, fence := t.cfg.Access()
	freezes, freezesMod := t.cfg.Freezes()
	if access == nil || freezes == nil {
		return nil
	}

	if t.known == nil {
		list, err := t.cfg.Store.Boots(ctx)
		if err != nil {
			return err
		}

		t.known = make(map[string]record.Boot, len(list))
		for _, b := range list {
			t.known[b.Node] = b
		}
	}

	p := &pass{term: t, now: t.cfg.Now(), access: access, freezes: freezes, basis: store.BootBasis{Freezes: freezesMod, Access: fence}}
	if t.cfg.Gap != nil {
		p.gap = t.cfg.Gap()
	}
	present := map[string]bool{}
	for _, n := range t.cfg.Nodes() {
		present[n.Name] = true
		if err := p.handleNode(ctx, &n); err != nil {
			return err
		}
	}

	return p.forgetNodes(ctx, present)
}

// pass is one pass over all nodes.
type pass struct {
	*term
	now     time.Time
	access  Access
	freezes *task.Freezes
	basis   store.BootBasis // without tasks
	gap     *task.Gap
}

// handleNode creates the runs for the boot of a node, unless they exist.
func (p *pass) handleNode(ctx context.Context, n *task.Node) error {
	b := p.known[n.Name]

	switch {
	case n.BootID == "": // its host does not say
		return nil
	case b.BootID != n.BootID && n.Revision < b.Registered:
		// The watch of this leader is late, and still has the node as it was before its last boot.
		return nil
	case b.BootID != n.BootID:
		b = record.Boot{Node: n.Name, Mod: b.Mod, BootID: n.BootID, BootedAt: n.BootedAt, At: task.At(p.now), Registered: n.Revision}
		p.log.Info("a node has booted", zap.String("node", n.Name), zap.String("boot", n.BootID))
	case b.Done && p.now.Sub(b.Seen.Time) < seenEvery:
		return nil
	}

	b.Seen = task.At(p.now)
	if b.Done {
		return p.write(ctx, &b, nil, nil)
	}

	limited := p.access.LimitNode(*n)
	for !b.Done {
		tasks, more, err := p.cfg.Store.BootTasks(ctx, b.After, p.cfg.Task)
		if err != nil {
			return err
		}

		var runs []task.Run
		for i := range tasks {
			if p.runsFor(&tasks[i], &b, &limited) {
				runs = append(runs, p.newRun(&tasks[i], &b))
			}
		}

		if len(tasks) > 0 {
			b.After = tasks[len(tasks)-1].Name()
		}
		if b.Done = !more; b.Done {
			b.After = ""
		}

		if err := p.write(ctx, &b, tasks, runs); err != nil {
			return err
		}
	}

	return nil
}

// write writes the record of a boot with the runs that were decided from some tasks, and remembers it.
func (p *pass) write(ctx context.Context, b *record.Boot, from []store.BootTask, runs []task.Run) error {
	basis := p.basis
	basis.Tasks = from
	rev, err := p.cfg.Store.WriteBoot(ctx, p.fence, *b, basis, runs)
	if err != nil {
		return err
	}

	b.Mod = rev
	p.known[b.Node] = *b
	for _, r := range runs {
		p.log.Info("created a run for the boot of a node", zap.String("task", r.Namespace+"/"+r.Task), zap.String("run", r.ID),
			zap.String("node", b.Node), zap.String("state", string(r.State)))
	}

	return nil
}

// runsFor reports whether a task has a run for a boot: it runs at boot since before the node joined, is not paused, and both the task
// and its namespace let it run on the node.
func (p *pass) runsFor(t *store.BootTask, b *record.Boot, n *task.Node) bool {
	e := &t.Entry
	ns := p.access.Namespace(t.Ref.Namespace)

	switch {
	case t.Since >= b.Registered, t.Mod == 0:
		return false
	case t.Err != nil:
		p.log.Warn("a task that runs at boot cannot be read, and does not run", zap.String("task", t.Ref.String()), zap.String("node", n.Name), zap.Error(t.Err))
		return false
	case !e.Schedule.AtBoot(), isPaused(e, p.now), ns == nil:
		return false
	case e.Target.Strategy == task.StrategyFirst && len(e.Target.Order) > 0 && !slices.Contains(e.Target.Order, n.Name):
		return false
	}

	return n.Has(task.RoleExecutor) && accepts(e.Target.Selector, n) && accepts(ns.Nodes, n)
}

// isPaused reports whether a task is paused at an instant.
func isPaused(e *task.Entry, at time.Time) bool {
	until, ends := e.Silence()
	return e.Paused && !(ends && at.After(until.Time))
}

// accepts reports whether a selector matches a node. One that cannot be read matches none.
func accepts(selector string, n *task.Node) bool {
	if strings.TrimSpace(selector) == "" {
		return true
	}
	s, err := task.ParseSelector(selector)

	return err == nil && s.Accepts(n)
}

// newRun returns the run of a task for a boot. It waits in the queue, or is skipped or missed as a tick would be.
func (p *pass) newRun(t *store.BootTask, b *record.Boot) task.Run {
	at := task.At(p.now)
	r := task.Run{
		ID: task.ManualRunID(p.now, t.Entry.UID), Namespace: t.Ref.Namespace, Task: t.Ref.Name, Shard: t.Ref.Shard,
		UID: t.Entry.UID, ScheduledTime: at, CreatedAt: at, Attempt: 1,
		State: task.Queued, Reason: task.ReasonManual, Trigger: task.TriggerManual,
		Requests: task.Requests{CreatedBy: task.NewActor(task.CreatedByCarillon), TargetNode: b.Node, BootID: b.BootID},
	}

	// The lost history may have created the run. Of a host that does not say when it has booted, this cannot be excluded.
	if p.gap != nil && (b.BootedAt.IsZero() || p.gap.Covers(b.BootedAt.Time)) {
		r.State, r.Reason, r.Message, r.Attempt, r.EndedAt = task.Missed, task.ReasonRestored, p.gap.String(), 0, at
		return r
	}

	skip := ""
	switch {
	case p.freezes.Of(t.Ref.Namespace) != nil:
		skip = task.ReasonFrozen
	case t.Entry.Shadow:
		skip = task.ReasonShadow
	}

	if skip != "" {
		r.State, r.Reason, r.Attempt, r.EndedAt = task.Skipped, skip, 0, at
	} else {
		r.StartBefore = task.At(p.now.Add(cmp.Or(t.Entry.Deadline.Std(), startWithin)))
	}

	return r
}

// forgetNodes deletes the records of nodes that are gone for long.
func (p *pass) forgetNodes(ctx context.Context, present map[string]bool) error {
	for name, b := range p.known {
		if present[name] || p.now.Sub(b.Seen.Time) < forgetAfter {
			continue
		}

		if err := p.cfg.Store.DeleteBoot(ctx, p.fence, b); err != nil {
			return fmt.Errorf("forget node %s: %w", name, err)
		}
		delete(p.known, name)
		p.log.Info("forgot the last boot of a node that is gone", zap.String("node", name))
	}

	return nil
}
