package access_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

func limit(name string, labels ...string) task.NodeLimit {
	return task.NodeLimit{Name: name, Labels: labels}
}

// TestLimitNode_LeavesOnlyWhatTheLimitLists: the name of a node decides by which limit it is judged.
func TestLimitNode_LeavesOnlyWhatTheLimitLists(t *testing.T) {
	table := compile(t, access.Records{NodeLimits: []task.NodeLimit{
		limit("*", "zone=*"),
		limit("db-*", "zone=*", "team=db"),
		limit("db-vault", "team=vault"),
		limit("free", "*"),
		limit("bare"),
	}})

	announced := map[string]string{"zone": "a", "team": "db", "os": "linux", "arch": "amd64", "host": "h1"}
	for name, want := range map[string]string{
		"web-1":    "zone",
		"db-1":     "zone team",
		"db-vault": "",
		"db-":      "zone team",
		"free":     "zone team host",
		"bare":     "",
	} {
		n := task.Node{Name: name, Labels: maps.Clone(announced), IgnoredLabels: map[string]string{"forged": "x"}}
		n.Labels["node"] = name
		got := table.LimitNode(n)

		for key, value := range n.Labels {
			allowed := strings.Contains(" "+want+" node os arch ", " "+key+" ")
			if (got.Labels[key] == value) != allowed || (got.IgnoredLabels[key] == value) == allowed {
				t.Errorf("%s: label %s: %v, ignored %v", name, key, got.Labels, got.IgnoredLabels)
			}
		}
		if len(got.Labels)+len(got.IgnoredLabels) != len(n.Labels) || len(n.Labels) != len(announced)+1 {
			t.Errorf("%s: %v, ignored %v, of %v", name, got.Labels, got.IgnoredLabels, n.Labels)
		}
	}
}

// A node that names itself as another one in its labels would receive the runs that are meant for that node.
func TestLimitNode_TheLabelNodeIsItsName(t *testing.T) {
	for _, limits := range [][]task.NodeLimit{nil, {limit("*", "*")}} {
		n := compile(t, access.Records{NodeLimits: limits}).LimitNode(task.Node{Name: "web-1", Labels: map[string]string{"node": "db-1"}})
		if n.Labels["node"] != "web-1" || n.IgnoredLabels["node"] != "db-1" {
			t.Errorf("%v, ignored %v", n.Labels, n.IgnoredLabels)
		}
	}
}

func TestLimitNodes_KeepsTheListIfNothingIsIgnored(t *testing.T) {
	nodes := []task.Node{{Name: "a", Labels: map[string]string{"node": "a", "zone": "a"}}, {Name: "b", Labels: map[string]string{"zone": "b"}}}

	if got := compile(t, access.Records{}).LimitNodes(nodes); &got[0] != &nodes[0] {
		t.Error("the list was copied")
	}

	got := compile(t, access.Records{NodeLimits: []task.NodeLimit{limit("b")}}).LimitNodes(nodes)
	if &got[0] == &nodes[0] || nodes[1].IgnoredLabels != nil || len(nodes[1].Labels) != 1 {
		t.Error("the list that was given has changed")
	}
	if got[0].Labels["zone"] != "a" || len(got[1].Labels) != 0 || got[1].IgnoredLabels["zone"] != "b" {
		t.Errorf("%+v", got)
	}
}

// What a new limit would ignore is asked before it is written.
func TestIgnoredWith_AsksTheNodesToWhichTheLimitApplies(t *testing.T) {
	table := compile(t, access.Records{NodeLimits: []task.NodeLimit{limit("*"), limit("web-1", "zone=*")}})
	nodes := []task.Node{
		{Name: "web-1", Labels: map[string]string{"zone": "a"}},
		{Name: "web-2", Labels: map[string]string{"zone": "a"}},
		{Name: "web-3", Labels: map[string]string{"zone": "b"}},
		{Name: "db-1", Labels: map[string]string{"zone": "a"}},
	}

	got := table.IgnoredWith(limit("web-*", "zone=b"), nodes)
	if len(got) != 1 || got[0].Name != "web-2" || got[0].IgnoredLabels["zone"] != "a" {
		t.Errorf("%+v", got)
	}
	if got := table.IgnoredWith(limit("web-1"), nodes); len(got) != 1 || got[0].Name != "web-1" {
		t.Errorf("in place of the present one: %+v", got)
	}
}

// A limit that makes no sense, because it was written by hand, allows no labels.
func TestCompile_ALimitThatMakesNoSenseAllowsNothing(t *testing.T) {
	table, problems := access.Compile(access.Records{Fence: 1, NodeLimits: []task.NodeLimit{limit("web-1", "zone=*", "team")}})
	if len(problems) != 1 {
		t.Errorf("problems: %v", problems)
	}

	if n := table.LimitNode(task.Node{Name: "web-1", Labels: map[string]string{"zone": "a"}}); len(n.Labels) != 0 {
		t.Errorf("%v", n.Labels)
	}
}

func TestCheckNodeLimit(t *testing.T) {
	many := make([]string, task.MaxNodeLimitLabels+1)
	for i := range many {
		many[i] = "a=" + strings.Repeat("x", i%60+1)
	}

	for _, c := range []struct {
		limit task.NodeLimit
		field string // of the error; "": none
	}{
		{limit("web-1", "zone=a", "zone=b", "team=*", "*"), ""},
		{limit("web-*"), ""},
		{limit("*", "a/b=", "*"), ""},
		{limit("", "a=b"), "name"},
		{limit("web-*-1", "a=b"), "name"},
		{limit("Web", "a=b"), "name"},
		{limit("a", "zone"), "labels[0]"},
		{limit("a", "b=c", "zone=a*"), "labels[1]"},
		{limit("a", "b=c", "=x"), "labels[1]"},
		{limit("a", "*=x"), "labels[0]"},
		{limit("a", "b=c d"), "labels[0].b"},
		{limit("a", "b=c", "b=c"), "labels[1]"},
		{limit("a", many...), "labels"},
	} {
		err := access.CheckNodeLimit(&c.limit)
		if (err == nil) != (c.field == "") || err != nil && !strings.HasPrefix(err.Error(), c.field+": ") {
			t.Errorf("%s %v: %v, want an error of the field %q", c.limit.Name, c.limit.Labels, err, c.field)
		}
	}
}
