package proctree

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Limits of IsDescendant. A chain of parents is a few processes long on a usual host.
const (
	maxAncestors  = 256
	ancestorReads = 8
)

// IsDescendant reports whether a process is a descendant of another one, which must be alive. While the other one is a
// subreaper (BecomeSubreaper), its descendants stay descendants when their parents end.
//
// An error means that the answer is unknown: the process has ended, its parents change all the time, or they cannot be
// seen.
func IsDescendant(pid, ancestor int) (bool, error) {
	var problem error

	// Parents may end while the chain is read, and their numbers may be reused. If two successive reads are equal, the chain did
	// not change in between.
	var before []parent
	for range ancestorReads {
		chain, err := ancestorsOf(pid)
		if err != nil {
			problem, before = err, nil
			continue
		}

		if slices.ContainsFunc(chain[1:], func(p parent) bool { return p.pid == ancestor }) {
			return true, nil
		}
		if slices.Equal(chain, before) {
			return false, nil
		}

		problem, before = errors.New("its parents change"), chain
	}

	return false, fmt.Errorf("parents of process %d: %w", pid, problem)
}

// parent is a process in a chain of parents.
type parent struct {
	pid   int
	start time.Duration
}

// ancestorsOf returns a process, its parent, the parent of the latter, and so on.
func ancestorsOf(pid int) (chain []parent, err error) {
	for len(chain) == 0 || pid > 0 {
		st, err := ReadStat(pid)
		switch {
		case err != nil:
			return nil, err
		case len(chain) > 0 && st.Start > chain[len(chain)-1].start:
			return nil, fmt.Errorf("the number %d of a parent was reused", pid)
		case len(chain) == maxAncestors:
			return nil, fmt.Errorf("it has more than %d", maxAncestors)
		}

		chain, pid = append(chain, parent{pid, st.Start}), st.Parent
	}

	return chain, nil
}
