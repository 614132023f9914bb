package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/internal/test/mutant"
	"github.com/carillonhq/carillon/pkg/internal/test/racetest"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// story is a simulation with explicit events instead of random ones: the regression test of a failure that a seed
// has found. Unlike a seed, it does not change when the users of the simulation change.
//
// Its cluster has one scheduler and two executors, "n1" and "n2". The API is called through the scheduler.
type story struct {
	*world
	start             time.Time // when it began: second 0, 20 or 40 of a minute
	scheduler, n1, n2 *node
	api               *client.Client
	applied           []string
}

// runStory runs a story that must not break any guarantee. It returns the history.
func runStory(t *testing.T, o Options, prepare func(*story), tell func(*story)) (s *story, events []check.Event) {
	t.Helper()
	s, r := runStoryInBubble(t, o, prepare, tell)
	if !r.OK() {
		t.Errorf("%s\n%s", r.String(), r.Story)
	}

	return s, r.Events
}

// requireBroken checks that a story with a mutant breaks one of the guarantees.
func requireBroken(t *testing.T, r Report, promises ...string) {
	t.Helper()
	if !slices.ContainsFunc(r.Violations, func(v check.Violation) bool { return slices.Contains(promises, v.Promise) }) {
		t.Errorf("none of %v is broken:\n%s\n%s", promises, r.String(), r.Story)
	}
}

// runStoryInBubble starts the cluster, runs the events with tell, removes the faults, waits until all runs have ended, and
// judges the history like that of any simulation.
func runStoryInBubble(t *testing.T, o Options, prepare func(*story), tell func(*story)) (s *story, r Report) {
	t.Helper()
	racetest.SkipIfShort(t)

	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(simulationStart))
		life, end := context.WithCancel(context.WithoutCancel(t.Context()))
		defer end()

		o.Shards = 4
		if o.Slots == 0 {
			o.Slots = 8
		}

		s = &story{world: newWorld(t, life, 1, o)}
		s.background.Go(func() { s.timeRevisions(life) })
		s.scheduler, s.n1, s.n2 = s.addNode(), s.addNode(), s.addNode()
		s.scheduler.rename("scheduler", task.RoleScheduler)
		s.n1.rename("n1", task.RoleExecutor)
		s.n2.rename("n2", task.RoleExecutor)

		if prepare != nil {
			prepare(s)
		}

		for _, name := range s.names {
			s.nodes[name].startDaemon()
		}

		owned := s.waitUntil(time.Minute, func() bool {
			if s.api = s.clientOf(s.scheduler); s.api == nil {
				return false
			}
			st, err := s.api.Cluster.Status(life)
			return err == nil && st.ShardsOwned == st.Shards && st.NodesReady == len(s.names)
		})

		if !owned {
			s.abort(fmt.Errorf("the cluster does not start:\n%s", strings.Join(s.story(), "\n")))
		}

		s.start = time.Now().Add(22 * time.Second).Truncate(20 * time.Second)
		tell(s)

		until := time.Now()
		s.endFaults()
		s.sleep(settleTime)

		for _, name := range s.applied {
			if _, err := s.api.Tasks.Pause(life, simNamespace, name, 0); err != nil && !isNotFound(err) {
				t.Error(err)
			}
		}

		if !s.waitUntil(5*time.Minute, func() bool { s.resumeAll(); return s.isIdle() }) {
			t.Error("there are runs that do not end")
		}

		s.stopProcesses()
		end()
		s.background.Wait()
		s.etcd.Close()
		s.store.Close()

		r = s.buildReport(1, until)
	})

	return s, r
}

func (s *story) story() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.world.story)
}

func (n *node) rename(name string, roles ...string) {
	delete(n.nodes, n.name)
	n.names[slices.Index(n.names, n.name)] = name
	n.name, n.roles, n.nodes[name] = name, roles, n
}

// at waits until that many seconds of the story have passed.
func (s *story) at(seconds float64) {
	s.sleep(time.Until(s.tick(seconds)))
}

// tick returns the time of the story at that many seconds.
func (s *story) tick(seconds float64) time.Time {
	return s.start.Add(time.Duration(seconds * float64(time.Second)))
}

// apply creates or changes a task. Its attempts take as long as length, and prefer n1.
func (s *story) apply(name, schedule string, length time.Duration, change func(*task.Spec)) {
	s.t.Helper()
	spec := task.Defaults()
	spec.Name, spec.Namespace, spec.Schedule, spec.KillGrace = name, simNamespace, task.Schedules{schedule}, task.Duration(100*time.Millisecond)
	spec.Action.Process = &task.Process{Command: []string{"sim", length.String(), "0"}}
	spec.Target = task.Target{Count: 1, Strategy: task.StrategyFirst, Order: []string{"n1", "n2"}}

	if change != nil {
		change(&spec)
	}

	_, err := s.api.Tasks.Apply(s.life, spec, client.ApplyOptions{})
	s.must(err)

	if !slices.Contains(s.applied, name) {
		s.applied = append(s.applied, name)
	}
}

// patch changes fields of a task.
func (s *story) patch(name, fields string) {
	s.t.Helper()
	_, err := s.api.Tasks.Patch(s.life, simNamespace, name, []byte(fields), 0)
	s.must(err)
}

func (s *story) must(err error) {
	s.t.Helper()
	if err != nil {
		s.abort(fmt.Errorf("%s into the story: %w", time.Since(s.start), err))
	}
}

// cutOff cuts the connections of a node to etcd and to the other nodes.
func (s *story) cutOff(n *node) {
	s.logLine("> story: %s is cut off", n.name)
	n.proc.link.setMode(cut)
	s.net.setSilent(n.address, true)
}

// only returns the one run of a task that has not ended.
func (s *story) only(name string) task.Run {
	s.t.Helper()
	runs, err := s.api.Runs.ListByTask(s.life, simNamespace, name, client.RunListOptions{States: []task.State{task.Queued, task.Dispatched, task.Running, task.Paused}})
	s.must(err)

	if len(runs) != 1 {
		s.abort(fmt.Errorf("%s into the story task %s has %d runs under way, want 1: %+v", time.Since(s.start), name, len(runs), runs))
	}

	return runs[0]
}

// outcomes returns the outcomes of a task's ticks, by seconds of the story. A record of several ticks counts for
// its first and its last one.
func (s *story) outcomes(events []check.Event, name string) map[float64]string {
	all := map[float64]string{}
	for _, e := range events {
		k, ok := s.admin.Keys().ParseShard(e.Key)
		if !ok || e.Deleted || k.Kind != record.KindEnded || k.Late || k.Ref.Name != name {
			continue
		}

		r, err := record.DecodeEnded(k, e.Value)
		if err != nil {
			s.t.Error(err)
		}

		if r.Trigger == task.TriggerManual {
			continue
		}

		all[r.ScheduledTime.Sub(s.start).Seconds()] = endOf(r)
		if !r.Last.IsZero() {
			all[r.Last.Sub(s.start).Seconds()] = endOf(r)
		}
	}

	return all
}

// A hand-back reaches etcd and its answer is lost, the node's watch of its inbox stalls, and a user resumes the
// node. The attempt that it has handed back must not start there next to the one that its owner has dispatched
// since.
//
// Verifies: G9
func TestStory_HandBackOfUnknownOutcomeThenResume(t *testing.T) {
	t.Parallel()
	var lose, lost atomic.Bool
	o := Options{Slots: 1, WrapClient: func(node string, c *clientv3.Client) {
		if node != "n1" {
			return
		}

		c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
			r, err := next(ctx, op)
			if lose.Load() && err == nil && isHandBack(op) {
				lost.Store(true)
				return clientv3.OpResponse{}, errLost
			}

			return r, err
		})
	}}

	runStory(t, o, nil, func(s *story) {
		s.apply("first", "@manual", 3*time.Second, nil)
		s.apply("second", "@manual", 5*time.Second, nil)
		s.at(0)
		_, err := s.api.Tasks.Trigger(s.life, simNamespace, "first", nil)
		s.must(err)
		s.at(0.5)
		s.patch("second", `{"target": {"strategy": "first", "order": ["n1"]}}`) // otherwise it would go to n2, which has a free slot
		_, err = s.api.Tasks.Trigger(s.life, simNamespace, "second", nil)
		s.must(err)
		s.at(1.5)

		if r := s.only("second"); r.Node != "n1" || r.State != task.Dispatched {
			s.abort(fmt.Errorf("the second run should wait for the slot of n1: %+v", r))
		}

		s.patch("second", `{"target": {"strategy": "first", "order": ["n2", "n1"]}}`)

		s.logLine("> story: n1 hears nothing of its inbox, and the answer to its hand-back will be lost")
		s.n1.proc.link.setStalled(true)
		lose.Store(true)
		n1 := s.clientOf(s.n1) // the node itself is called, so that it resumes at once
		_, err = n1.Nodes.Drain(s.life, "n1")
		s.must(err)

		if !s.waitUntil(2*time.Second, lost.Load) {
			s.abort(errors.New("nothing was handed back"))
		}

		lose.Store(false)
		_, err = n1.Nodes.Resume(s.life, "n1")
		s.must(err)
		s.at(6)
		s.logLine("> story: n1 hears of its inbox again")
		s.n1.proc.link.setStalled(false)
		s.at(20)
	})

	if !lost.Load() {
		t.Error("the answer to the hand-back was not lost")
	}
}

// isHandBack reports whether an operation contains the hand-back of an attempt.
func isHandBack(op clientv3.Op) bool {
	_, then, _ := op.Txn()
	return op.IsPut() && strings.Contains(string(op.KeyBytes()), "/queue/") && strings.Contains(string(op.ValueBytes()), `"reason":"handed_back"`) ||
		slices.ContainsFunc(then, isHandBack)
}

// The run that ends last belongs to the oldest tick, and only one record is kept. The ttl and the period after
// completion must count from that end, although its record is the first to be trimmed by its key.
//
// Verifies: G25
func TestStory_LastEndIsTrimmedFirst(t *testing.T) {
	t.Parallel()
	s, events := runStory(t, Options{}, nil, func(s *story) {
		few := func(spec *task.Spec) { spec.History.Keep, spec.Overlap = 1, task.OverlapAllow }
		s.apply("expires", "*/2 * * * * *", time.Second, func(spec *task.Spec) {
			few(spec)
			spec.Start, spec.End, spec.TTL = task.At(s.tick(2)), task.At(s.tick(6)), task.Duration(6*time.Second)
		})

		s.apply("follows", "@every 4s after completion", time.Second, func(spec *task.Spec) {
			few(spec)
			spec.Start, spec.End = task.At(s.tick(2)), task.At(s.tick(30))
		})

		s.at(0.5)
		_, err := s.api.Tasks.Trigger(s.life, simNamespace, "follows", nil)
		s.must(err)
		s.at(1)
		byHand := s.only("follows")
		_, err = s.api.Runs.Pause(s.life, simNamespace, "follows", byHand.ID)
		s.must(err)
		s.at(2.5)
		oldest := s.only("expires")
		_, err = s.api.Runs.Pause(s.life, simNamespace, "expires", oldest.ID)
		s.must(err)
		s.at(10)

		for name, id := range map[string]string{"expires": oldest.ID, "follows": byHand.ID} {
			_, err = s.api.Runs.Resume(s.life, simNamespace, name, id)
			s.must(err)
		}

		s.at(15)

		if _, err := s.api.Tasks.Get(s.life, simNamespace, "expires"); err != nil {
			t.Errorf("5 s after its last end, with a ttl of 6 s: %v", err)
		}

		s.at(30)
	})

	if got := s.outcomes(events, "follows"); got[2] != outcomeRan || len(got) < 3 {
		t.Errorf("the ticks after completion came to %v", got)
	}
}

// A task is deleted while its run is active, and created again under the same name. The run of the former task is
// not its own, and must not keep any of its ticks from running.
func TestStory_TaskCreatedAgainWhileTheFormerOneRuns(t *testing.T) {
	t.Parallel()
	s, events := runStory(t, Options{}, nil, func(s *story) {
		for name, schedule := range map[string]string{"ticks": "* * * * * *", "follows": "@every 2s after completion"} {
			stubborn := func(spec *task.Spec) { spec.KillGrace = task.Duration(8 * time.Second) }
			s.apply(name, schedule, time.Minute, stubborn)
		}

		s.at(1.5)

		for name, schedule := range map[string]string{"ticks": "* * * * * *", "follows": "@every 2s after completion"} {
			s.only(name)
			s.must(s.api.Tasks.Delete(s.life, simNamespace, name, 0))
			s.apply(name, schedule, 10*time.Millisecond, func(spec *task.Spec) { spec.End = task.At(s.tick(12)) })
		}

		s.at(14)
	})

	ticks := s.outcomes(events, "ticks")

	for tick := 2.0; tick <= 12; tick++ {
		if ticks[tick] != outcomeRan {
			t.Errorf("the tick at %gs came to %q", tick, ticks[tick])
		}
	}

	succeeded := 0
	for _, what := range s.outcomes(events, "follows") {
		if what == outcomeRan {
			succeeded++
		}
	}

	if succeeded < 4 {
		t.Errorf("of a task of every 2 s after completion %d runs succeeded in 10 s", succeeded)
	}
}

// A run starts while its task allows overlap, or several runs at once. Then the task forbids that, and the node of
// the run is cut off. When the owner declares the run lost, the next one must not start next to it.
//
// Verifies: G8
func TestStory_OverlapForbiddenWhileANodeIsSilent(t *testing.T) {
	t.Parallel()

	for _, to := range []string{
		`{"overlap": "skip"}`, `{"overlap": "queue"}`, `{"overlap": "replace"}`, `{"max_active": 1}`,
	} {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			s, events := runStory(t, Options{}, nil, func(s *story) {
				s.apply("a", "*/20 * * * * *", 50*time.Second, func(spec *task.Spec) {
					spec.Overlap = task.OverlapAllow
					spec.Start, spec.End = task.At(s.tick(1)), task.At(s.tick(41))
				})

				s.at(21)

				if r := s.only("a"); r.Node != "n1" {
					s.abort(fmt.Errorf("the run should be on n1: %+v", r))
				}

				s.patch("a", to)
				s.at(23)
				s.cutOff(s.n1)
				s.at(75)
			})

			if got := s.outcomes(events, "a"); got[20] == "" || got[40] == "" {
				t.Errorf("the ticks came to %v", got)
			}
		})
	}
}

// The cluster's lost_after is changed while a node is cut off. The owner must wait for the lost_after in the
// attempt's record, which the node uses, because the node cannot receive the change.
//
// Verifies: G17
func TestStory_LostAfterIsChangedDuringAPartition(t *testing.T) {
	t.Parallel()
	change := func(from, to time.Duration) func(s *story) {
		return func(s *story) {
			set := func(d time.Duration) {
				_, err := s.api.Cluster.UpdateSettings(s.life, client.ClusterSettings{LostAfter: new(task.Duration(d))})
				s.must(err)
			}

			set(from)
			s.apply("a", "*/20 * * * * *", 95*time.Second, func(spec *task.Spec) {
				spec.Overlap = task.OverlapSkip
				spec.Start, spec.End = task.At(s.tick(1)), task.At(s.tick(81))
			})

			s.at(22)

			if r := s.only("a"); r.Node != "n1" {
				s.abort(fmt.Errorf("the run should be on n1: %+v", r))
			}

			s.cutOff(s.n1)
			s.at(24)
			set(to)
			s.at(85)
		}
	}

	// n1 is declared lost at about 25 s.
	for _, c := range []struct {
		name     string
		from, to time.Duration
		want     map[float64]string // outcomes of ticks
	}{
		{"shortened", 40 * time.Second, 12 * time.Second, map[float64]string{20: lostRun, 40: outcomeSkipped, 60: outcomeSkipped, 80: outcomeRan}},
		{"lengthened", 12 * time.Second, 10 * time.Minute, map[float64]string{20: lostRun, 40: outcomeRan, 60: outcomeSkipped, 80: outcomeSkipped}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, events := runStory(t, Options{}, nil, change(c.from, c.to))
			got := s.outcomes(events, "a")

			for tick, want := range c.want {
				if got[tick] != want {
					t.Errorf("the tick at %gs came to %q, want %q", tick, got[tick], want)
				}
			}
		})
	}

	t.Run("an owner that goes by the present setting", func(t *testing.T) {
		t.Parallel()
		if is, _ := mutant.InProcess(t, "present-lost-after"); is {
			_, r := runStoryInBubble(t, Options{}, nil, change(40*time.Second, 12*time.Second))
			requireBroken(t, r, "G8", "G17")
		}
	})
}

// lostRun is the end of a run whose node was declared lost.
const lostRun = "lost (node_lost)"

// Tasks are resumed, and get other schedules, while their owner's watch is late. The owner continues to commit for
// other tasks of the shard, beyond ticks that the edits have added. None of these ticks may be passed by the
// watermark.
//
// Verifies: G4
func TestStory_ResumeAndEditsUnseenByTheOwner(t *testing.T) {
	t.Parallel()
	names := func(s *story) (names []string) { // in one shard
		for i := 0; len(names) < 3; i++ {
			if name := fmt.Sprint("quiet-", i); s.taskRef(name).Shard == s.taskRef("busy").Shard {
				names = append(names, name)
			}
		}

		return names
	}

	tell := func(s *story) {
		n := names(s)
		resumed, edited, twice := n[0], n[1], n[2]
		s.apply("busy", "* * * * * *", 10*time.Millisecond, nil)
		s.apply(resumed, "*/10 * * * * *", 10*time.Millisecond, nil)
		s.apply(edited, "@every 1h", 10*time.Millisecond, nil)
		s.apply(twice, "@every 1h", 10*time.Millisecond, nil)
		_, err := s.api.Tasks.Pause(s.life, simNamespace, resumed, 0)
		s.must(err)
		s.at(8.2)
		s.logLine("> story: the scheduler receives no edit")
		s.scheduler.proc.link.setStalled(true)
		s.at(9.2)
		_, err = s.api.Tasks.Resume(s.life, simNamespace, resumed, 0)
		s.must(err)
		s.patch(edited, `{"schedule": "*/10 * * * * *"}`)
		s.patch(twice, `{"schedule": "*/5 * * * * *"}`)
		s.at(9.4)
		s.patch(twice, `{"schedule": "*/10 * * * * *", "timezone": "Europe/Berlin"}`)
		s.at(12.5)
		s.logLine("> story: the boss hears of the edits")
		s.scheduler.proc.link.setStalled(false)
		s.at(21)
	}

	t.Run("as it is", func(t *testing.T) {
		t.Parallel()
		s, events := runStory(t, Options{}, nil, tell)
		for _, name := range names(s) {
			if got := s.outcomes(events, name); got[10] != outcomeRan || got[20] != outcomeRan {
				t.Errorf("%s: the tick right after the edit came to %q, the next one to %q", name, got[10], got[20])
			}
		}
	})

	t.Run("an owner that does not compare what edits have touched", func(t *testing.T) {
		t.Parallel()
		if is, _ := mutant.InProcess(t, "no-revised-compare"); is {
			_, r := runStoryInBubble(t, Options{}, nil, tell)
			requireBroken(t, r, "G4")
		}
	})
}
