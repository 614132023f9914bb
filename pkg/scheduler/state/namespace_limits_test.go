package state

import (
	"fmt"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestJoinSelector_IsKeptForEachVersionAndSelector(t *testing.T) {
	var checks NamespaceChecks
	n := &task.Namespace{Name: "default", Nodes: "team = a", Revision: 3}

	for i := range 2*maxJoinedSelectors + 5 {
		zone := fmt.Sprintf("z%d", i%(maxJoinedSelectors+2))
		text := "zone = " + zone
		selector, err := task.ParseSelector(text)
		if err != nil {
			t.Fatal(err)
		}

		joined := checks.Of("default", n, t.FailNow).JoinSelector(text, selector)
		if !joined.Matches(map[string]string{"team": "a", "zone": zone}) || joined.Matches(map[string]string{"zone": zone}) || joined.Matches(map[string]string{"team": "a"}) {
			t.Fatal(joined)
		}
	}

	if kept := len(checks.Of("default", n, t.FailNow).joined); kept > maxJoinedSelectors {
		t.Errorf("%d selectors are kept", kept)
	}
}
