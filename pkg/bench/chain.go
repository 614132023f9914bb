package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// chainLength is how many tasks of a chain run one after another.
const chainLength = 10

// measureChain measures how long it takes from the end of a run to the dispatch of the run that it starts in another task. An observer
// watches in etcd every end and every run, and verifies that each end starts exactly one run in each dependent.
func (b *bench) measureChain(ctx context.Context) (err error) {
	c, err := b.createCluster(ctx, benchNamespace)
	if err != nil {
		return err
	}

	// Nodes know the tokens from their start on.
	tokens, err := c.createTokens(ctx, 1)
	if err != nil {
		return err
	}

	t := &chainTrial{cluster: c, token: tokens[0], agents: newAgents(b.etcdTarget, b.Lease), hops: newHopObserver(b.keys)}
	defer func() { err = errors.Join(err, t.agents.stopAll(ctx)) }()

	for _, n := range trialNodes {
		if err := t.agents.startAgent(ctx, n); err != nil {
			return err
		}
	}

	if err := t.awaitBalanced(ctx, trialNodes...); err != nil {
		return err
	}

	g, watching := errgroup.WithContext(ctx)
	watching, stop := context.WithCancel(watching)
	g.Go(func() error { return t.hops.watchHops(watching, b.client, b.log) })
	g.Go(func() error { return t.measureCommits(watching) })

	err = t.runChains(watching)
	stop()

	// Both end with context.Canceled after stop.
	if watched := g.Wait(); !errors.Is(watched, context.Canceled) {
		err = errors.Join(err, watched)
	}
	if err != nil {
		return err
	}

	return t.addChainResults(ctx)
}

// chainTrial is the benchmark of chains in progress.
type chainTrial struct {
	*cluster
	token   string
	agents  *agents
	hops    *hopObserver
	commits []time.Duration // of single commits, in the same run
	began   time.Time
	took    time.Duration
}

// runChains creates the tasks, and waits until each end has started what it must. Meanwhile it kills nodes, if the benchmark says so.
func (t *chainTrial) runChains(ctx context.Context) error {
	specs, perSecond := t.chainTasks()
	t.progress.beginStep("create %d tasks", len(specs))

	for _, s := range specs {
		for _, source := range s.After {
			t.hops.addDependent(source.Task, s.Name)
		}
	}

	err := t.call(func(api *client.Client) error {
		for _, s := range specs {
			if _, err := api.Tasks.Create(ctx, s.Namespace, s); err != nil {
				return fmt.Errorf("create %s: %w", s.Name, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}

	// An end owes nothing to dependents that were created after it, so no source runs before all dependents exist.
	t.began = time.Now()
	err = t.callForSources(specs, "resume", func(api *client.Client, s task.Spec) error {
		_, err := api.Tasks.Resume(ctx, s.Namespace, s.Name, 0)
		return err
	})
	if err != nil {
		return err
	}

	t.progress.beginStep("run")

	// Kills cost ticks, so it takes longer than the number of runs suggests. If nothing starts any more, it ends, too.
	last := t.began.Add(2*time.Duration(t.Ends/perSecond+1)*time.Second + loadFor)
	next := t.began.Add(t.Every)
	for i := 0; time.Now().Before(last); {
		outcomes, _ := t.hops.progress()
		t.progress.showStatus("run: %s outcomes", formatNumber(float64(outcomes)))

		if outcomes >= int64(t.Ends) {
			break
		}
		if t.Kill && time.Now().After(next) {
			if err := t.killAndRestart(ctx, trialNodes[i%len(trialNodes)]); err != nil {
				return err
			}
			i, next = i+1, time.Now().Add(t.Every)
		}
		if !clock.Sleep(ctx, 200*time.Millisecond) {
			return context.Cause(ctx)
		}
	}

	err = t.callForSources(specs, "pause", func(api *client.Client, s task.Spec) error {
		_, err := api.Tasks.Pause(ctx, s.Namespace, s.Name, 0)
		return err
	})
	if err != nil {
		return err
	}

	err = awaitCondition(ctx, loadFor, "each end has started what it must, and all runs have ended", func() (bool, error) {
		_, open := t.hops.progress()
		return open == 0, nil
	})
	t.took = time.Since(t.began)

	// What is missing is a finding about the results.
	if err != nil && ctx.Err() == nil {
		t.hops.addFault("%v", err)
		return nil
	}

	return err
}

// call makes calls through the API of a node, whose address changes when it is started again.
func (t *chainTrial) call(calls func(*client.Client) error) error {
	transport := loopbackTransport(1)
	defer transport.CloseIdleConnections()

	api, err := client.New(client.Config{Server: t.agents.nodes[trialNodes[0]].url(), Token: t.token, HTTP: &http.Client{Transport: transport}})
	if err != nil {
		return err
	}

	return calls(api)
}

// callForSources makes a call for each task that runs after no other one.
func (t *chainTrial) callForSources(specs []task.Spec, what string, call func(*client.Client, task.Spec) error) error {
	return t.call(func(api *client.Client) error {
		for _, s := range specs {
			if len(s.After) > 0 {
				continue
			}
			if err := call(api, s); err != nil {
				return fmt.Errorf("%s %s: %w", what, s.Name, err)
			}
		}
		return nil
	})
}

// chainTasks returns the tasks in an order in which they can be created, and how many runs are started by others in a second. Tasks with
// a schedule are paused.
func (t *chainTrial) chainTasks() (specs []task.Spec, perSecond int) {
	head := func(name string) task.Spec {
		s := task.Defaults()
		s.Namespace, s.Name, s.Action, s.History.Keep = benchNamespace, name, noopAction, t.Keep
		s.Schedule, s.Overlap, s.Paused = task.Schedules{"@every 1s"}, task.OverlapAllow, true

		return s
	}
	after := func(name, source string) task.Spec {
		s := head(name)
		s.Schedule, s.Overlap, s.Queue.Limit, s.Paused = task.Schedules{task.ManualSchedule}, task.OverlapQueue, task.MaxTriggerQueue, false
		s.After = task.Sources{{Task: source, When: task.WhenEnded}}

		return s
	}

	if t.Fan > 0 {
		specs = append(specs, head("source"))
		for i := range t.Fan {
			specs = append(specs, after(fmt.Sprintf("dependent-%03d", i), "source"))
		}

		return specs, t.Fan
	}

	for chain := range t.Rate {
		name := func(i int) string { return fmt.Sprintf("chain-%04d-%d", chain, i) }
		specs = append(specs, head(name(0)))
		for i := 1; i < chainLength; i++ {
			specs = append(specs, after(name(i), name(i-1)))
		}
	}

	return specs, t.Rate * (chainLength - 1)
}

// killAndRestart kills a node, and starts it again.
func (t *chainTrial) killAndRestart(ctx context.Context, name string) error {
	if err := t.agents.signalAndWait(ctx, name, syscall.SIGKILL); err != nil {
		return err
	}
	return t.agents.startAgent(ctx, name)
}

// measureCommits measures single commits, such as an owner writes them for one run, until ctx ends.
func (t *chainTrial) measureCommits(ctx context.Context) error {
	s, err := sizesOf(ctx, load{tasks: 1, period: time.Second, origin: time.Now(), action: noopAction, overlap: task.OverlapQueue, keep: t.Keep})
	if err != nil {
		return err
	}

	c := &caller{
		limiter: &limiter{etcdTarget: t.etcdTarget, sizes: s}, root: fmt.Sprintf("%slimit/%s/", t.root, task.NewUID()),
		run: makeValue(s.run), entry: makeValue(s.mark),
	}

	for clock.Sleep(ctx, 50*time.Millisecond) {
		began := time.Now()
		if _, err := c.fireTextbook(ctx); err != nil {
			return errors.Join(err, ctx.Err())
		}
		t.commits = append(t.commits, time.Since(began))
	}

	return context.Cause(ctx)
}

// addChainResults adds the results, and verifies them.
func (t *chainTrial) addChainResults(ctx context.Context) error {
	outcomes, _ := t.hops.progress()
	name := "chain"
	if t.Fan > 0 {
		name = "chain/fan"
	}

	res := Result{
		Name: name, Count: outcomes, Seconds: roundTo(t.took.Seconds(), 3), RatePerS: roundTo(float64(outcomes)/t.took.Seconds(), 1),
		LatenessMS: newSpread(t.hops.samples), Skipped: t.hops.skipped,
	}
	fault := t.hops.findFaults()

	if t.Audit {
		t.progress.beginStep("audit")
		upTo, err := t.currentRevision(ctx)
		if err != nil {
			return err
		}

		audit, err := t.auditRange(ctx, t.from, upTo, false)
		if err != nil {
			return err
		}
		fault = errors.Join(fault, audit.Err())
	}

	single := Result{Name: "chain/commit", Count: int64(len(t.commits)), LatenessMS: newSpread(t.commits)}
	res.setVerified(fault)
	single.setVerified(nil)
	t.addResults(res, single)

	return nil
}

// hopObserver observes in etcd the ends of runs, and the runs that they start in other tasks.
type hopObserver struct {
	keys record.Keys

	mu         sync.Mutex
	dependents map[string][]string // by the name of the source
	ended      map[string]endedRun // by task and run
	started    map[hop]string      // the run that an end has started
	owed       int                 // what ends have not started yet
	open       map[string]bool     // runs that have not ended, by task and run
	samples    []time.Duration     // from the end of a run to the dispatch of the run that it has started
	skipped    int64
	faults     tally
}

// endedRun is a run that has ended.
type endedRun struct {
	source string
	at     time.Time
}

// hop is what an ended run owes to a dependent.
type hop struct{ run, dependent string }

func newHopObserver(keys record.Keys) *hopObserver {
	return &hopObserver{keys: keys, dependents: map[string][]string{}, ended: map[string]endedRun{}, started: map[hop]string{}, open: map[string]bool{}}
}

// addDependent notes that a task runs after another one.
func (o *hopObserver) addDependent(source, dependent string) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.dependents[source] = append(o.dependents[source], dependent)
}

// addFault adds what is wrong.
func (o *hopObserver) addFault(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.faults.addFault(format, args...)
}

// watchHops watches until ctx ends. It fails if it has missed events.
func (o *hopObserver) watchHops(ctx context.Context, client *kv.Client, log *zap.Logger) error {
	key, end := kv.Prefix(o.keys.Root())
	first := true

	return kv.Follow(ctx, client, kv.FollowConfig{Key: key, End: end, Logger: log, Name: "witness"}, func(b kv.Batch) error {
		if b.Reset && !first {
			return fmt.Errorf("the witness has missed a change at revision %d", b.Revision)
		}

		first = false
		now := time.Now()

		o.mu.Lock()
		defer o.mu.Unlock()

		for _, e := range b.Events {
			if e.Type == clientv3.EventTypePut {
				if err := o.notePut(string(e.Kv.Key), e.Kv.Value, e.Kv.CreateRevision, e.IsCreate(), now); err != nil {
					return err
				}
			}
		}

		return nil
	})
}

// notePut notes a record. mu is held.
func (o *hopObserver) notePut(key string, value []byte, create int64, isNew bool, now time.Time) error {
	if k, ok := o.keys.ParseRun(key); ok {
		a, err := record.DecodeAssigned(k, create, value)
		if err == nil && isNew {
			o.noteRun(k.Ref.Name, k.Run, &a.Run, now)
		}
		return err
	}

	k, ok := o.keys.ParseShard(key)

	switch {
	case !ok || !isNew || k.Late:
	case k.Kind == record.KindQueued:
		w, err := record.DecodeWaiting(k, value)
		if err == nil {
			o.noteRun(k.Ref.Name, k.Run, &w.Run, time.Time{})
		}
		return err
	case k.Kind == record.KindEnded:
		r, err := record.DecodeEnded(k, value)
		if err != nil {
			return err
		}

		delete(o.open, k.Ref.Name+"/"+k.Run)
		if r.State == task.Skipped || r.State == task.Missed {
			if r.Trigger == task.TriggerAfter {
				o.skipped += max(r.Count, 1)
				o.faults.addFault("triggers of %s have not run: %s", k.Ref.Name, r.Reason)
			}
			return nil
		}
		o.ended[k.Ref.Name+"/"+k.Run] = endedRun{k.Ref.Name, now}
		o.owed += len(o.dependents[k.Ref.Name])
	}

	return nil
}

// noteRun notes a run that waits or is dispatched, at a time. mu is held.
func (o *hopObserver) noteRun(name, id string, r *task.Run, dispatched time.Time) {
	full := name + "/" + id
	if _, ended := o.ended[full]; !ended {
		o.open[full] = true
	}

	for _, c := range r.Causes {
		h := hop{c.Task + "/" + c.Run, name}
		switch other := o.started[h]; {
		case other == "":
			o.owed--
		case other != id:
			o.faults.addFault("run %s has started the runs %s and %s of %s", h.run, other, id, name)
		}
		o.started[h] = id

		end, known := o.ended[h.run]
		if !known {
			o.faults.addFault("run %s of %s names run %s as its cause, which has not ended", id, name, h.run)
		}
		if !dispatched.IsZero() && r.Attempt <= 1 {
			o.samples = append(o.samples, dispatched.Sub(end.at))
		}
	}
}

// progress returns how many runs were started by others, and what is open: runs that have not ended, and ends that have not started what they
// must.
func (o *hopObserver) progress() (outcomes int64, open int) {
	o.mu.Lock()
	defer o.mu.Unlock()

	return int64(len(o.started)), len(o.open) + o.owed
}

// findFaults returns what is wrong: ends that have started nothing, and what was noted before; nil if nothing is.
func (o *hopObserver) findFaults() error {
	o.mu.Lock()
	defer o.mu.Unlock()

	for run, e := range o.ended {
		for _, dependent := range o.dependents[e.source] {
			if o.started[hop{run, dependent}] == "" {
				o.faults.addFault("run %s has ended, and has started nothing in %s", run, dependent)
			}
		}
	}

	if len(o.started) == 0 {
		o.faults.addFault("no run was started by another")
	}

	return o.faults.faultsAsError()
}
