package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// idleFor is how long the CPU usage of an idle node is measured at most. It contains two visits of all expectations.
const idleFor = 30 * time.Second

// measureScale measures a node with many tasks and one with few: its memory, how long it loads, its CPU usage while
// nothing is due, and the cost of a fire. The node runs in a separate process. The load and an embedded etcd are in this
// process.
func (b *bench) measureScale(ctx context.Context) error {
	b.Base = min(b.Base, b.Tasks)

	few, err := b.measureOneScale(ctx, "scale/base", b.Base)
	if err != nil {
		return err
	}

	many, err := b.measureOneScale(ctx, "scale", b.Tasks)
	b.MemProfile = "" // the node has written it
	if err != nil {
		return err
	}

	if few.CPUMicros > 0 {
		many.CostRatio = roundTo(many.CPUMicros/few.CPUMicros, 3)
	}

	b.addResults(many, few)

	return nil
}

// measureOneScale measures one node with n tasks, in its own cluster.
func (b *bench) measureOneScale(ctx context.Context, name string, n int) (Result, error) {
	// A prefix of its own keeps this cluster apart from the one with the other number of tasks.
	part, own := *b.etcdTarget, *b
	own.etcdTarget, own.Tasks = &part, n

	var err error
	if part.keys, err = record.NewKeys(fmt.Sprintf("%s%d-%s", b.root, n, task.NewUID())); err != nil {
		return Result{}, err
	}

	s := &scaleTrial{res: Result{Name: name, Tasks: int64(n)}, node: strings.ReplaceAll(name, "/", "-")}
	err = own.runTrial(ctx, []string{benchNamespace}, func(ctx context.Context, t *trial) error {
		s.trial = t
		t.agents.flags = append(t.agents.flags, "--role", task.RoleScheduler+","+task.RoleAPI)

		holder, leave, err := t.registerHolder(ctx, task.NodeReady)
		if err == nil {
			t.inbox = holder.Name
			err = errors.Join(s.runPhases(ctx), leave())
		}

		return err
	})

	return s.res, err
}

// scaleTrial is one measurement in progress. The runs stay in the inbox of a node without a process.
type scaleTrial struct {
	*trial
	node  string
	token string
	res   Result
}

// runPhases runs the phases one after another.
func (s *scaleTrial) runPhases(ctx context.Context) error {
	tokens, err := s.createTokens(ctx, 1)
	if err != nil {
		return err
	}

	s.token = tokens[0]

	// The same node without tasks is the baseline for memory.
	if err := s.startLoaded(ctx); err != nil {
		return err
	}

	empty, err := s.measureMemory(ctx)
	if err = errors.Join(err, s.agents.signalAndWait(ctx, s.node, syscall.SIGTERM)); err != nil {
		return err
	}

	p, err := newPopulation(s.Tasks, 0, s.Keep, time.Now().Truncate(time.Second))
	if err != nil {
		return err
	}

	p.apps, p.alerts = s.LabelValues, s.Alerts
	if err := s.createTasks(ctx, s.Tasks, p.makeTask); err != nil {
		return err
	}

	// Reading back begins here, after the tasks were created.
	if s.from, err = s.currentRevision(ctx); err != nil {
		return err
	}

	if err := s.startLoaded(ctx); err != nil {
		return err
	}
	if err := s.measureCollecting(ctx); err != nil {
		return err
	}
	if err := s.awaitJudged(ctx); err != nil {
		return err
	}
	if err := s.measureIdle(ctx); err != nil {
		return err
	}

	full, err := s.measureMemory(ctx)
	if err != nil {
		return err
	}

	// Memory per task is the difference to the node without tasks.
	per := func(with, without int64) *float64 { return new(roundTo(float64(with-without)/float64(s.Tasks), 1)) }
	s.res.MemoryPer, s.res.MemoryAsIs, s.res.HeapPer = per(full.resident, empty.resident), per(full.asIs, empty.asIs), per(full.heap, empty.heap)

	return s.fireSteadily(ctx)
}

// startLoaded starts the node and waits until it has loaded all shards.
func (s *scaleTrial) startLoaded(ctx context.Context) error {
	s.progress.beginStep("%s: load %d shards", s.res.Name, s.shards)
	began := time.Now()

	if err := s.agents.startAgent(ctx, s.node); err != nil {
		return err
	}

	lists := newListClient(s.agents.nodes[s.node].url())
	n := 0
	err := awaitCondition(ctx, loadFor, "every shard is loaded", func() (bool, error) {
		n++
		a, err := lists.requestPage(ctx, s.token, stateQuestion(n))

		return a.Count != nil && len(a.Missing) == 0, err
	})
	s.res.LoadMS = roundTo(time.Since(began).Seconds()*1000, 1)

	return err
}

// measureCollecting measures how long the node reads in the background how the runs of all tasks had ended.
func (s *scaleTrial) measureCollecting(ctx context.Context) error {
	n := s.agents.nodes[s.node]
	began := time.Now()
	cpu, err := n.cpuTimeOf(func() error { return s.awaitComplete(ctx, newListClient(n.url()), s.token) })
	s.res.CollectMS, s.res.CollectCPU = roundTo(time.Since(began).Seconds()*1000, 1), roundTo(cpu.Seconds()*1e6/float64(s.Tasks), 2)

	return err
}

// judgedPerSecond is less than the number of tasks whose alerts a node judges in a second.
const judgedPerSecond = 900

// awaitJudged waits until the node has judged the alerts of each task once. It must read the records of all of them, because none
// has succeeded yet.
func (s *scaleTrial) awaitJudged(ctx context.Context) error {
	if !s.Alerts {
		return nil
	}

	s.progress.beginStep("%s: judge the alerts of all tasks", s.res.Name)

	return sleepFor(ctx, 10*time.Second+time.Duration(s.Tasks)*time.Second/judgedPerSecond)
}

// measureIdle measures the CPU usage while nothing is due.
func (s *scaleTrial) measureIdle(ctx context.Context) error {
	s.progress.beginStep("%s: nothing is due", s.res.Name)
	began := time.Now()
	cpu, err := s.agents.nodes[s.node].cpuTimeOf(func() error { return sleepFor(ctx, min(idleFor, s.Duration)) })
	s.res.IdleCPU = new(roundTo(cpu.Seconds()/time.Since(began).Seconds(), 5))

	return err
}

// nodeMemory is what a node uses, in bytes: resident before and after a garbage collection that returns free memory, and of
// that the heap.
type nodeMemory struct{ asIs, resident, heap int64 }

// measureMemory measures the memory of the node.
func (s *scaleTrial) measureMemory(ctx context.Context) (m nodeMemory, err error) {
	n := s.agents.nodes[s.node]
	if err := sleepFor(ctx, time.Second); err != nil { // it has just begun to be idle
		return m, err
	}

	m.asIs = n.residentMemory()
	if err := n.collectGarbage(s.MemProfile); err != nil {
		return m, err
	}

	m.resident = n.residentMemory()
	all, err := readMetrics(ctx, n.url(), s.token)
	m.heap = int64(all["go_memstats_heap_alloc_bytes"])

	return m, err
}

// fireSteadily creates further tasks that tick each second for some time, and measures and verifies what they cost.
func (s *scaleTrial) fireSteadily(ctx context.Context) error {
	s.progress.beginStep("%s: fire", s.res.Name)
	n := s.agents.nodes[s.node]

	// All of them are created before the first tick, and have the same number of ticks.
	l := load{period: time.Second}
	warmup, measured := l.periodsIn(s.Warmup), l.periodsIn(s.Duration)
	origin := time.Now().Truncate(time.Second)
	begin := origin.Add(time.Duration(warmup+2) * time.Second)
	end := begin.Add(time.Duration(measured) * time.Second)

	p := population{tasks: s.Rate, firing: s.Rate, origin: origin, fireAt: origin.Add(2 * time.Second), end: end.Add(-time.Millisecond), keep: s.Keep}
	if err := s.createTasks(ctx, s.Rate, p.makeTask); err != nil {
		return err
	}
	if err := sleepFor(ctx, time.Until(begin)); err != nil {
		return err
	}

	s.witness.beginSpan()

	cpu, err := n.cpuTimeOf(func() error { return sleepFor(ctx, time.Until(end)) })
	if err != nil {
		return err
	}

	s.res.Count, s.res.Seconds = s.witness.endSpan().fired, float64(measured)
	s.res.RatePerS = roundTo(float64(s.res.Count)/s.res.Seconds, 1)
	s.res.CPUMicros = roundTo(cpu.Seconds()*1e6/float64(max(s.res.Count, 1)), 2)

	// No further ticks follow.
	var said metrics
	err = awaitCondition(ctx, settleFor, "every tick is decided", func() (bool, error) {
		said, err = readMetrics(ctx, n.url(), s.token)
		if errors.Is(err, errUnavailable) {
			return false, nil // a busy machine can be late with the answers of etcd
		}

		return said.ticks("") >= int64(s.Rate*(warmup+measured)), err
	})
	if err = errors.Join(err, s.agents.signalAndWait(ctx, s.node, syscall.SIGTERM)); err != nil {
		return err
	}

	s.res.Reopened = int64(said["carillon_shard_opens_total"]) - int64(s.shards)

	return s.verify(ctx, said)
}

// verify verifies the number of tasks, and then what happened.
func (s *scaleTrial) verify(ctx context.Context, said metrics) error {
	found, err := s.countTasks(ctx)
	if err != nil {
		return err
	}

	if want := int64(s.Tasks + s.Rate); found != [2]int64{want, want} {
		s.res.setVerified(fmt.Errorf("%d tasks were created, etcd has %d specs and %d entries", want, found[0], found[1]))
		return nil
	}

	return s.verifyResult(ctx, said, 0, time.Second, &s.res)
}

// sleepFor waits for a time. It returns why ctx ended, if it does.
func sleepFor(ctx context.Context, d time.Duration) error {
	if !clock.Sleep(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}
