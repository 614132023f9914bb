package top

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestActionWords(t *testing.T) {
	t.Parallel()

	for want, a := range map[string]task.Action{
		"report --all":         {Process: &task.Process{Command: []string{"report", "--all"}}},
		"a | b":                {Process: &task.Process{Shell: "a | b"}},
		"POST https://a/${x}":  {HTTP: &task.HTTP{URL: "https://a/${x}", Body: "b"}},
		"GET secret:slack/url": {HTTP: &task.HTTP{URL: "secret:slack/url"}},
		"nothing (noop)":       {Noop: &task.Noop{}},
		"":                     {},
	} {
		if got := actionWords(a); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
