package views_test

import (
	"slices"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/api/views"
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

			if got := task.WarningTexts(views.PlacementWarnings(c.namespace, spec, c.nodes)); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestTargetWarnings_OnlyIfTheNodeCannotTakeTheRun(t *testing.T) {
	t.Parallel()

	node := func(name, state string) task.Node {
		return task.Node{Name: name, State: state, Slots: 4, Roles: []string{task.RoleExecutor}, Labels: map[string]string{"role": "web"}}
	}
	nodes := []task.Node{node("web-3", task.NodeReady), node("db-1", task.NodeDraining)}

	for name, c := range map[string]struct {
		node      string
		namespace *task.Namespace
		change    func(*task.Spec)
		want      []string
	}{
		"a node that is ready": {node: "web-3"},
		"a node with a similar name": {
			node: "web-33",
			want: []string{"target: no node named web-33 is present; the run waits until it joins; did you mean web-3?"},
		},
		"a node with another name": {
			node: "mail",
			want: []string{"target: no node named mail is present; the run waits until it joins"},
		},
		"a node that drains": {
			node: "db-1",
			want: []string{"target: node db-1 does not accept this run now; the run waits until it does"},
		},
		"a node outside of the namespace": {
			node: "web-3", namespace: &task.Namespace{Name: "ops", Nodes: "role = ops"},
			want: []string{"target: node web-3 does not accept this run now; the run waits until it does"},
		},
		"a node without a key for secrets": {
			node: "web-3",
			change: func(s *task.Spec) {
				s.Action = task.Action{Process: &task.Process{Command: []string{"true"}, EnvFrom: []task.EnvFrom{{Secret: "db"}}}}
			},
			want: []string{"target: node web-3 does not accept this run now; the run waits until it does"},
		},
		"a selector of the task, which does not apply": {
			node:   "web-3",
			change: func(s *task.Spec) { s.Target.Selector = "role = db" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			spec := task.Defaults()
			spec.Name, spec.Action = "a", task.Action{Noop: &task.Noop{}}
			if c.change != nil {
				c.change(&spec)
			}

			if got := task.WarningTexts(views.TargetWarnings(c.namespace, spec, c.node, nodes)); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestWriteWarnings_NoNodeSendsMail(t *testing.T) {
	node := func(name string, mails bool) task.Node {
		return task.Node{Name: name, State: task.NodeReady, Roles: []string{task.RoleExecutor}, Labels: map[string]string{"node": name}, SendsMail: mails}
	}
	spec := task.Spec{Action: task.Action{Process: &task.Process{Command: []string{"true"}}}, Output: task.Output{Mail: []string{"ops@example.com"}}}

	for _, c := range []struct {
		selector string
		nodes    []task.Node
		want     []string
	}{
		{"", []task.Node{node("n1", false), node("n2", true)}, nil},
		{"", []task.Node{node("n1", false)}, []string{task.WarnNoSendmail}},
		{"node = n1", []task.Node{node("n1", false), node("n2", true)}, []string{task.WarnNoSendmail}},
		{"node = n2", []task.Node{node("n1", false), node("n2", true)}, nil},
		{"node = n3", []task.Node{node("n1", false)}, []string{task.WarnNoNodeMatches}},
	} {
		spec.Target.Selector = c.selector
		var codes []string
		for _, w := range views.WriteWarnings(nil, spec, c.nodes) {
			codes = append(codes, w.Code)
		}
		if !slices.Equal(codes, c.want) {
			t.Errorf("%q on %d nodes: %q, want %q", c.selector, len(c.nodes), codes, c.want)
		}
	}

	spec.Output.Mail, spec.Target.Selector = nil, ""
	if list := views.WriteWarnings(nil, spec, []task.Node{node("n1", false)}); len(list) > 0 {
		t.Errorf("without mail: %v", list)
	}
}
