package top

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Runs that wait for their targets are problems. Ticks that wait because of them are only counted.
func TestProblems_ShowTargetsThatAreDown(t *testing.T) {
	b := busy()
	unsent := &task.Unsent{Count: 7, First: ago(110 * time.Second), Message: "connection refused"}
	b.Waits = []task.BoardWait{
		{Namespace: "default", Task: "orders", Run: "20261121T115600.000Z-cccc", Reason: task.ReasonTarget, Since: ago(4 * time.Minute), NotBefore: in(12 * time.Second), Unsent: unsent},
		{Namespace: "default", Task: "orders", Run: "20261121T115700.000Z-cccc", Reason: task.ReasonTarget, Since: ago(3 * time.Minute)},
	}

	m := screen(Config{Namespace: "default"}, 200, 50, b)
	var rows []string
	for _, r := range m.problemRows() {
		if slices.Contains(r.cells, "target") {
			rows = append(rows, strings.Join(r.cells, "|"))
		}
	}

	if want := []string{"…|target|orders|1m 50s|connection refused · 7 attempts, the next at 12:00:12"}; !slices.Equal(rows, want) {
		t.Errorf("the problems are %q, want %q", rows, want)
	}
}
