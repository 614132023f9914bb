package task_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestActorName(t *testing.T) {
	for actor, want := range map[string]string{
		"ann (token k3vq)": "ann", "ann (ops) (token k3vq, certificate c)": "ann (ops)", "unix:uid=0": "unix:uid=0", "": "",
		"carillon": "carillon", "token k3vq": "token k3vq", "token k3vq (certificate c)": "token k3vq", "x (y": "x (y",
	} {
		if got := task.ActorName(actor); got != want {
			t.Errorf("%q is %q, want %q", actor, got, want)
		}
	}
}

func TestEnvNamesOf_AreSortedAndBounded(t *testing.T) {
	if got := task.EnvNamesOf(nil); got != nil {
		t.Errorf("of none: %q", got)
	}

	if got := task.EnvNamesOf(map[string]string{"B": "sesame", "A": ""}); !slices.Equal(got, []string{"A", "B"}) {
		t.Errorf("of two: %q", got)
	}

	if got := task.EnvNamesOf(map[string]string{"A, B": "", "C\nState: succeeded": "", "Ä": ""}); !slices.Equal(got, []string{`"A, B"`, `"C\nState: succeeded"`, "Ä"}) {
		t.Errorf("of odd ones: %q", got)
	}

	many, long := map[string]string{}, map[string]string{}
	for i := range task.MaxEnv {
		many[fmt.Sprintf("A%03d", i)] = "x"
		long[strings.Repeat("x", 253)+fmt.Sprintf("%03d", i)] = "x"
	}

	if got := task.EnvNamesOf(many); len(got) != 101 || got[99] != "A099" || got[100] != fmt.Sprintf("… (%d more)", task.MaxEnv-100) {
		t.Errorf("of many: %d, the last %q", len(got), got[len(got)-1])
	}

	if got := strings.Join(task.EnvNamesOf(long), ""); len(got) > 4<<10+20 || !strings.HasSuffix(got, fmt.Sprintf("… (%d more)", task.MaxEnv-16)) {
		t.Errorf("of long ones: %d bytes, the end %q", len(got), got[len(got)-30:])
	}
}
