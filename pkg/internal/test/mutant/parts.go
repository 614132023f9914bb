package mutant

import (
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// editFans edits the records of runs with parts that a commit puts into the given part of a shard.
func editFans(k keysOf, t txn, part string, edit func(run, fan map[string]any)) txn {
	return editPuts(k, t, part, func(m map[string]any) {
		if fan, ok := m["fan_out"].(map[string]any); ok {
			edit(m, fan)
		}
	})
}

// partAgain lists a part as left in its parent's record although the commit puts it into an inbox.
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

// partAstray assigns the parts of a run to each other's nodes in the parent's record.
func partAstray(k keysOf, t txn) txn {
	return editFans(k, t, "/queue/", func(_, fan map[string]any) {
		if nodes, ok := fan["nodes"].([]any); ok {
			slices.Reverse(nodes)
		}
	})
}

// partUntold removes the last part from the record of its parent's end.
func partUntold(k keysOf, t txn) txn {
	return editFans(k, t, "/history/", func(_, fan map[string]any) {
		if parts, ok := fan["parts"].([]any); ok {
			fan["parts"] = parts[:len(parts)-1]
		}
	})
}

// ruleBent records a run as succeeded that failed because of its parts.
func ruleBent(k keysOf, t txn) txn {
	return editFans(k, t, "/history/", func(run, _ map[string]any) {
		if run["reason"] == task.ReasonParts {
			run["state"] = string(task.Succeeded)
			delete(run, "reason")
		}
	})
}
