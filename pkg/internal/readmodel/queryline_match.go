package readmodel

import (
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// verdict is whether a term holds for a row.
type verdict uint8

const (
	fails verdict = iota
	holds
	unknown // the row does not contain yet what the term is about
)

// matcher judges a row. It allocates nothing.
type matcher func(r *Row, now int64) verdict

// verdictOf converts a result that is certain.
func verdictOf(ok bool) verdict {
	if ok {
		return holds
	}
	return fails
}

// splitName returns the namespace and the name of a row's task.
func (r *Row) splitName() (namespace, name string) {
	namespace, name, _ = strings.Cut(r.Name, "/")
	return namespace, name
}

// isGlob reports whether a pattern may match more than one name.
func isGlob(pattern string) bool { return strings.ContainsAny(pattern, `*?[\`) }

// matchNames returns the matcher of name:GLOB and name~TEXT. A pattern or text with a slash is about the full name.
func matchNames(t *queryTerm) matcher {
	var short, full []string
	for _, v := range t.values {
		if strings.Contains(v, "/") {
			full = append(full, v)
		} else {
			short = append(short, v)
		}
	}

	if t.form == formContains {
		return func(r *Row, _ int64) verdict {
			_, name := r.splitName()
			return verdictOf(containsAny(name, short) || containsAny(r.Name, full))
		}
	}

	// Most patterns are exact names. They cost little for each row, however many there are.
	shortNames, shortGlobs := separateGlobs(short)
	fullNames, fullGlobs := separateGlobs(full)

	return func(r *Row, _ int64) verdict {
		_, name := r.splitName()
		return verdictOf(shortNames[name] || fullNames[r.Name] || MatchesAny(shortGlobs, name) || MatchesAny(fullGlobs, r.Name))
	}
}

// separateGlobs returns the exact names among patterns, and the globs.
func separateGlobs(patterns []string) (names map[string]bool, globs []Glob) {
	names = map[string]bool{}
	for _, p := range patterns {
		if isGlob(p) {
			globs = append(globs, CompileGlob(p))
		} else {
			names[p] = true
		}
	}

	return names, globs
}

// containsAny reports whether text contains one of the parts.
func containsAny(text string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(text, p) {
			return true
		}
	}

	return false
}

// matchNamespaces returns the matcher of namespace:GLOB.
func matchNamespaces(t *queryTerm) matcher {
	globs := compileGlobs(t.values)

	return func(r *Row, _ int64) verdict {
		namespace, _ := r.splitName()
		return verdictOf(MatchesAny(globs, namespace))
	}
}

// The states of a query line that are not final states of a run.
const (
	stateRunning    = "running"
	stateWaiting    = "waiting"
	stateIdle       = "idle"
	statePaused     = "paused"
	stateFailing    = "failing"
	stateOverdue    = "overdue"
	stateUnreadable = "unreadable"
)

// queryStates are all states, in the order of the documentation.
var queryStates = []string{
	string(task.Failed), string(task.Succeeded), string(task.TimedOut), string(task.Cancelled), string(task.Lost),
	stateRunning, stateWaiting, stateIdle, statePaused, stateFailing, stateOverdue, stateUnreadable,
}

// isOutcome reports whether a state says how the last run ended.
func isOutcome(state string) bool { return OutcomeOf(task.State(state)) != 0 }

// matchStates returns the matcher of state:STATE.
func matchStates(t *queryTerm) matcher {
	var ends [len(outcomes)]bool
	var others []matcher
	aboutEnds := false

	for _, s := range t.values {
		if isOutcome(s) {
			ends[OutcomeOf(task.State(s))] = true
			aboutEnds = true
			continue
		}
		others = append(others, stateMatchers[s])
	}

	return func(r *Row, now int64) verdict {
		for _, match := range others {
			if match(r, now) == holds {
				return holds
			}
		}

		switch {
		case !aboutEnds:
			return fails
		case !r.knowsEnd():
			return unknown
		}

		return verdictOf(ends[r.Last()])
	}
}

// stateMatchers are the matchers of the states that are not final states of a run. They are always certain.
var stateMatchers = map[string]matcher{
	stateRunning:    func(r *Row, _ int64) verdict { return verdictOf(r.Active > 0) },
	stateWaiting:    func(r *Row, _ int64) verdict { return verdictOf(r.Waiting > 0) },
	stateIdle:       func(r *Row, _ int64) verdict { return verdictOf(r.Active == 0 && r.Waiting == 0) },
	statePaused:     func(r *Row, _ int64) verdict { return verdictOf(r.Flags.Has(Paused)) },
	stateFailing:    func(r *Row, _ int64) verdict { return verdictOf(r.Flags.Has(Failing)) },
	stateOverdue:    func(r *Row, now int64) verdict { return verdictOf(r.isOverdue(now)) },
	stateUnreadable: func(r *Row, _ int64) verdict { return verdictOf(r.Flags.Has(Unreadable)) },
}

// knowsEnd reports whether it is known how the last run ended, or that none has.
func (r *Row) knowsEnd() bool { return r.Flags.Has(History) || r.LastEnd != 0 }

// matchLabel returns the matcher of a label.
func matchLabel(t *queryTerm) matcher {
	if t.form == formValues {
		return func(r *Row, _ int64) verdict {
			for _, key := range t.values {
				if _, ok := r.Labels[key]; ok {
					return holds
				}
			}
			return fails
		}
	}

	want := t.form == formLabelIs

	return func(r *Row, _ int64) verdict {
		v, ok := r.Labels[t.label]
		return verdictOf((ok && slices.Contains(t.values, v)) == want)
	}
}

// matchSelector returns the matcher of a label selector.
func matchSelector(t *queryTerm) matcher {
	selector, _ := task.ParseSelector(t.values[0]) // parseSelector has accepted it
	return func(r *Row, _ int64) verdict { return verdictOf(selector.Matches(r.Labels)) }
}

// matchNext returns the matcher of the next tick: none, or how far it is away.
func matchNext(t *queryTerm) matcher {
	if t.form != formCompare {
		return func(r *Row, _ int64) verdict { return verdictOf(r.Next == 0) }
	}

	return func(r *Row, now int64) verdict {
		return verdictOf(r.Next != 0 && t.compare.holdsFor(r.Next-now, t.amount))
	}
}

// matchLast returns the matcher of the last end: none, or how long ago it was.
func matchLast(t *queryTerm) matcher {
	return func(r *Row, now int64) verdict {
		switch {
		case !r.knowsEnd():
			return unknown
		case t.form != formCompare:
			return verdictOf(r.LastEnd == 0)
		}

		return verdictOf(r.LastEnd != 0 && t.compare.holdsFor(now-r.LastEnd, t.amount))
	}
}

// matchSuccess returns the matcher of the last success: none, or how long ago it was. A task without a success counts
// as one whose success is older than any duration.
func matchSuccess(t *queryTerm) matcher {
	return func(r *Row, now int64) verdict {
		switch {
		case r.LastSuccess == 0 && !r.Flags.Has(History):
			return unknown
		case r.LastSuccess == 0:
			return verdictOf(t.form != formCompare || t.compare == opMore || t.compare == opAtLeast)
		case t.form != formCompare:
			return fails
		}

		return verdictOf(t.compare.holdsFor(now-int64(r.LastSuccess)*1000, t.amount))
	}
}

// matchDuration returns the matcher of the duration of the last run.
func matchDuration(t *queryTerm) matcher {
	return t.matchMeasure(func(r *Row) int32 { return r.Duration })
}

// matchLateness returns the matcher of the lateness of the last run.
func matchLateness(t *queryTerm) matcher {
	return t.matchMeasure(func(r *Row) int32 { return r.Lateness })
}

// matchMeasure returns the matcher of something that was measured at the last run. It fails if no run has ended.
func (t *queryTerm) matchMeasure(measure func(*Row) int32) matcher {
	return func(r *Row, _ int64) verdict {
		if !r.knowsEnd() {
			return unknown
		}
		return verdictOf(r.LastEnd != 0 && t.compare.holdsFor(int64(measure(r)), t.amount))
	}
}

// matchFailures returns the matcher of the failures in a row. While the history is not known, there may be more.
func matchFailures(t *queryTerm) matcher {
	return func(r *Row, _ int64) verdict {
		n := int64(r.Failures)
		result := verdictOf(t.compare.holdsFor(n, t.amount))
		if r.Flags.Has(History) {
			return result
		}

		// The answer is certain if further failures cannot change it.
		switch t.compare {
		case opMore, opAtLeast:
			if result == holds {
				return holds
			}
		case opLess, opAtMost:
			if result == fails {
				return fails
			}
		default:
			if n > t.amount {
				return fails
			}
		}

		return unknown
	}
}

// matchAlerts returns the matcher of alert:KIND: whether an expectation of this kind is not met. Until the ends of the runs are
// known, only alerts from before are.
func matchAlerts(t *queryTerm) matcher {
	var wanted Flags
	for _, v := range t.values {
		if v == anyAlert {
			wanted |= AlertFlags
		}
		wanted |= AlertFlag(task.AlertKind(v))
	}

	return func(r *Row, _ int64) verdict {
		switch {
		case r.Flags&wanted != 0:
			return holds
		case !r.Flags.Has(History):
			return unknown
		}

		return fails
	}
}

// matchActions returns the matcher of action:workflow.
func matchActions(*queryTerm) matcher {
	return func(r *Row, _ int64) verdict { return verdictOf(r.Flags.Has(Workflow)) }
}

// matchTicks returns the matcher of tick:MINUTE: whether the task has a tick that may fall due in this minute. Of a schedule
// that combines @every with other expressions, only the next tick and those of the others are known.
func matchTicks(t *queryTerm) matcher {
	minutes := make([]int64, len(t.values))
	for i, v := range t.values {
		at, _ := parseMinute(v) // parseTicks has accepted it
		minutes[i] = at.UnixMilli()
	}

	return func(r *Row, _ int64) verdict {
		if r.Schedule == nil || r.Next == 0 {
			return fails
		}

		result := fails
		for _, from := range minutes {
			switch due, known := r.Schedule.MayFallDue(r.Next, from, from+minuteMS); {
			case due:
				return holds
			case !known:
				result = unknown
			}
		}

		return result
	}
}
