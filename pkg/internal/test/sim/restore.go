package sim

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/backup/restore"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/mutant"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// RestoreOptions describe a simulation of a restore (RunRestore).
type RestoreOptions struct {
	Options
	// Move stops the cluster before the backup, so that nothing is lost.
	Move bool
	// Older restores an older backup first, and then the newer one.
	Older bool
	// StayUp keeps the daemons running while etcd is away. Otherwise they are killed, some of them with their hosts.
	StayUp bool
}

// restoreWorkloads are the workloads of simulations of restores: with others, acknowledged changes that are lost break what
// the checker expects.
var restoreWorkloads = []string{"pause runs", "edit schedules", "change policies", "fan out", "requests", "dependents", "workflows", "boots", "small history", "alerts"}

// DrawRestore draws the kind of the restore of a seed.
func DrawRestore(seed uint64) RestoreOptions {
	r := rand.New(rand.NewPCG(seed, 3))
	o := RestoreOptions{Move: seed%4 == 0, Older: seed%4 == 1, StayUp: seed%2 == 1}
	for _, name := range restoreWorkloads {
		if r.IntN(3) == 0 {
			o.Workloads = append(o.Workloads, name)
		}
	}
	if o.Workloads == nil {
		o.Workloads = []string{}
	}

	return o
}

// backup is a copy of the store, as of a snapshot.
type backup struct {
	store    *kvmem.Store
	at       time.Time
	revision int64
	history  []check.Event // that of the backup
}

// restorer is a cluster that is restored from a backup.
type restorer struct {
	*world
	seed uint64
	kind RestoreOptions

	past       []check.Event // the history that etcd continues since the last restore
	ever       []check.Event // everything that was ever written before it
	violations []check.Violation
}

// RunRestore simulates a cluster whose etcd is lost and restored from a backup, while users change tasks. It judges the history of the
// backup, continued by that after the restore (G68).
func RunRestore(t *testing.T, seed uint64, o RestoreOptions) Report {
	t.Helper()

	o.Only, o.Nodes, o.Shards, o.Tasks = []string{"calm"}, cmp.Or(o.Nodes, 3), cmp.Or(o.Shards, 8), cmp.Or(o.Tasks, 10)
	var r Report
	synctest.Test(t, func(t *testing.T) { r = runRestoreInBubble(t, seed, o) })

	return r
}

// runRestoreInBubble runs the phases of a simulation: a cluster lives, a backup is made, the cluster goes on, etcd is lost and restored, the
// cluster goes on again, and all becomes quiet.
func runRestoreInBubble(t *testing.T, seed uint64, o RestoreOptions) Report {
	time.Sleep(time.Until(simulationStart))
	life, end := context.WithCancel(context.WithoutCancel(t.Context()))
	defer end()

	w := &restorer{world: newWorld(t, life, seed, o.Options), seed: seed, kind: o}
	w.startNodes(seed)
	calm := w.startUsers()

	w.sleep(durationBetween(w.rng, 15*time.Second, 25*time.Second))
	older := w.makeBackup()
	w.sleep(durationBetween(w.rng, time.Second, 15*time.Second))

	if o.Move {
		calm()
		w.killAll(false)
		w.sleep(time.Second)
	}

	newer := w.makeBackup()
	if !o.Move {
		w.sleep(durationBetween(w.rng, time.Second, 15*time.Second))
	}

	if o.Older {
		w.restoreFrom(older)
		w.sleep(durationBetween(w.rng, 5*time.Second, 20*time.Second))
	}
	w.restoreFrom(newer)
	if o.Move {
		calm = w.startUsers()
	}

	w.sleep(25 * time.Second)
	w.endFaults()
	calm()
	w.resumeNodes()
	until := time.Now()
	w.sleep(settleTime)
	w.endFreezes()
	if w.expectsSuccess() {
		w.deleteReceiver()
	}

	w.pauseAll()
	quiet := w.waitUntil(time.Hour, func() bool { w.resumeAll(); return w.isIdle() && w.isSent() })
	w.logLine("> quiet: %t", quiet)
	if w.expectsSuccess() {
		w.sleep(maxPause)
		w.evaluated = time.Now()
		w.sleep(evaluationTime)
	}

	w.stopProcesses()
	end()
	w.background.Wait()
	w.etcd.Close()
	w.store.Close()

	return w.buildReport(until)
}

// startUsers starts the users of the API. It returns a function that ends them.
func (w *restorer) startUsers() (calm func()) {
	users, calm := context.WithCancel(w.life)
	for i := range apiUsers {
		u := &user{world: w.world, account: w.accounts[i], rng: rand.New(rand.NewPCG(w.seed, w.rng.Uint64()))}
		w.background.Go(func() { u.makeCalls(users) })
	}

	return calm
}

// events returns everything that was written to the present etcd, and what the backup from which it was restored contained.
func (w *restorer) events() []check.Event {
	return slices.Concat(w.past, checkEvents(w.store.Events()))
}

// makeBackup copies the store.
func (w *restorer) makeBackup() backup {
	b := backup{store: w.store.Copy(), at: time.Now()}
	b.revision = b.store.Revision()
	b.history, _ = check.JoinRestored(w.events(), b.revision, nil)
	w.logLine("> a backup is made at revision %d", b.revision)

	return b
}

// killAll kills the daemons that run, some of them with their hosts.
func (w *restorer) killAll(hosts bool) {
	for _, name := range w.names {
		if n := w.nodes[name]; n.proc != nil {
			n.killDaemon(hosts && w.rng.IntN(3) == 0)
		}
	}
}

// restoreFrom loses etcd and restores a backup, with the transactions of the product. What was due until etcd was lost may have been
// decided. After a move, nothing was.
func (w *restorer) restoreFrom(b backup) {
	w.logLine("> etcd is lost")
	w.store.Freeze()
	lost := time.Now()
	if !w.kind.StayUp {
		w.killAll(true)
	}
	w.sleep(leaseTTL + durationBetween(w.rng, time.Second, 20*time.Second))

	until := lost
	if w.kind.Move {
		until = b.at
	}
	now := time.Now()
	b.store.Bump(max(now.UnixMicro(), b.revision+1e9))

	client := kv.Wrap(b.store.Client(w.life), 0)
	offline := store.New(client, kv.Direct(client), w.admin.Keys())
	present, err := offline.Present(w.life)
	if err != nil {
		w.abort(err)
	}
	c, err := restore.Rewrite(w.life, client, offline, restore.Source{Time: b.at}, &restore.Content{Revision: present.Revision, Cluster: present.Cluster},
		&restore.Options{Node: "n1", Now: now, Until: until, By: task.NewActor("unix:root")})
	if err != nil {
		w.abort(err)
	}
	client.Close()

	w.ever = slices.Concat(w.ever, checkEvents(w.store.Events()))
	w.judgeLost()
	w.past = b.history
	w.store.Become(b.store)
	w.store.Thaw(true)
	w.logLine("> etcd is restored from the backup at revision %d, in epoch %d, until %s", b.revision, c.Epoch, clockTime(until))
	w.countReached("restored")

	for _, name := range w.names {
		if n := w.nodes[name]; n.proc == nil {
			if !w.waitUntil(time.Minute, func() bool { return isClosed(n.former) }) {
				w.abort(fmt.Errorf("the former daemon of %s does not end", name))
			}
			n.startDaemon()
		}
	}
}

// judgeLost compares what was written since the last restore with all that it has lost.
func (w *restorer) judgeLost() {
	if len(w.past) == 0 {
		return // it was never restored
	}

	kept := map[int64]bool{}
	for i := range w.past {
		kept[w.past[i].Revision] = true
	}

	restored := checkEvents(w.store.Events())
	lost := slices.DeleteFunc(slices.Clone(w.ever), func(e check.Event) bool { return kept[e.Revision] || e.Revision >= restored[0].Revision })
	w.violations = append(w.violations, check.CheckLost(w.admin.Keys(), lost, restored)...)
	w.mu.Lock()
	w.counts["revision lost"] += len(lost)
	w.mu.Unlock()
}

// buildReport judges the history.
func (w *restorer) buildReport(until time.Time) Report {
	defer mutant.Suspend()()

	w.judgeLost()
	events, keys := w.events(), w.admin.Keys()
	r := Report{Seed: w.seed, Events: events, Report: check.Check(keys, events, check.Options{Until: until, Ended: true, Skew: w.skewed, Remembered: true, Folded: true, Audited: true, Evaluated: w.evaluated})}
	r.Violations = append(r.Violations, w.violations...)

	w.mu.Lock()
	defer w.mu.Unlock()

	for i := range events {
		if strings.Contains(string(events[i].Value), `"reason":"restored"`) {
			switch {
			case strings.Contains(string(events[i].Value), `"state":"missed"`):
				w.counts["restored: missed"]++
			case strings.Contains(events[i].Key, "/dead/"):
				w.counts["restored: dead"]++
			case strings.Contains(events[i].Key, "/parts/"):
				w.counts["restored: part lost"]++
			case strings.Contains(string(events[i].Value), `"fan_out":`):
				w.counts["restored: parent lost"]++
			default:
				w.counts["restored: lost"]++
			}
		}
	}
	r.Story, r.Counts = strings.Join(w.story, "\n"), w.counts

	return r
}
