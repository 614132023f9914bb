package task_test

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestDescribeBlocked(t *testing.T) {
	t.Parallel()

	for want, blocked := range map[string][]string{
		"": nil, "over its own limit of load1, disk_free": {"load1", "disk_free"}, "its policy cannot be read; see its log": {task.BlockedByPolicy},
		"too many starts of runs hang; see its log":                           {task.BlockedByStarts},
		"over its own limit of load1; its policy cannot be read; see its log": {"load1", task.BlockedByPolicy},
	} {
		if got := task.DescribeBlocked(blocked); got != want {
			t.Errorf("%v: %q, want %q", blocked, got, want)
		}
	}
}
