package mutant

import (
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// editFans edits the records of runs with parts that a commit puts into the queue, or
// into history.
func editFans(k keysOf, t txn, part string, edit func(run, fan map[string]any)) txn {
	return editPuts(k, t, part, func(m map[string]any) {
		if fan, ok := m["fan_out"].(map[string]any); ok {
			edit(m, fan)
		}
	})
}

// partAgain leaves a part with its run that the commit puts into an inbox.
func partAgain(k keysOf, t txn) txn {
	index, given := 0, false
	for _, op := range t.Then {
		if key := string(op.KeyBytes()); op.IsPut() && strings.HasPrefix(key, k.Runs()) && !given {
			_, index, given = task.ParentOf(key[strings.LastIndexByte(key, '/')+1:])
		}
	}

	if !given {
		return t
	}

	return editFans(k, t, "/queue/", func(_, fan map[string]any) {
		left, _ := fan["left"].([]any)
		fan["left"] = append([]any{index}, left...)
	})
}

// partAstray has the parts of a run be for each other's nodes.
func partAstray(k keysOf, t txn) txn {
	return editFans(k, t, "/queue/", func(_, fan map[string]any) {
		if nodes, ok := fan["nodes"].([]any); ok {
			slices.Reverse(nodes)
		}
	})
}

// partUntold leaves the last part out of what a run says of them when it ends.
func partUntold(k keysOf, t txn) txn {
	return editFans(k, t, "/history/", func(_, fan map[string]any) {
		if parts, ok := fan["parts"].([]any); ok {
			fan["parts"] = parts[:len(parts)-1]
		}
	})
}

// ruleBent has a run succeed that failed for its parts.
func ruleBent(k keysOf, t txn) txn {
	return editFans(k, t, "/history/", func(run, _ map[string]any) {
		if run["reason"] == task.ReasonParts {
			run["state"] = string(task.Succeeded)
			delete(run, "reason")
		}
	})
}
