package httpapi

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// StateList is a parameter with states of runs, separated by commas; nil means any state.
type StateList []task.State

// UnmarshalText parses states that are separated by commas.
func (l *StateList) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return nil
	}

	for name := range strings.SplitSeq(string(text), ",") {
		s := task.State(strings.TrimSpace(name))
		if !s.Known() {
			return task.NoneOf(task.CodeBadValue, "", name, task.StateNames()...)
		}
		*l = append(*l, s)
	}

	return nil
}
