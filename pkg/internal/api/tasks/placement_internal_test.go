package tasks

import (
	"slices"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestPlacementWarnings_OnlyWhereRunsWouldWait(t *testing.T) {
	t.Parallel()

	node := func(name, role string, change ...func(*task.Node)) task.Node {
		n := task.Node{
			Name: name, State: task.NodeReady, Slots: 4, Roles: []string{task.RoleExecutor},
			Labels: map[string]string{"node": name, "role": role},
		}

		for _, f := range change {
			f(&n)
		}

		return n
	}

	drains := func(n *task.Node) { n.State = task.NodeDraining }
	holdsKey := func(n *task.Node) { n.SecretKeys = []string{"k1"} }

	two := []task.Node{node("n1", "db"), node("n2", "web")}

	for name, c := range map[string]struct {
		namespace *task.Namespace
		change    func(*task.Spec)
		nodes     []task.Node
		want      []string
	}{
		"any node": {
			change: func(*task.Spec) {},
		},
		"a selector that matches": {
			change: func(s *task.Spec) { s.Target.Selector = "role = db" },
			nodes:  two,
		},
		"a selector that matches nothing": {
			change: func(s *task.Spec) { s.Target.Selector = "role = nothing" },
			nodes:  two,
			want:   []string{`target.selector: no node that matches "role = nothing" accepts runs now; runs wait until one does`},
		},
		"a selector whose only node drains": {
			change: func(s *task.Spec) { s.Target.Selector = "role = db" },
			nodes:  []task.Node{node("n1", "db", drains), node("n2", "web")},
			want:   []string{`target.selector: no node that matches "role = db" accepts runs now; runs wait until one does`},
		},
		"a shadow starts nothing": {
			change: func(s *task.Spec) { s.Target.Selector, s.Shadow = "role = nothing", true },
			nodes:  two,
		},
		"an order without a node that is there": {
			change: func(s *task.Spec) { s.Target.Strategy, s.Target.Order = task.StrategyFirst, []string{"n7", "n8"} },
			nodes:  two,
			want:   []string{"target.order: no node among n7, n8 accepts runs now; runs wait until one does"},
		},
		"an order with one that is": {
			change: func(s *task.Spec) { s.Target.Strategy, s.Target.Order = task.StrategyFirst, []string{"n7", "n2"} },
			nodes:  two,
		},
		"a secret that no node can read": {
			change: func(s *task.Spec) {
				s.Action = task.Action{Process: &task.Process{Command: []string{"true"}, EnvFrom: []task.EnvFrom{{Secret: "db"}}}}
			},
			nodes: two,
			want:  []string{"action.process.env_from: no node with a key for secrets accepts runs now; runs wait until one does"},
		},
		"a secret that one can read": {
			change: func(s *task.Spec) {
				s.Action = task.Action{Process: &task.Process{Command: []string{"true"}, EnvFrom: []task.EnvFrom{{Secret: "db"}}}}
			},
			nodes: []task.Node{node("n1", "db", holdsKey)},
		},
		"more parts than nodes": {
			change: func(s *task.Spec) { s.Target.Count = 3 },
			nodes:  two,
			want:   []string{"target: runs require 3 nodes, but only 2 matching nodes accept runs now; runs wait until more do"},
		},
		"the namespace excludes all": {
			namespace: &task.Namespace{Name: "ops", Nodes: "role = ops"},
			nodes:     two,
			want:      []string{`namespace ops: no node that matches "role = ops" accepts runs now; runs wait until one does`},
		},
		"the namespace and the task exclude all": {
			namespace: &task.Namespace{Name: "ops", Nodes: "role = web"},
			change:    func(s *task.Spec) { s.Target.Selector = "role = db" },
			nodes:     two,
			want:      []string{`target.selector: no node that matches "role = web, role = db" accepts runs now; runs wait until one does`},
		},
		"the namespace leaves one": {
			namespace: &task.Namespace{Name: "ops", Nodes: "role = db"},
			nodes:     two,
		},
		"all nodes, and there are some": {
			change: func(s *task.Spec) { s.Target.Count = task.All },
			nodes:  two,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			spec := task.Defaults()
			spec.Name, spec.Action = "a", task.Action{Noop: &task.Noop{}}
			if c.change != nil {
				c.change(&spec)
			}

			if got := task.WarningTexts(placementWarnings(c.namespace, spec, c.nodes)); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}
