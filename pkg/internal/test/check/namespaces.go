package check

import (
	"maps"
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
//   - An attempt is dispatched only if the record allows its action, and its selector accepts the node, by those of the
//     node's labels that the limits of nodes allow. A run ends with the reason namespace only if the record does not allow
//     its action. Commits do not compare these records: the owner relies on its watch, which may be late. So they may be
//     any that were in force within namespaceLag before.
//
// It judges only namespaces whose record is in the history: tests of single components have none.
type namespaceJudge struct {
	judge

	versions map[string][]namespaceVersion // by namespace, the oldest first; the last is in force
	limits   map[string]task.NodeLimit     // of nodes, as they are in force
	tables   []limitsVersion               // the same, the oldest first; the last is in force
	latest   int64                         // the latest time of a change of access records, in ms
}

// limitsVersion is a version of the limits of all nodes.
type limitsVersion struct {
	table *access.Table
	until int64 // when it was replaced, in ms; 0: it is in force
}

func newNamespaceJudge(base judge) *namespaceJudge {
	return &namespaceJudge{
		judge: base, versions: map[string][]namespaceVersion{}, limits: map[string]task.NodeLimit{},
		tables: []limitsVersion{{table: &access.Table{}}},
	}
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

// since returns, in ms, the end of the period whose records an owner may no longer use at a time.
func (j *namespaceJudge) since(at task.Time) int64 {
	return unixMS(at) - namespaceLag.Milliseconds() - 2*j.opts.Skew.Milliseconds()
}

// accepts reports whether a version lets tasks run on a node. Facts change all the time, so a selector that compares facts
// is not judged.
func (v namespaceVersion) accepts(n task.Node) bool {
	selector, err := task.ParseSelector(v.record.Nodes)
	return err == nil && (selector.Compares() || selector.Matches(n.Labels))
}

// inUse returns the versions by which an owner may have decided at a time. It returns none if the history has no record
// of the namespace.
func (j *namespaceJudge) inUse(namespace string, at task.Time) []namespaceVersion {
	since := j.since(at)
	return slices.DeleteFunc(slices.Clone(j.versions[namespace]), func(v namespaceVersion) bool { return v.until != 0 && v.until < since })
}

// checkDispatch checks that the namespace allows the action of a new attempt, and its node.
func (j *namespaceJudge) checkDispatch(ch *runChange, r *runHistory, put inboxPut) {
	versions := j.inUse(ch.ref.Namespace, put.DispatchedAt)
	if len(versions) == 0 {
		return
	}

	versions = slices.DeleteFunc(versions, func(v namespaceVersion) bool { return !v.allows(&put.Action) })
	if len(versions) == 0 {
		what := "has no record"
		if all := j.versions[ch.ref.Namespace]; all[len(all)-1].record != nil {
			what = "does not allow " + access.Forbidden(all[len(all)-1].record, &put.Action)
		}
		j.breachTask("G29", ch.ref, r.tick, put.key, "run %s is dispatched at %s, although namespace %s %s", ch.id, formatTime(put.DispatchedAt.Time), ch.ref.Namespace, what)
		return
	}

	announced := task.Node{Name: put.node, Labels: j.cluster.nodes[put.node].labels}
	for _, t := range j.tables {
		if t.until != 0 && t.until < j.since(put.DispatchedAt) {
			continue
		}

		n := t.table.LimitNode(announced)
		if slices.ContainsFunc(versions, func(v namespaceVersion) bool { return v.accepts(n) }) {
			return
		}
	}

	j.breachTask("G29", ch.ref, r.tick, put.key, "run %s is assigned to node %s at %s, which may not run tasks of namespace %s; it announces %v",
		ch.id, put.node, formatTime(put.DispatchedAt.Time), ch.ref.Namespace, announced.Labels)
}

// checkSelector checks that the node of a new attempt matches the selector of its task. A request may name another node, and
// the nodes of a run's parts are chosen once.
func (j *namespaceJudge) checkSelector(ch *runChange, r *runHistory, put inboxPut, text string) {
	selector, err := task.ParseSelector(text)
	if err != nil || selector.Compares() || put.TargetNode != "" || r.isPart() {
		return
	}

	announced := task.Node{Name: put.node, Labels: j.cluster.nodes[put.node].labels}
	for _, t := range j.tables {
		if t.until != 0 && t.until < j.since(put.DispatchedAt) {
			continue
		}
		if selector.Matches(t.table.LimitNode(announced).Labels) {
			return
		}
	}

	j.breachTask("G29", ch.ref, r.tick, put.key, "run %s is assigned to node %s, which does not match its selector %q; it announces %v",
		ch.id, put.node, text, announced.Labels)
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

// applyRecords applies changes of the records of namespaces, and of the limits of nodes. Their time is that of the audit
// record of the change.
func (j *namespaceJudge) applyRecords(events []Event) {
	var namespaces, limits []Event
	at := j.latest

	for _, ev := range events {
		switch {
		case strings.HasPrefix(ev.Key, j.keys.Namespaces()):
			namespaces = append(namespaces, ev)
			if n, err := record.Decode[task.Namespace](ev.Value); err == nil {
				at = max(at, unixMS(n.UpdatedAt))
			}
		case strings.HasPrefix(ev.Key, j.keys.NodeLimits()):
			limits = append(limits, ev)
		case strings.HasPrefix(ev.Key, j.keys.AuditRecords()) && !ev.Deleted:
			if a, err := record.Decode[task.AuditRecord](ev.Value); err == nil {
				at = max(at, unixMS(a.Time))
			}
		}
	}

	if len(namespaces)+len(limits) == 0 {
		return
	}
	j.latest = max(at, 1)

	for _, ev := range namespaces {
		j.applyNamespace(ev)
	}
	if len(limits) > 0 {
		j.applyLimits(limits)
	}
}

func (j *namespaceJudge) applyNamespace(ev Event) {
	v := namespaceVersion{}
	if n, err := record.Decode[task.Namespace](ev.Value); !ev.Deleted && err == nil {
		v.record = &n
	}

	name := strings.TrimPrefix(ev.Key, j.keys.Namespaces())
	versions := j.versions[name]
	if n := len(versions); n > 0 {
		versions[n-1].until = j.latest
	}

	versions = slices.DeleteFunc(versions, func(v namespaceVersion) bool { return v.until < j.old() })
	j.versions[name] = append(versions, v)
}

func (j *namespaceJudge) applyLimits(events []Event) {
	for _, ev := range events {
		name := strings.TrimPrefix(ev.Key, j.keys.NodeLimits())
		if ev.Deleted {
			delete(j.limits, name)
			continue
		}

		l, _ := record.Decode[task.NodeLimit](ev.Value) // one that cannot be read allows no labels
		l.Name = name
		j.limits[name] = l
	}

	table, _ := access.Compile(access.Records{NodeLimits: slices.Collect(maps.Values(j.limits))})
	j.tables[len(j.tables)-1].until = j.latest
	j.tables = append(slices.DeleteFunc(j.tables, func(t limitsVersion) bool { return t.until < j.old() }), limitsVersion{table: table})
}

// old returns, in ms, the end of the period whose records no owner can use any more, whatever its clock shows.
func (j *namespaceJudge) old() int64 {
	return j.latest - 10*(namespaceLag.Milliseconds()+j.opts.Skew.Milliseconds())
}

// freezeJudge judges that nothing frozen starts, and that no other tick is skipped with that reason (G21). It
// judges nothing while the freeze record cannot be read.
type freezeJudge struct{ judge }

// checkDecision judges the decision of a tick (G21). A frozen tick does not become a run. A tick that is not frozen
// is not skipped as frozen, unless the freeze ends in this very revision.
func (j *freezeJudge) checkDecision(d *delta, ch *runChange, r *runHistory, rec *task.Run, key string) {
	z := j.cluster.freezes.Of(ch.ref.Namespace)
	switch {
	case j.cluster.freezes.unreadable:
	case z != nil && !rec.State.Final():
		j.breachTask("G21", ch.ref, r.tick, key, "run %s is created, although %s has been frozen since %s", ch.id, frozenScope(z), formatTime(z.Since.Time))
	case z == nil && d.freezes == nil && rec.State == task.Skipped && rec.Reason == task.ReasonFrozen:
		j.breachTask("G21", ch.ref, r.tick, key, "run %s is skipped as frozen, but nothing is frozen", ch.id)
	}
}

// checkDispatch checks that no attempt of a frozen task is dispatched (G21).
func (j *freezeJudge) checkDispatch(d *delta, ch *runChange, r *runHistory, put inboxPut) {
	z := j.cluster.freezes.Of(ch.ref.Namespace)
	if z == nil && d.freezes != nil && !d.freezes.unreadable {
		// A commit compares the freeze record, so it never shares a revision with a change of it.
		z = d.freezes.Of(ch.ref.Namespace)
	}

	if z != nil && !j.cluster.freezes.unreadable {
		j.breachTask("G21", ch.ref, r.tick, put.key, "run %s is dispatched, although %s has been frozen since %s", ch.id, frozenScope(z), formatTime(z.Since.Time))
	}
}

// checkStart checks that a node that has confirmed a freeze starts nothing while the freeze holds (G21). It
// compares times of the node's own clock, which may have been corrected by up to Options.Skew in between, and ignores
// those of Options.WrongClocks.
func (j *freezeJudge) checkStart(ch *runChange, r *runHistory, node string, started task.Time, key string) {
	z, n := j.cluster.freezes.Of(ch.ref.Namespace), j.cluster.nodes[node]
	if z == nil || j.cluster.freezes.unreadable || started.IsZero() || n.freezesObeyed < j.cluster.freezes.mod || n.freezesObeyedAt == 0 {
		return
	}

	if j.opts.wrongClock(node, started.Time) || j.opts.wrongClock(node, timeOfMS(n.freezesObeyedAt)) {
		return
	}

	if unixMS(started) > n.freezesObeyedAt+j.opts.Skew.Milliseconds() && started.After(z.Since.Time) {
		j.breachTask("G21", ch.ref, r.tick, key, "run %s started at %s on node %s, which had confirmed the freeze at %s (freeze of %s)",
			ch.id, formatTime(started.Time), node, formatTime(timeOfMS(n.freezesObeyedAt)), frozenScope(z))
	}
}

// frozenScope names what a freeze covers, for messages.
func frozenScope(z *task.Freeze) string {
	if z.Namespace == "" {
		return "the cluster"
	}
	return "namespace " + z.Namespace
}
