package alert

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestSilences_FindTheOneThatLastsLongest(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC)
	in := func(d time.Duration) task.Time { return task.At(now.Add(d)) }

	silences := CompileSilences([]task.AlertSilence{
		{ID: "short", Namespace: "shop", Glob: "sync-*", Until: in(time.Hour), NamespaceRev: 7},
		{ID: "long", Namespace: "shop", Selector: "team=data, !canary", Until: in(2 * time.Hour), NamespaceRev: 7},
		{ID: "ended", Namespace: "shop", Glob: "*", Until: in(0), NamespaceRev: 7},
		{ID: "void", Namespace: "shop", Glob: "*", Until: in(time.Hour), NamespaceRev: 6},
		{ID: "all", Namespace: "web", Glob: "*", Until: in(time.Hour), NamespaceRev: 8},
		{ID: "empty", Namespace: "ops", Until: in(time.Hour), NamespaceRev: 9},
		{ID: "broken", Namespace: "ops", Selector: "team ~ x", Until: in(time.Hour), NamespaceRev: 9},
		{ID: "brackets", Namespace: "ops", Glob: "[", Until: in(time.Hour), NamespaceRev: 9},
	}, map[string]int64{"shop": 7, "web": 8, "ops": 9})

	data := map[string]string{"team": "data"}
	for name, c := range map[string]struct {
		alert task.Alert
		want  string
	}{
		"by name":                   {task.Alert{Namespace: "shop", Task: "sync-1", Kind: task.AlertFailures}, "short"},
		"by labels, longer":         {task.Alert{Namespace: "shop", Task: "sync-1", Kind: task.AlertFailures, Labels: data}, "long"},
		"other labels":              {task.Alert{Namespace: "shop", Task: "x", Kind: task.AlertFailures, Labels: map[string]string{"team": "data", "canary": ""}}, ""},
		"neither":                   {task.Alert{Namespace: "shop", Task: "x", Kind: task.AlertFailures}, ""},
		"another namespace":         {task.Alert{Namespace: "other", Task: "sync-1", Kind: task.AlertFailures, Labels: data}, ""},
		"counted, of some tasks":    {task.Alert{Namespace: "shop", Kind: task.AlertMore, Receiver: "ops/slack"}, ""},
		"counted, of a namespace":   {task.Alert{Namespace: "web", Kind: task.AlertMore, Receiver: "ops/slack"}, "all"},
		"silences that say nothing": {task.Alert{Namespace: "ops", Task: "[", Kind: task.AlertFailures, Labels: data}, ""},
		"about the cluster":         {task.Alert{Kind: task.AlertCluster, Code: "not_evaluated"}, ""},
	} {
		got := ""
		if s := silences.Find(&c.alert, now); s != nil {
			got = s.ID
		}
		if got != c.want {
			t.Errorf("%s: silenced by %q, want %q", name, got, c.want)
		}
	}

	var none Silences
	if none.Find(&task.Alert{Namespace: "shop", Task: "sync-1"}, now) != nil {
		t.Error("the zero value has a silence")
	}
	if CompileSilences([]task.AlertSilence{{Namespace: "a", Glob: "*", Until: in(time.Hour)}}, nil).Find(&task.Alert{Namespace: "a", Task: "x"}, now) == nil {
		t.Error("without known namespaces, no silence was found")
	}
}
