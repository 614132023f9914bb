package run

import (
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestRunGet_OfPartsSpeaksOfTheRunAsAWhole(t *testing.T) {
	r := task.Run{ID: "20261120T220000.000Z-k3f9", Namespace: "default", Task: "index", State: task.Running, Attempt: 1,
		FanOut: task.FanOut{Fan: &task.Fan{Count: 3, Need: 1, Ended: 1, Succeeded: 1}}}
	d := factorytest.New("")
	if err := output.EmitOne(&d.Factory.Printer, r, r.ID, func(w *output.Details) { describeRun(d.Factory, w, r, "") }); err != nil {
		t.Fatal(err)
	}

	text := d.Out.String()
	if strings.Contains(text, "Attempt") || !strings.Contains(text, "3: 1 ended, 1 succeeded, 1 required") {
		t.Errorf("it is shown as\n%s", text)
	}
}

// Events of parts do not add parts to a list without parts.
func TestRunList_WatchesPartsIfTheyAreAskedFor(t *testing.T) {
	part := task.Run{ID: task.PartID("20261120T220000.000Z-k3f9", 7), Node: "n1"}

	for _, c := range []struct {
		filter client.RunListOptions
		want   bool
	}{{client.RunListOptions{}, false}, {client.RunListOptions{Parts: true}, true}, {client.RunListOptions{Node: "n1"}, true}, {client.RunListOptions{Node: "n2"}, false}} {
		if got := matchesFilter(c.filter, part); got != c.want {
			t.Errorf("%+v: %t", c.filter, got)
		}
	}
}
