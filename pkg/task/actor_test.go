package task_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestActor_IsTextForPeople(t *testing.T) {
	for text, a := range map[string]*task.Actor{
		"":                      nil,
		"user:ann":              task.NewActor("user:ann"),
		"user:ann (token k3vq)": {Subject: "user:ann", Token: "k3vq"},
		"user:ann (token k3vq, certificate laptop)": {Subject: "user:ann", Token: "k3vq", Certificate: "laptop"},
		"cert:laptop (certificate laptop)":          {Subject: "cert:laptop", Certificate: "laptop"},
		"unix:uid=0":                                task.NewActor("unix:uid=0"),
		"carillon":                                  task.NewActor(task.PausedByFailures),
		"n1":                                        task.NodeActor("n1"),
		"node:":                                     task.NewActor("node:"),
		"a?b?? (token k3vq)":                        {Subject: "a\nb\x1b\xff", Token: "k3vq"},
		"ann ?token x? (token k3vq, certificate x? ?token y)": {Subject: "ann (token x)", Token: "k3vq", Certificate: "x) (token y"},
		strings.Repeat("é", 64) + "…":                         task.NewActor(strings.Repeat("é", 65)),
	} {
		if got := a.String(); got != text {
			t.Errorf("%+v is %q, want %q", a, got, text)
		}

		name, _, _ := strings.Cut(text, " (")
		if got := a.Name(); got != name {
			t.Errorf("%+v has the name %q, want %q", a, got, name)
		}
	}
}

func TestActor_MethodsAcceptNil(t *testing.T) {
	var nobody *task.Actor
	ann := &task.Actor{Subject: "user:ann", Token: "k3vq"}

	if task.NewActor("") != nil || task.NodeActor("") != nil {
		t.Error("an empty name is an actor")
	}
	if nobody.Is("") || nobody.Is("user:ann") || nobody.Node() != "" || !nobody.Equal(nil) || nobody.Equal(ann) || ann.Equal(nil) {
		t.Error("nobody is somebody")
	}
	if !ann.Is("user:ann") || ann.Is("user:ann2") || ann.Node() != "" || !ann.Equal(&task.Actor{Subject: "user:ann", Token: "k3vq"}) || ann.Equal(task.NewActor("user:ann")) {
		t.Errorf("%+v", ann)
	}
	if n := task.NodeActor("n1"); n.Node() != "n1" || !n.Is("node:n1") {
		t.Errorf("%+v", n)
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
