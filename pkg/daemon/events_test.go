package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// A reader follows the events of a working cluster from node to node, while nodes are killed and stopped. It
// receives every event exactly once, and the events result in the state that is in etcd.
func TestEvents_FollowAClusterFromNodeToNode(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "8", "--lease-ttl", "2s")
	c.lostAfter(15 * time.Second)
	for _, n := range []string{"n1", "n2", "n3"} {
		c.start(n)
	}
	begin, err := c.client("n3").Events.ListPage(t.Context(), client.EventOptions{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.everySecond("n3", 10, func(_ int, s *task.Spec) { s.Action = task.Action{Process: &task.Process{Shell: "sleep 1.1"}} })

	var told []task.Event
	after := begin.Last
	follow := func(node string, n int, end func()) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*patience) // includes the time for the node to end
		defer cancel()
		ended := false
		o := client.EventOptions{After: after, Lost: func(error) {
			if ended {
				cancel() // the reader would wait until the node comes back
			}
		}}
		for e, err := range c.client(node).Events.Follow(ctx, o) {
			if err != nil {
				if !ended {
					t.Fatalf("at %s, after %s: %v", node, after, err)
				}
				return
			}
			told, after = append(told, e), e.ID
			if n--; n == 0 {
				ended = true
				end()
			}
			if n < 0 && node == "n3" {
				return
			}
		}
	}
	follow("n1", 30, func() { c.nodes["n1"].signal(syscall.SIGKILL) })
	follow("n2", 30, func() { c.nodes["n2"].signal(syscall.SIGTERM) })
	follow("n3", 30, func() {})

	// The same events, read afterwards: none is missing, and none occurs twice.
	var all []task.Event
	place := begin.Last
	eventually(t, func() error { // a page ends when there is no event for two seconds
		for e, err := range c.client("n3").Events.All(t.Context(), client.EventOptions{After: place}) {
			if err != nil {
				return err
			}
			all, place = append(all, e), e.ID
		}
		if len(all) < len(told) {
			return fmt.Errorf("%d events were delivered, and %d exist", len(told), len(all))
		}
		return nil
	})
	for i := range told {
		a, _ := json.Marshal(told[i])
		if b, _ := json.Marshal(all[i]); string(a) != string(b) {
			t.Fatalf("event %d was\n%s\nand is\n%s", i, a, b)
		}
	}
	c.leadsToWhatIsThere(append(begin.Items, all...))
}

// leadsToWhatIsThere replays events and compares the resulting runs, owners and nodes with the keys at the
// revision of the last event.
func (c *cluster) leadsToWhatIsThere(events []task.Event) {
	c.t.Helper()
	runs, owners, nodes, tasks := map[string]string{}, map[int]string{}, map[string]bool{}, map[string]int64{}
	for _, e := range events {
		switch {
		case e.Kind == task.EventRun:
			runs[e.Task+"/"+e.Run] = e.State
			if e.Actor == nil && e.Action != task.ActionLate {
				c.t.Errorf("an event without a cause: %+v", e)
			}
		case e.Kind == task.EventShard:
			owners[*e.Shard] = e.Node
		case e.Kind == task.EventNode && e.Action == task.ActionLeft:
			delete(nodes, e.Node)
		case e.Kind == task.EventNode:
			nodes[e.Node] = true
		case e.Kind == task.EventTask:
			tasks[e.Task] = e.Generation
		}
	}
	rev := events[len(events)-1].Revision
	res, err := c.etcd.Client().Get(c.t.Context(), c.keys.Root(), clientv3.WithPrefix(), clientv3.WithRev(rev))
	if err != nil {
		c.t.Fatal(err)
	}
	there := 0
	for _, e := range res.Kvs {
		key := string(e.Key)
		var r struct {
			State, Node string
			Generation  int64
		}
		_ = json.Unmarshal(e.Value, &r)
		run := ""
		if k, ok := c.keys.ParseShard(key); ok && k.Run != "" && !k.Late && k.Kind != "dead" {
			run = k.Ref.Name + "/" + k.Run
		}
		if k, ok := c.keys.ParseRun(key); ok {
			run = k.Ref.Name + "/" + k.Run
		}
		if run != "" {
			there++
			if runs[run] != r.State {
				c.t.Errorf("events lead to %q, and there is %s: %s", runs[run], key, e.Value)
			}
		}
		if shard, ok := c.keys.ParseOwner(key); ok && owners[shard] != r.Node {
			c.t.Errorf("shard %d is of %q by its events, and of %q", shard, owners[shard], r.Node)
		}
		if name, ok := strings.CutPrefix(key, c.keys.Nodes()); ok && !nodes[name] {
			c.t.Errorf("node %s is present, but there is no event", name)
		}
		if _, name, ok := c.keys.ParseSpec(key); ok && tasks[name] != r.Generation {
			c.t.Errorf("task %s is of generation %d by its events, and of %d", name, tasks[name], r.Generation)
		}
	}
	if there == 0 || len(owners) != 8 || len(tasks) == 0 || len(nodes) == 0 {
		c.t.Errorf("%d runs, %d owners, %d tasks, %d nodes prove nothing: %s", there, len(owners), len(tasks), len(nodes), fmt.Sprint(nodes))
	}
}
