package access

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"github.com/carillonhq/carillon/pkg/task"
)

// NeedsOfChange returns what a change of a task needs, whichever request makes it: the change
// decides, not the route. before is nil if the task is created, after if it is deleted. The
// needs are none if nothing changes.
//
//   - A new task needs create; a deletion needs delete.
//   - A change of nothing but the pause needs pause; any other needs update, and pause too if
//     the pause changes as well.
//   - Labels are judged before and after, so that nobody moves a task into or out of what the
//     labels of a binding reach.
//   - A secret that the task newly names needs use. So does each secret that it already names
//     if what runs, as whom, or where changes: a new command could print the value. The same
//     holds if the output is no longer masked.
func NeedsOfChange(before, after *task.Spec) []Need {
	switch {
	case before == nil:
		return append([]Need{need(Create, after)}, needsOfSecrets(nil, after)...)
	case after == nil:
		return []Need{need(Delete, before)}
	}

	var verbs []Verb
	if pauseOf(before) != pauseOf(after) {
		verbs = append(verbs, Pause)
	}
	if !sameJSON(withoutPause(before), withoutPause(after)) {
		verbs = append(verbs, Update)
	}

	var needs []Need
	for _, verb := range verbs {
		needs = append(needs, need(verb, before))
		if !maps.Equal(before.Labels, after.Labels) {
			needs = append(needs, need(verb, after))
		}
	}

	return append(needs, needsOfSecrets(before, after)...)
}

func need(verb Verb, s *task.Spec) Need {
	return Need{Verb: verb, Kind: Tasks, Namespace: s.Namespace, Labels: s.Labels}
}

// pause is what pausing and resuming change of a task.
type pause struct {
	paused bool
	until  int64 // milliseconds since 1970
	reason string
}

func pauseOf(s *task.Spec) pause {
	return pause{paused: s.Paused, until: s.PausedUntil.UnixMilli(), reason: s.PauseReason}
}

func withoutPause(s *task.Spec) task.Spec {
	c := *s
	c.Paused, c.PausedUntil, c.PauseReason = false, task.Time{}, ""

	return c
}

func needsOfSecrets(before, after *task.Spec) []Need {
	names := after.Action.SecretNames()
	if before != nil && sameExecution(before, after) {
		known := before.Action.SecretNames()
		names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(known, name) })
	}

	if len(names) == 0 {
		return nil
	}

	return []Need{{Verb: Use, Kind: Secrets, Namespace: after.Namespace}}
}

// sameExecution reports whether what runs, as whom, and where has not changed. What a manual run may give is part of that:
// with another argument or variable, a command could print a secret.
func sameExecution(a, b *task.Spec) bool {
	return sameJSON(a.Action, b.Action) && sameJSON(a.Target, b.Target) && sameJSON(a.Success, b.Success) && sameJSON(a.Accept, b.Accept) &&
		a.Output.MasksSecrets() == b.Output.MasksSecrets()
}

// sameJSON compares values as records have them: a list that is empty equals one that is nil.
func sameJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)

	return errX == nil && errY == nil && bytes.Equal(x, y)
}
