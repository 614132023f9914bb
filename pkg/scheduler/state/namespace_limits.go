package state

import (
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// NamespaceChecks checks tasks against the records of their namespaces, and remembers the results, and the selectors that
// result from joining. The zero value is empty.
//
// Guaranteed: the action of a task is decoded once for each version of the record, and a result is never used for another
// version of the record. The caller sets Task.Checked to 0 when the action of a task changes. Results depend on nothing
// but the task and the record, so they stay valid whether or not a commit succeeds. An action that cannot be read counts
// as not allowed.
type NamespaceChecks struct {
	byName map[string]*NamespaceLimits
	last   uint16 // the highest id in use
}

// NamespaceLimits is one version of a namespace's record.
type NamespaceLimits struct {
	record *task.Namespace
	// id identifies the version in Task.Checked, which is the id times two, plus one if the record allows the task.
	id       uint16
	selector task.Selector // of nodes
	broken   bool          // the selector cannot be parsed; nothing may run
	joined   map[string]task.Selector
}

// MaxLimitIDs is the number of versions that Task.Checked can distinguish.
const MaxLimitIDs = 1<<15 - 1

// maxJoinedSelectors limits the selectors that are kept for each namespace.
const maxJoinedSelectors = 1000

// Of returns the limits of a version of a namespace's record. If there have been as many versions as there are ids, it
// forgets all results, and calls forget, which sets Checked of all tasks to 0.
func (c *NamespaceChecks) Of(name string, n *task.Namespace, forget func()) *NamespaceLimits {
	if l := c.byName[name]; l != nil && l.record.Revision == n.Revision {
		return l
	}

	if c.last == MaxLimitIDs {
		c.byName, c.last = nil, 0
		forget()
	}

	if c.byName == nil {
		c.byName = map[string]*NamespaceLimits{}
	}

	c.last++
	selector, err := task.ParseSelector(n.Nodes)
	l := &NamespaceLimits{record: n, id: c.last, selector: selector, broken: err != nil}
	c.byName[strings.Clone(name)] = l // name is part of the text of a task

	return l
}

// Broken reports whether the record's node selector cannot be parsed, so that nothing may run.
func (l *NamespaceLimits) Broken() bool { return l.broken }

// Selector returns the record's node selector. It must not be changed.
func (l *NamespaceLimits) Selector() task.Selector { return l.selector }

// Accepts reports whether the record's node selector lets tasks run on a node.
func (l *NamespaceLimits) Accepts(n *task.Node) bool { return l.selector.Accepts(n) }

// Allows reports whether the record allows a task's action.
func (l *NamespaceLimits) Allows(t *Task) bool {
	if t.Checked>>1 == l.id {
		return t.Checked&1 == 1
	}

	t.Checked = l.id << 1
	if l.Refusal(t) == "" {
		t.Checked |= 1
	}

	return t.Checked&1 == 1
}

// Refusal returns what of a task the record does not allow, or "".
func (l *NamespaceLimits) Refusal(t *Task) string {
	a, err := record.DecodeAction([]byte(t.Action()))
	if err != nil {
		return "its action, which cannot be read" // the entry was read with it
	}
	return l.RefusalOf(a)
}

// RefusalOf returns what of an action the record does not allow, or "".
func (l *NamespaceLimits) RefusalOf(a task.Action) string { return access.Forbidden(l.record, &a) }

// JoinSelector returns a selector and that of the namespace in one: both must hold (see access.JoinSelector). text is the same
// selector as text.
func (l *NamespaceLimits) JoinSelector(text string, s task.Selector) task.Selector {
	joined, known := l.joined[text]
	if !known {
		if l.joined == nil || len(l.joined) == maxJoinedSelectors {
			l.joined = map[string]task.Selector{}
		}

		joined = slices.Concat(l.selector, s)
		l.joined[strings.Clone(text)] = joined
	}

	return joined
}
