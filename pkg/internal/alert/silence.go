package alert

import (
	"path"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Silences finds the silence of an alert. The zero value has none.
type Silences struct{ of map[string][]compiledSilence } // by namespace

// compiledSilence is a silence whose selector is parsed.
type compiledSilence struct {
	task.AlertSilence
	selector task.Selector
}

// CompileSilences returns the silences in a form in which many alerts can be compared with them. created has the create revisions of the
// records of namespaces: a silence of a namespace that was deleted and created again is void. Without created, this is not checked.
//
// A silence that cannot be read silences nothing: a message too many is better than one too few.
func CompileSilences(list []task.AlertSilence, created map[string]int64) Silences {
	s := Silences{of: map[string][]compiledSilence{}}
	for _, one := range list {
		if created != nil && created[one.Namespace] != one.NamespaceRev {
			continue
		}

		selector, err := task.ParseSelector(one.Selector)
		if err != nil || (one.Glob == "" && len(selector) == 0) {
			continue
		}

		s.of[one.Namespace] = append(s.of[one.Namespace], compiledSilence{one, selector})
	}

	return s
}

// Find returns the silence that is in force for an alert; nil: none. Of several, it is the one that lasts longest.
func (s Silences) Find(a *task.Alert, now time.Time) *task.AlertSilence {
	var found *task.AlertSilence
	list := s.of[a.Namespace]
	for i := range list {
		one := &list[i]
		if one.Until.After(now) && one.matches(a) && (found == nil || one.Until.After(found.Until.Time)) {
			found = &one.AlertSilence
		}
	}

	return found
}

// matches reports whether the silence is about an alert. Alerts that have no record of their own are counted together, so only a silence
// of the whole namespace covers them. An alert about the cluster has no namespace, and so no silence.
func (c *compiledSilence) matches(a *task.Alert) bool {
	switch {
	case a.Kind == task.AlertMore:
		return c.Glob == "*"
	case c.Glob != "":
		ok, err := path.Match(c.Glob, a.Task)
		return ok && err == nil
	}

	return c.selector.Matches(a.Labels)
}
