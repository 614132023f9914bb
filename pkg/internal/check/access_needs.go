package check

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// needsOf returns what the change that an audit record describes needs at least. changes are those of its revision. d is
// nil for a late record, whose change is a deletion that happened before.
func (j *accessJudge) needsOf(d *delta, a *task.AuditRecord, changes []objectChange) []access.Need {
	op, known := operations[a.Operation]
	if !known {
		j.addNote("audit records have the operation %q, which the checker does not know", a.Operation)
	}

	var needs []access.Need
	for _, o := range a.Objects {
		var change objectChange
		if i := slices.IndexFunc(changes, func(c objectChange) bool { return c.object == objectOf(o) }); i >= 0 {
			change = changes[i]
		}

		switch o.Kind {
		case "task":
			if d == nil {
				needs = append(needs, change.needs...)
			} else {
				needs = append(needs, j.needsOfTask(d, record.Ref{Namespace: o.Namespace, Name: o.Name}, a.Time.Time)...)
			}
		case "freeze":
			needs = append(needs, j.needsOfFreezes(d)...)
		case "role", "subject", "node-limit":
			needs = append(needs, access.Need{Verb: access.Grant, Kind: access.Access})
		case "namespace":
			needs = append(needs, access.Need{Verb: verbOf(change), Kind: access.Namespaces})
		case "binding":
			needs = append(needs, needsOfBinding(change.before)...)
			needs = append(needs, needsOfBinding(change.after)...)
		case "token": // everybody makes and deletes tokens of their own; others' tokens need different rights in different places
		default:
			if known && op.Verb != 0 {
				needs = append(needs, j.needOfObject(op, o))
			}
		}
	}

	return needs
}

// needOfObject returns what an operation needs on an object. The labels of a run are those of its task.
func (j *accessJudge) needOfObject(op operation, o task.AuditObject) access.Need {
	need := access.Need{Verb: op.Verb, Kind: op.Kind}
	if op.Kind.OfCluster() {
		return need
	}

	need.Namespace = o.Namespace
	if spec := j.specBefore(record.Ref{Namespace: o.Namespace, Name: o.Name}); spec != nil && op.Kind.Labelled() {
		need.Labels = spec.Labels
	}

	return need
}

// needsOfTask returns what the change of a task's spec needs. A pause that ended by itself needs nothing.
func (j *accessJudge) needsOfTask(d *delta, ref record.Ref, at time.Time) []access.Need {
	change := d.specs[ref]
	if change == nil {
		return nil
	}

	before := j.specBefore(ref)
	var after *task.Spec
	if change.value != nil {
		after = decodeSpecValue(change.value)
	}

	if before == nil && after == nil {
		return nil
	}

	needs := access.NeedsOfChange(before, after)
	if before != nil && !before.PausedUntil.IsZero() && at.After(before.PausedUntil.Time) {
		needs = slices.DeleteFunc(needs, func(n access.Need) bool { return n.Verb == access.Pause })
	}

	return needs
}

// specBefore returns the spec of a task as of the revision before; nil if there was none that can be read.
func (j *accessJudge) specBefore(ref record.Ref) *task.Spec {
	s, exists := j.cluster.kept.specs[ref]
	if !exists {
		return nil
	}

	return decodeSpecValue(s.value)
}

func decodeSpecValue(value []byte) *task.Spec {
	t, err := record.DecodeTask(value, 0)
	if err != nil {
		return nil
	}

	return &t.Spec
}

// needsOfFreezes returns what a change of the freezes in force needs: of the cluster, or of a namespace.
func (j *accessJudge) needsOfFreezes(d *delta) []access.Need {
	if d == nil || d.freezes == nil || d.freezes.unreadable || j.cluster.freezes.unreadable {
		return nil
	}

	var needs []access.Need
	add := func(z task.Freeze, others []task.Freeze) {
		if slices.ContainsFunc(others, func(o task.Freeze) bool { return o.Namespace == z.Namespace && o.Since.Equal(z.Since.Time) }) {
			return
		}

		if z.Namespace == "" {
			needs = append(needs, access.Need{Verb: access.Operate, Kind: access.Cluster})
		} else {
			needs = append(needs, access.Need{Verb: access.Pause, Kind: access.Tasks, Namespace: z.Namespace})
		}
	}

	for _, z := range d.freezes.Holding {
		add(z, j.cluster.freezes.Holding)
	}
	for _, z := range j.cluster.freezes.Holding {
		add(z, d.freezes.Holding)
	}

	return needs
}

// needsOfBinding returns what it takes to write or delete a binding with that value; nil if there is none.
func needsOfBinding(value []byte) []access.Need {
	b, err := record.Decode[task.Binding](value)
	if len(value) == 0 || err != nil {
		return nil
	}

	if b.Cluster {
		return []access.Need{{Verb: access.Grant, Kind: access.Access}}
	}

	var needs []access.Need
	for _, ns := range b.Namespaces {
		needs = append(needs, access.Need{Verb: access.Grant, Kind: access.Bindings, Namespace: ns})
	}

	return needs
}

// verbOf returns whether a change creates, updates or deletes its object.
func verbOf(c objectChange) access.Verb {
	switch {
	case c.deleted:
		return access.Delete
	case c.before == nil:
		return access.Create
	}

	return access.Update
}
