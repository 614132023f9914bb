package task_test

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestPressedWords(t *testing.T) {
	t.Parallel()

	for want, pressed := range map[string][]string{
		"": nil, "beyond its own limit of load1, disk_free": {"load1", "disk_free"}, "its policy cannot be read: see its log": {task.PressedPolicy},
		"too many starts of runs hang there: see its log":                       {task.PressedStarts},
		"beyond its own limit of load1; its policy cannot be read: see its log": {"load1", task.PressedPolicy},
	} {
		if got := task.PressedWords(pressed); got != want {
			t.Errorf("%v: %q, want %q", pressed, got, want)
		}
	}
}
