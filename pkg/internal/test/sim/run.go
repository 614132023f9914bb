package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/mutant"
	"github.com/carillonhq/carillon/pkg/task"
)

// apiUsers is how many users call the API.
const apiUsers = 2

// The timeouts of the cluster are short, so that many things happen in a minute.
const (
	leaseTTL     = 3 * time.Second
	lostAfter    = 14 * time.Second // close to the minimum of 12 s
	drainTimeout = 5 * time.Second
	maxSkew      = 1500 * time.Millisecond // less than the clock guard detects (2 s)
	maxNodes     = 6                       // no node joins beyond this number
)

// Options describe a simulation. Zero values are drawn from the seed or replaced by defaults.
type Options struct {
	Nodes    int           // at the beginning; default 3 to 5
	Shards   int           // default 8 to 32
	Slots    int           // of each node; default 8
	Tasks    int           // how many names tasks can have; default 6 to 14
	Duration time.Duration // of the phase with faults; default one minute
	Patience time.Duration // how long runs may take to end afterwards; default one hour, because long runs may wait for one another
	// Only, if set, lists the faults that occur; "calm" means none.
	Only []string
	// Rough makes calls to etcd slow, lost, late and repeated, whatever Only lists.
	Rough bool
	// Shape, if set, changes each task before users apply it.
	Shape func(*task.Spec)
	// Plain creates tasks without policies of time and overlap.
	Plain bool
	// Calls lists what users do after each task was applied once. A call that is listed twice is made twice as
	// often.
	Calls []string
	// Workloads, if not nil, lists the workloads. By default the seed draws them, unless Only, Shape, Plain or
	// Calls determine the purpose of the simulation.
	Workloads []string
	// WrapClient, if set, changes a node's etcd client before it is used, at each start of the node. It may wrap the
	// client's KV, Watcher and Lease.
	WrapClient func(node string, c *clientv3.Client)

	farClocks bool // clocks jump by more than the clock guard tolerates
}

// Report is the result of a simulation.
type Report struct {
	check.Report
	Seed   uint64         // reproduces the choices of the simulation
	Counts map[string]int // how often something was reached, see Hard
	Story  string         // what happened, with the nodes' logs
	Events []check.Event  // the complete history
}

// Run runs the simulation of a seed in virtual time, which takes about a second, and judges it. It fails t only if
// the simulation itself cannot continue. Violations are in the report.
func Run(t *testing.T, seed uint64, o Options) Report {
	t.Helper()
	var r Report
	synctest.Test(t, func(t *testing.T) { r = runInBubble(t, seed, o) })

	return r
}

// runInBubble runs the phases of a simulation: start, faults, recovery, quiet, and judgement.
func runInBubble(t *testing.T, seed uint64, o Options) Report {
	time.Sleep(time.Until(o.startTime(seed)))

	// life outlives the test's context, because daemons must end before the bubble does.
	life, end := context.WithCancel(context.WithoutCancel(t.Context()))
	defer end()

	w := newWorld(t, life, seed, o)
	w.background.Go(func() { w.timeRevisions(life) })
	w.startNodes(seed)
	users, calm := context.WithCancel(life)

	// Two users call the API at the same time, so that their calls can conflict.
	for i := range apiUsers {
		u := &user{world: w, account: w.accounts[i], rng: rand.New(rand.NewPCG(seed, w.rng.Uint64()))}
		w.background.Go(func() { u.makeCalls(users) })
	}

	// Phase of faults. It ends with all faults removed and all nodes running.
	began := time.Now()
	w.injectFaults()
	if !w.hasFaults() {
		w.calm = []check.Period{{From: began, To: time.Now()}}
	}
	w.endFaults()
	calm()
	w.resumeNodes()

	// From here on the cluster has settleTime to decide everything that is due until now (G16).
	until := time.Now()
	w.logLine("> all is well")
	w.sleep(settleTime)

	// A request from before the recovery may have arrived late.
	w.resumeNodes()
	w.endFreezes()
	w.openNamespace()

	if w.expectsSuccess() && w.hasFaults() {
		w.watchAlerts()
	}
	if w.expectsSuccess() {
		w.deleteReceiver()
	}

	// Pause all tasks and wait until all runs have ended.
	w.pauseAll()
	quiet := w.waitUntil(w.opts.Patience, func() bool { w.resumeAll(); return w.isIdle() && w.isSent() && !w.hasOldData() })
	w.logLine("> quiet: %t", quiet)
	if w.expectsSuccess() {
		w.sleep(maxPause)
		w.evaluated = time.Now()
		w.sleep(evaluationTime)
	}
	w.wrongAnswers = w.judgeAnswers(seed)

	// Stop everything, so that no goroutine is left in the bubble.
	w.stopProcesses()
	end()
	w.background.Wait()
	w.etcd.Close()
	w.store.Close()

	return w.buildReport(seed, until)
}

// drawsWorkloads reports whether the seed draws workloads, or the options list them.
func (o *Options) drawsWorkloads() bool {
	return o.Workloads != nil || len(o.Only) == 0 && o.Shape == nil && !o.Plain && len(o.Calls) == 0
}

// hasFaults reports whether anything may go wrong in the phase of faults.
func (w *world) hasFaults() bool {
	return w.opts.Rough || !slices.Equal(w.opts.Only, []string{"calm"}) || slices.ContainsFunc(w.workloads, func(l workload) bool { return l.fault.name != "" })
}

// startTime returns when the simulation of a seed begins. Half of those with alerts begin shortly before clocks go back, because of their
// deadlines.
func (o *Options) startTime(seed uint64) time.Time {
	hasAlerts := slices.ContainsFunc(o.drawWorkloads(seed), func(l workload) bool { return l.name == "alerts" })
	if o.drawsWorkloads() && hasAlerts && seed%2 == 0 {
		return clockChange.Add(-30 * time.Second)
	}

	return simulationStart
}

// startNodes draws the options that are not set, and starts the first nodes.
func (w *world) startNodes(seed uint64) {
	o := &w.opts

	// Always draw, even if the option is set: the number of draws must not depend on the options.
	draw := func(v *int, least, most int) {
		if n := least + w.rng.IntN(most-least+1); *v == 0 {
			*v = n
		}
	}

	draw(&o.Nodes, 3, 5)
	draw(&o.Shards, 8, 32)
	draw(&o.Tasks, 6, 14)

	// Workloads change what users do, so they are drawn only if the options leave that open.
	if o.drawsWorkloads() {
		w.workloads = o.drawWorkloads(seed)
	}

	for _, l := range w.workloads {
		if l.prepare != nil {
			l.prepare(o, w.rng)
		}
	}

	if o.Slots == 0 {
		o.Slots = 8
	}

	if o.Duration == 0 {
		o.Duration = time.Minute
	}

	if o.Patience == 0 {
		o.Patience = time.Hour
	}

	if len(o.Calls) == 0 {
		o.Calls = []string{"apply", "apply", "apply", "pause", "resume", "resume", "delete", "trigger", "trigger", "cancel", "patch"}
		if !o.Plain {
			o.Calls = append(o.Calls, "pause until", "freeze", "unfreeze", "unfreeze", "retry", "retry", "rollback")
		}
	}

	for _, l := range w.workloads {
		o.Calls = slices.Concat(o.Calls, l.calls)
		w.logLine("> workload: %s", l.name)
		w.countReached("workload " + l.name)
	}

	// Without a specific purpose, the weather is drawn: none, mild, rough, or mostly lost answers.
	switch {
	case o.Rough:
		w.weather = weather{requestLost: 20, answerLost: 250, late: 80, twice: 80, slow: 100}
	case len(o.Only) == 0:
		w.weather = pickRandom(w.rng, []weather{
			{}, {requestLost: 20, answerLost: 20, late: 20, twice: 20, slow: 20}, {requestLost: 60, answerLost: 80, late: 80, twice: 50, slow: 50}, {answerLost: 200, late: 50, twice: 100},
		})
	}

	w.logLine("> %d nodes, %d shards, %d tasks, %s, weather %+v", o.Nodes, o.Shards, o.Tasks, o.Duration, w.weather)

	for range o.Nodes {
		w.addNode().startDaemon()
		w.sleep(durationBetween(w.rng, 0, 500*time.Millisecond))
	}

	w.sleep(3 * time.Second)
}

// injectFaults begins faults at random intervals and ends each after a random time, until the duration is over.
func (w *world) injectFaults() {
	var all []fault
	for _, f := range allFaults {
		if len(w.opts.Only) == 0 || slices.Contains(w.opts.Only, f.name) {
			all = append(all, slices.Repeat([]fault{f}, f.weight)...)
		}
	}

	for _, l := range w.workloads {
		all = append(all, slices.Repeat([]fault{l.fault}, l.fault.weight)...)
	}

	if len(all) == 0 {
		w.sleep(w.opts.Duration)
		return
	}

	// pending is a fault that has begun and ends later.
	type pending struct {
		at  time.Time
		end func(*world)
		of  string
	}
	var ends []pending
	for last := time.Now().Add(w.opts.Duration); time.Now().Before(last); {
		w.sleep(durationBetween(w.rng, 100*time.Millisecond, 4*time.Second))

		// End the faults whose time is over.
		ends = slices.DeleteFunc(ends, func(p pending) bool {
			if time.Now().Before(p.at) {
				return false
			}

			w.logLine("> over: %s", p.of)
			p.end(w)

			return true
		})

		// Begin another one. Short faults are over before anything notices them, and long ones last beyond
		// lost_after.
		f := pickRandom(w.rng, all)
		w.logLine("> fault: %s", f.name)
		w.countReached("fault " + f.name)
		length := pickRandom(w.rng, []time.Duration{time.Second, 5 * time.Second, 35 * time.Second})

		if end := f.begin(w); end != nil {
			ends = append(ends, pending{time.Now().Add(durationBetween(w.rng, length/10, length)), end, f.name})
		}
	}

	for _, p := range ends {
		p.end(w)
	}
}

// settleTime is how long a cluster has after all faults until every shard has an owner and every due tick an
// outcome (G16).
const settleTime = 20 * time.Second

// endFaults ends all faults, and starts every node that does not run.
func (w *world) endFaults() {
	w.store.SetFull(false)
	w.store.Thaw(true)
	w.targets.mendAll()

	w.weather = weather{}
	for _, p := range w.all {
		p.link.removeFaults() // including those of processes that drain
	}

	for _, name := range w.names {
		n := w.nodes[name]
		n.skew.Store(0)

		if n.proc == nil {
			if !w.waitUntil(5*time.Minute, func() bool { return isClosed(n.former) }) {
				w.abort(fmt.Errorf("the former daemon of %s does not end:\n%s", n.name, strings.Join(w.story, "\n")))
			}
			n.startDaemon()
		}

		w.net.setSilent(n.address, false)
	}

	w.endFreezes()
}

// isClosed reports whether a channel is closed, without waiting.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// pauseAll pauses every task, so that no new runs begin.
func (w *world) pauseAll() {
	for i := range w.opts.Tasks {
		paused := w.waitUntil(time.Minute, func() bool {
			c := w.clientOf(w.nodes[w.names[0]])
			if c == nil {
				return true
			}

			ctx, cancel := context.WithTimeout(w.life, 10*time.Second)
			defer cancel()

			_, err := c.Tasks.Pause(ctx, simNamespace, fmt.Sprintf("t%02d", i), 0)

			return err == nil || isNotFound(err)
		})

		if !paused {
			w.logLine("> t%02d cannot be paused", i)
		}
	}
}

// resumeAll resumes all runs that are paused or for which a pause is requested.
func (w *world) resumeAll() {
	held, err := w.admin.Active(w.life)
	if err != nil {
		w.abort(err)
	}

	for _, h := range held {
		if h.PauseRequested {
			_, _ = w.admin.ResumeActive(w.life, h, task.NewActor("nobody")) // a conflict is resolved by the next call
		}
	}
	w.resumeFlows()
}

// stopProcesses ends all processes, and waits for what is left of those that were killed.
func (w *world) stopProcesses() {
	for _, p := range w.all {
		p.stop()
	}

	for _, p := range w.all {
		if !w.waitUntil(5*time.Minute, func() bool { return isClosed(p.gone) }) {
			w.abort(fmt.Errorf("a daemon of %s does not end:\n%s", p.link.name, strings.Join(w.story, "\n")))
		}
	}
}

// buildReport judges the history: the checker's rules, the probe log, and the API's answers.
func (w *world) buildReport(seed uint64, until time.Time) Report {
	defer mutant.Suspend()()

	events := checkEvents(w.store.Events())
	for i := range events {
		events[i].At = w.times[events[i].Revision]
	}

	keys := w.admin.Keys()
	r := Report{Seed: seed, Events: events, Report: check.Check(keys, events, check.Options{Until: until, Ended: true, Skew: w.skewed, Remembered: true, Folded: true, Full: w.full, Audited: true, Evaluated: w.evaluated, Calm: w.calm})}
	r.Violations = slices.Concat(r.Violations, check.CheckProbeLog(strings.NewReader(w.probes.log.String()), keys, events),
		w.probes.findOverlaps(keys, events), w.judgeFrozenStarts(keys, events), w.judgeLosses(keys, events), w.acks.findViolations(keys, events))
	for _, what := range w.wrongAnswers {
		r.Violations = append(r.Violations, check.Violation{Promise: "G31", Message: what})
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.countHistory(r.Summary)
	r.Story, r.Counts = strings.Join(w.story, "\n"), w.counts

	return r
}

// checkEvents converts what the store has kept to events as a recorder returns them.
func checkEvents(all []*mvccpb.Event) []check.Event {
	events := make([]check.Event, len(all))
	for i, e := range all {
		events[i] = check.Event{
			Revision: e.Kv.ModRevision, Key: string(e.Kv.Key), Value: e.Kv.Value, Deleted: e.Type == mvccpb.Event_DELETE,
			ModRevision: e.Kv.ModRevision, CreateRevision: e.Kv.CreateRevision, Lease: e.Kv.Lease,
		}
	}

	return events
}
