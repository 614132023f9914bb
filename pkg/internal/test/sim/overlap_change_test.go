package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/racetest"
	"github.com/carillonhq/carillon/pkg/task"
)

// A run starts under overlap allow, and its node is cut off. The task gets another policy, before the node is cut
// off or after its run was declared lost. The task's next runs start on another node, and none may start while the
// process of the first one is alive. The policy can change at any time, so every process of a silent node must be
// dead when its run is declared lost (G8, G17).
//
// Verifies: G8, G17
func TestOverlap_PolicySetWhileTheNodeOfARunIsSilent(t *testing.T) {
	racetest.SkipIfShort(t)

	changes := map[string]map[string]any{
		"skip":       {"overlap": task.OverlapSkip},
		"queue":      {"overlap": task.OverlapQueue},
		"replace":    {"overlap": task.OverlapReplace},
		"max_active": {"max_active": 1},
	}

	for _, afterLoss := range []bool{false, true} {
		for _, name := range slices.Sorted(maps.Keys(changes)) {
			t.Run(fmt.Sprintf("%s, after the loss %t", name, afterLoss), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { changeOverlap(t, changes[name], afterLoss) })
			})
		}
	}
}

func changeOverlap(t *testing.T, change map[string]any, afterLoss bool) {
	time.Sleep(time.Until(simulationStart))
	life, end := context.WithCancel(context.WithoutCancel(t.Context()))
	defer end()

	w := &policyCluster{world: newWorld(t, life, 1, Options{Shards: 1, Slots: 10, Plain: true})}
	w.executor, w.successor, w.owner = w.addNode(), w.addNode(), w.addNode()
	w.executor.roles, w.successor.roles, w.owner.roles = []string{task.RoleExecutor}, []string{task.RoleExecutor}, []string{task.RoleScheduler}

	// The first run can only start on the node that will be cut off.
	w.owner.startDaemon()
	w.executor.startDaemon()
	c := w.ready()
	w.start = time.Now().Truncate(time.Second)
	s := task.Defaults()
	s.Name, s.Namespace, s.Overlap = "long", simNamespace, task.OverlapAllow
	s.Schedule = task.Schedules{"@at " + w.start.Add(2*time.Second).Format(time.RFC3339)}
	s.Action.Process = &task.Process{Command: []string{"sim", "5m", "0"}}
	w.must(func() error { _, err := c.Tasks.Apply(w.life, s, client.ApplyOptions{}); return err })
	w.at(4)
	w.successor.startDaemon()
	c = w.clientOf(w.successor)
	w.at(10)

	set := func() {
		t.Helper()
		w.must(func() error { _, err := w.patch(c, "long", change); return err })
	}

	cutOff := func() {
		w.executor.proc.link.setMode(cut)
		w.net.setSilent(w.executor.address, true)
	}

	lost := func() bool {
		runs, err := c.Runs.ListByTask(w.life, simNamespace, "long", client.RunListOptions{States: []task.State{task.Lost}})
		return err == nil && len(runs) > 0
	}

	if afterLoss {
		cutOff()
		if !w.waitUntil(time.Minute, lost) {
			t.Fatal("the run is not declared lost")
		}
		set()
	} else {
		set()
		cutOff()
	}

	// From now on there is a tick every second, on the other node.
	w.must(func() error {
		_, err := w.patch(c, "long", map[string]any{"schedule": "@every 1s", "action": map[string]any{"process": map[string]any{"command": []string{"sim", "100ms", "0"}}}})
		return err
	})

	successor := func() *probe {
		w.probes.mu.Lock()
		defer w.probes.mu.Unlock()

		if len(w.probes.runs) < 2 {
			return nil
		}

		return w.probes.runs[1]
	}

	if !w.waitUntil(time.Minute, func() bool { return successor() != nil }) {
		t.Fatal("the task does not go on")
	}

	w.probes.mu.Lock()
	first, next := w.probes.runs[0], w.probes.runs[1]
	if first.node != w.executor.name || next.node != w.successor.name {
		t.Errorf("run %s is on %s, and run %s on %s", first.ID, first.node, next.ID, next.node)
	}

	if first.end.IsZero() || first.end.After(next.start) {
		t.Errorf("run %s starts at %s, and the process of run %s still lives on the silent node", next.ID, clockTime(next.start), first.ID)
	}
	w.probes.mu.Unlock()

	w.executor.proc.link.setMode(modeOpen)
	w.net.setSilent(w.executor.address, false)
	w.must(func() error { _, err := c.Tasks.Pause(w.life, simNamespace, "long", 0); return err })

	if !w.waitUntil(time.Minute, w.isIdle) {
		t.Error("there are runs that do not end")
	}

	w.stopProcesses()
	end()
	w.background.Wait()
	w.etcd.Close()
	w.store.Close()

	keys, events := w.admin.Keys(), checkEvents(w.store.Events())
	if r := check.Check(keys, events, check.Options{}); !r.OK() {
		t.Error(r.String())
	}

	for _, v := range check.CheckProbeLog(strings.NewReader(w.probes.log.String()), keys, events) {
		t.Error(v)
	}
}
