package check

import (
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// namespaceJudge judges that nothing is written or starts that the record of its namespace forbids (G29):
//
//   - A task gets a new action only if the record in force allows it. The API compares the fence of access, so this is
//     exact.
//   - An attempt is dispatched only if the record allows its action, and a run ends with the reason namespace only if the
//     record does not. Commits do not compare the record: the owner relies on its watch, which may be late. So the record
//     may be any that was in force within namespaceLag before.
//
// It judges only namespaces whose record is in the history: tests of single components have none.
type namespaceJudge struct {
	judge

	versions map[string][]namespaceVersion // by namespace, the oldest first; the last is in force
	latest   int64                         // the latest time of a change of access records, in ms
}

// namespaceVersion is a version of the record of a namespace.
type namespaceVersion struct {
	record *task.Namespace // nil: the record was deleted, or cannot be read
	until  int64           // when it was replaced, in ms; 0: it is in force
}

// namespaceLag is how long an owner may use a record of a namespace that was replaced. A watch that delivers nothing is
// detected after 5 s. Then it is resumed, up to three times, before the records are listed again.
const namespaceLag = 30 * time.Second

// allows reports whether a version allows an action.
func (v namespaceVersion) allows(a *task.Action) bool {
	if v.record == nil {
		return false
	}
	if _, err := task.ParseSelector(v.record.Nodes); err != nil {
		return false
	}

	return access.Forbidden(v.record, a) == ""
}

// inUse returns the versions by which an owner may have decided at a time. It returns none if the history has no record
// of the namespace.
func (j *namespaceJudge) inUse(namespace string, at task.Time) []namespaceVersion {
	since := unixMS(at) - namespaceLag.Milliseconds() - 2*j.opts.Skew.Milliseconds()
	return slices.DeleteFunc(slices.Clone(j.versions[namespace]), func(v namespaceVersion) bool { return v.until != 0 && v.until < since })
}

// checkDispatch checks that the namespace allows the action of a new attempt.
func (j *namespaceJudge) checkDispatch(ch *runChange, r *runHistory, put inboxPut) {
	versions := j.inUse(ch.ref.Namespace, put.DispatchedAt)
	if len(versions) == 0 || slices.ContainsFunc(versions, func(v namespaceVersion) bool { return v.allows(&put.Action) }) {
		return
	}

	what := "has no record"
	if n := versions[len(versions)-1].record; n != nil {
		what = "does not allow " + access.Forbidden(n, &put.Action)
	}
	j.breachTask("G29", ch.ref, r.tick, put.key, "run %s is dispatched at %s, although namespace %s %s", ch.id, formatTime(put.DispatchedAt.Time), ch.ref.Namespace, what)
}

// checkRefused checks that the namespace does not allow the task of a run that ended for that reason.
func (j *namespaceJudge) checkRefused(ch *runChange, r *runHistory) {
	e := j.cluster.taskOf(ch.ref).entry
	if ch.ended.Reason != task.ReasonNamespace || e == nil || e.incarnation != r.incarnation {
		return
	}

	versions := j.inUse(ch.ref.Namespace, ch.ended.EndedAt)
	if len(versions) > 0 && !slices.ContainsFunc(versions, func(v namespaceVersion) bool { return !v.allows(&e.Action) }) {
		j.breachTask("G29", ch.ref, r.tick, ch.endedKey, "run %s ends with the reason %s, although namespace %s allows its task", ch.id, task.ReasonNamespace, ch.ref.Namespace)
	}
}

// checkSpecs checks that the namespace allows each task whose action a revision sets. A task that does not fit any more
// keeps its action while other fields change.
func (j *namespaceJudge) checkSpecs(d *delta) {
	if !j.opts.Audited {
		return
	}

	for ref, change := range d.specs {
		versions := j.versions[ref.Namespace]
		if change.value == nil || len(versions) == 0 {
			continue
		}

		after := decodeSpecValue(change.value)
		if after == nil {
			continue
		}
		if before, exists := j.cluster.kept.specs[ref]; exists && sameAction(decodeSpecValue(before.value), after) {
			continue
		}

		if !versions[len(versions)-1].allows(&after.Action) {
			j.breachTask("G29", ref, 0, j.keys.Spec(ref), "the task is written, although namespace %s does not allow it", ref.Namespace)
		}
	}
}

// sameAction reports whether two specs run the same.
func sameAction(a, b *task.Spec) bool {
	return a != nil && b != nil && string(record.Encode(a.Action)) == string(record.Encode(b.Action))
}

// applyRecords applies changes of the records of namespaces. Their time is that of the audit record of the change.
func (j *namespaceJudge) applyRecords(events []Event) {
	var changed []Event
	at := int64(0)

	for _, ev := range events {
		switch {
		case strings.HasPrefix(ev.Key, j.keys.Namespaces()):
			changed = append(changed, ev)
		case strings.HasPrefix(ev.Key, j.keys.AuditRecords()) && !ev.Deleted:
			if a, err := record.Decode[task.AuditRecord](ev.Value); err == nil {
				at = max(at, unixMS(a.Time))
			}
		}
	}

	for _, ev := range changed {
		v := namespaceVersion{}
		if n, err := record.Decode[task.Namespace](ev.Value); !ev.Deleted && err == nil {
			v.record, at = &n, max(at, unixMS(n.UpdatedAt))
		}
		j.latest = max(j.latest, at)

		name := strings.TrimPrefix(ev.Key, j.keys.Namespaces())
		versions := j.versions[name]
		if n := len(versions); n > 0 {
			versions[n-1].until = max(j.latest, 1)
		}

		// What is older than any owner may use is not needed.
		old := j.latest - 10*(namespaceLag.Milliseconds()+j.opts.Skew.Milliseconds())
		versions = slices.DeleteFunc(versions, func(v namespaceVersion) bool { return v.until < old })
		j.versions[name] = append(versions, v)
	}
}
