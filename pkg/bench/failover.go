package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
)

// checkFailoverRate rejects a rate at which a task would have two ticks in a second.
func checkFailoverRate(s *settings) error {
	if s.Rate > s.Tasks {
		return task.Invalid(task.CodeBadValue, "--rate", "%d is more than the %d --tasks, each of which ticks at most once a second", s.Rate, s.Tasks)
	}
	return nil
}

// measureFailover measures how long tasks do not run when nodes join, drain, restart and die. The nodes are daemons
// in separate processes. An observer watches in etcd when each run is decided.
func (b *bench) measureFailover(ctx context.Context) (err error) {
	return b.runTrial(ctx, []string{benchNamespace}, func(ctx context.Context, t *trial) error {
		if err := t.changeNodes(ctx); err != nil || !b.Audit {
			return err
		}

		return t.judgeHistory(ctx)
	})
}

// runTrial creates a cluster with namespaces and calls run, while an observer watches in etcd when each run is decided.
// Afterwards, it stops the agents that run has started.
func (b *bench) runTrial(ctx context.Context, namespaces []string, run func(context.Context, *trial) error) error {
	c, err := b.createCluster(ctx, namespaces...)
	if err != nil {
		return err
	}

	t := &trial{cluster: c, agents: newAgents(b.etcdTarget, b.Lease), witness: newDispatchObserver(b.keys, time.Second)}

	g, watching := errgroup.WithContext(ctx)
	watching, stop := context.WithCancel(watching)
	g.Go(func() error { return t.witness.watchDispatches(watching, b.client, b.log) })

	// If the observer fails, watching ends, and with it the trial.
	err = errors.Join(run(watching, t), t.agents.stopAll(ctx))
	stop()

	// The observer ends with context.Canceled after stop.
	if watched := g.Wait(); !errors.Is(watched, context.Canceled) {
		err = errors.Join(err, watched)
	}

	return err
}

// trial is one benchmark with agents in progress.
type trial struct {
	*cluster
	agents  *agents
	witness *dispatchObserver
}

// trialNodes are the names of the nodes.
var trialNodes = []string{"n1", "n2", "n3"}

// changeNodes makes the changes one after another. Changes without a name restore three nodes and are not measured.
func (t *trial) changeNodes(ctx context.Context) error {
	if err := t.createPopulation(ctx); err != nil {
		return err
	}

	t.progress.beginStep("start two nodes")

	for _, n := range trialNodes[:2] {
		if err := t.agents.startAgent(ctx, n); err != nil {
			return err
		}
	}

	if err := t.awaitSettled(ctx, trialNodes[:2]...); err != nil {
		return err
	}

	for _, part := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"steady", func(context.Context) error { return nil }},
		{"join", func(ctx context.Context) error { return t.agents.startAgent(ctx, "n3") }},
		{"drain", func(ctx context.Context) error { return t.agents.signalAndWait(ctx, "n3", syscall.SIGTERM) }},
		{"", func(ctx context.Context) error { return t.agents.startAgent(ctx, "n3") }},
		{"rolling_restart", t.restartAll},
		{"kill", func(ctx context.Context) error { return t.killNode(ctx, false) }},
		{"", t.startMissing},
		{"kill_leader", func(ctx context.Context) error { return t.killNode(ctx, true) }},
	} {
		if err := t.measureChange(ctx, part.name, part.do); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}

	return nil
}

// createPopulation creates the tasks.
func (t *trial) createPopulation(ctx context.Context) error {
	p, err := newPopulation(t.Tasks, t.Rate, t.Keep, time.Now().Truncate(time.Second))
	if err != nil {
		return err
	}

	return t.createTasks(ctx, t.Tasks, p.makeTask)
}

// measureChange makes a change, and measures until the cluster has settled. A change without a name is not
// measured.
func (t *trial) measureChange(ctx context.Context, name string, do func(context.Context) error) error {
	t.progress.beginStep("%s", name)

	// The span covers the change and the time until the cluster has settled.
	began := time.Now()
	t.witness.beginSpan()

	if err := do(ctx); err != nil {
		return err
	}

	var present []string
	for _, n := range trialNodes {
		if t.agents.nodes[n] != nil {
			present = append(present, n)
		}
	}

	if err := t.awaitSettled(ctx, present...); err != nil {
		return err
	}

	// Changes without a name only restore the cluster.
	if name == "" {
		return nil
	}

	seen := t.witness.endSpan()
	res := Result{Name: "failover/" + name, Count: seen.fired, Seconds: roundTo(time.Since(began).Seconds(), 3), Tasks: int64(t.Tasks),
		LatenessMS: newSpread(seen.late), GapMS: new(roundTo(float64(seen.gap)/float64(time.Millisecond), 1)), Missed: seen.missing}
	var fault error
	if seen.twice > 0 {
		fault = fmt.Errorf("%d ticks were decided twice", seen.twice)
	}

	res.setVerified(fault)
	t.addResults(res)

	return nil
}

// awaitSettled waits until the nodes own their shares, no handover is pending, and every task that has ticks has
// run. Then it waits for the measured duration.
func (t *trial) awaitSettled(ctx context.Context, nodes ...string) error {
	if err := t.awaitBalanced(ctx, nodes...); err != nil {
		return err
	}

	// The shards have their owners. Now each of the tasks that fire every second must have run again.
	after := time.Now()
	err := awaitCondition(ctx, loadFor, "every task has run again", func() (bool, error) { return t.witness.allDispatched(t.Rate, after), nil })
	if err != nil {
		return err
	}

	if !clock.Sleep(ctx, t.Duration) {
		return context.Cause(ctx)
	}

	return nil
}

// restartAll restarts the nodes one after another.
func (t *trial) restartAll(ctx context.Context) error {
	for _, n := range trialNodes {
		if err := t.agents.signalAndWait(ctx, n, syscall.SIGTERM); err != nil {
			return err
		}
		if err := t.agents.startAgent(ctx, n); err != nil {
			return err
		}
		if err := t.awaitSettled(ctx, trialNodes...); err != nil {
			return err
		}
	}

	return nil
}

// killNode kills a node: the leader, or another one.
func (t *trial) killNode(ctx context.Context, leader bool) error {
	victim, err := t.leaderName(ctx)
	if err != nil {
		return err
	}

	if !leader {
		victim = trialNodes[slices.IndexFunc(trialNodes, func(n string) bool { return n != victim })]
	}

	return t.agents.signalAndWait(ctx, victim, syscall.SIGKILL)
}

// leaderName returns the node that leads. It waits for one, because on a busy machine the last one may just have
// lost its lease.
func (t *trial) leaderName(ctx context.Context) (name string, err error) {
	err = awaitCondition(ctx, settleFor, "the cluster has a leader", func() (bool, error) {
		res, err := t.client.Get(ctx, t.keys.Leader(), append(clientv3.WithFirstCreate(), clientv3.WithPrefix())...)
		if err != nil || len(res.Kvs) == 0 {
			return false, err
		}

		name = string(res.Kvs[0].Value)

		return t.agents.nodes[name] != nil, nil
	})

	return name, err
}

// startMissing starts the nodes that do not run.
func (t *trial) startMissing(ctx context.Context) error {
	for _, n := range trialNodes {
		if t.agents.nodes[n] == nil {
			if err := t.agents.startAgent(ctx, n); err != nil {
				return err
			}
		}
	}

	return nil
}

// judgeHistory passes all revisions to package check, while the nodes continue.
func (t *trial) judgeHistory(ctx context.Context) error {
	t.progress.beginStep("audit")
	upTo, err := t.currentRevision(ctx)
	if err != nil {
		return err
	}

	audit, err := t.auditRange(ctx, t.from, upTo, false)
	if err == nil {
		t.report.Results[len(t.report.Results)-1].setVerified(audit.Err())
	}

	return err
}
