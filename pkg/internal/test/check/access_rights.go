package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// authorizationLag is how long before the time of its audit record a write was authorised at most. Ends by time are judged
// that much earlier.
const authorizationLag = 100 * time.Millisecond

// checkRights checks that the access records allowed a caller what its audit record says (G27).
func (j *accessJudge) checkRights(t *access.Table, a *task.AuditRecord, key string, needs []access.Need) {
	breach := func(format string, args ...any) {
		j.addViolation("G27", key, "%s by %s: %s", a.Operation, a.Subject, fmt.Sprintf(format, args...))
	}

	at := a.Time.Add(-authorizationLag)
	caller := access.Caller{Subject: a.Subject, Token: a.Token}
	if a.Token == "" && strings.HasPrefix(a.Subject, access.KindUnix+":") {
		caller = access.Caller{Subject: access.RootSubject}
	}

	if caller.Token != "" {
		token, exists := t.Token(caller.Token)
		switch {
		case !exists:
			breach("its token %s does not exist", caller.Token)
			return
		case token.Subject != caller.Subject:
			breach("its token %s is one of %s", caller.Token, token.Subject)
			return
		case !token.Until.IsZero() && !at.Before(token.Until.Time):
			breach("its token %s had expired at %s", caller.Token, formatTime(token.Until.Time))
			return
		}

		if fault := faultOfParent(t, &token, at); fault != "" {
			breach("%s", fault)
			return
		}
	}

	switch {
	case t.Disabled(caller.Subject):
		breach("the subject is disabled")
		return
	case caller.Subject != access.RootSubject && !sessionOperations[a.Operation] && !loginOperations[a.Operation] && !holdsLiveBinding(t, subjectsOf(t, caller), at):
		breach("no binding that lasts names the subject")
		return
	}

	for _, need := range needs {
		if !t.Allows(caller, need, at) {
			where := need.Namespace
			if where == "" {
				where = "the cluster"
			}

			breach("it may not %s %s in %s (labels %v)", need.Verb, need.Kind, where, need.Labels)
			return
		}
	}
}

// subjectsOf returns the subject of a caller, and the groups of the caller's session.
func subjectsOf(t *access.Table, caller access.Caller) []string {
	token, _ := t.Token(caller.Token)
	return append([]string{caller.Subject}, token.Groups...)
}

// holdsLiveBinding reports whether a binding that has not ended, of a role that exists, names one of some subjects.
func holdsLiveBinding(t *access.Table, subjects []string, at time.Time) bool {
	return slices.ContainsFunc(t.Bindings(), func(b task.Binding) bool {
		named := slices.ContainsFunc(b.Subjects, func(s string) bool { return slices.Contains(subjects, s) })
		role, exists := t.Role(b.Role)

		return named && exists && role.UID == b.RoleUID && (b.Until.IsZero() || at.Before(b.Until.Time))
	})
}

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

// needOfObject returns what an operation needs on an object. The labels of a run and of an alert are those of its task.
func (j *accessJudge) needOfObject(op operation, o task.AuditObject) access.Need {
	need := access.Need{Verb: op.Verb, Kind: op.Kind}
	if op.Kind.OfCluster() {
		return need
	}

	need.Namespace = o.Namespace
	name, _, _ := strings.Cut(o.Name, ":") // that of an alert is TASK:KIND
	if spec := j.specBefore(record.Ref{Namespace: o.Namespace, Name: name}); spec != nil && op.Kind.Labelled() {
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

// operation is an operation of the API that writes, and what it needs at least, as its route declares it. Verb 0 leaves
// that to the change.
type operation struct {
	Route string // method and path
	Verb  access.Verb
	Kind  access.Kind
}

// operations are the operations that audit records name. The checker has its own table, so that a mistake in the
// routes of the API is not also one of the checker.
var operations = map[string]operation{
	"apply-tasks":   {Route: "POST /v1/tasks:batch"},
	"create-task":   {"POST /v1/namespaces/{ns}/tasks", access.Create, access.Tasks},
	"apply-task":    {Route: "PUT /v1/namespaces/{ns}/tasks/{name}"},
	"update-task":   {Route: "PATCH /v1/namespaces/{ns}/tasks/{name}"},
	"delete-task":   {"DELETE /v1/namespaces/{ns}/tasks/{name}", access.Delete, access.Tasks},
	"undelete-task": {"POST /v1/namespaces/{ns}/tasks/{name}/undelete", access.Create, access.Tasks},
	"pause-task":    {"POST /v1/namespaces/{ns}/tasks/{name}/pause", access.Pause, access.Tasks},
	"resume-task":   {"POST /v1/namespaces/{ns}/tasks/{name}/resume", access.Pause, access.Tasks},
	"rollback-task": {Route: "POST /v1/namespaces/{ns}/tasks/{name}/rollback"},
	"trigger-task":  {"POST /v1/namespaces/{ns}/tasks/{name}/trigger", access.Trigger, access.Tasks},

	"cancel-run":  {"POST /v1/namespaces/{ns}/tasks/{name}/runs/{id}/cancel", access.Cancel, access.Runs},
	"pause-run":   {"POST /v1/namespaces/{ns}/tasks/{name}/runs/{id}/pause", access.Pause, access.Runs},
	"resume-run":  {"POST /v1/namespaces/{ns}/tasks/{name}/runs/{id}/resume", access.Pause, access.Runs},
	"retry-run":   {"POST /v1/namespaces/{ns}/tasks/{name}/runs/{id}/retry", access.Retry, access.Runs},
	"rerun-run":   {"POST /v1/namespaces/{ns}/tasks/{name}/runs/{id}/rerun", access.Trigger, access.Tasks},
	"dismiss-run": {"POST /v1/namespaces/{ns}/tasks/{name}/runs/{id}/dismiss", access.Retry, access.Runs},

	"acknowledge-alert":         {"POST /v1/namespaces/{ns}/tasks/{name}/alerts/{kind}/acknowledge", access.Retry, access.Runs},
	"acknowledge-cluster-alert": {"POST /v1/cluster/alerts/{code}/acknowledge", access.Operate, access.Cluster},
	"create-silence":            {"POST /v1/namespaces/{ns}/silences", access.Pause, access.Tasks},
	"end-silence":               {"DELETE /v1/namespaces/{ns}/silences/{silence}", access.Pause, access.Tasks},
	"set-alert-rule":            {"PUT /v1/namespaces/{ns}/alert-rules/{rule}", access.Update, access.Tasks},
	"delete-alert-rule":         {"DELETE /v1/namespaces/{ns}/alert-rules/{rule}", access.Update, access.Tasks},
	"test-receiver":             {"POST /v1/namespaces/{ns}/tasks/{name}/test", access.Update, access.Tasks},

	"set-secret":    {"PUT /v1/namespaces/{ns}/secrets/{name}", access.Set, access.Secrets},
	"rotate-secret": {"POST /v1/namespaces/{ns}/secrets/{name}/rotate", access.Set, access.Secrets},
	"delete-secret": {"DELETE /v1/namespaces/{ns}/secrets/{name}", access.Delete, access.Secrets},

	"drain-node":  {"POST /v1/nodes/{node}/drain", access.Operate, access.Nodes},
	"cordon-node": {"POST /v1/nodes/{node}/cordon", access.Operate, access.Nodes},
	"resume-node": {"POST /v1/nodes/{node}/resume", access.Operate, access.Nodes},

	"set-cluster":        {"PATCH /v1/cluster", access.Operate, access.Cluster},
	"recover-cluster":    {"POST /v1/cluster/recover", access.Operate, access.Cluster},
	"set-format":         {"PUT /v1/cluster/format", access.Operate, access.Cluster},
	"freeze":             {"PUT /v1/cluster/freeze", access.Operate, access.Cluster},
	"unfreeze":           {"DELETE /v1/cluster/freeze", access.Operate, access.Cluster},
	"freeze-namespace":   {"PUT /v1/namespaces/{ns}/freeze", access.Pause, access.Tasks},
	"unfreeze-namespace": {"DELETE /v1/namespaces/{ns}/freeze", access.Pause, access.Tasks},
	"add-member":         {"POST /v1/cluster/members", access.Operate, access.Cluster},
	"remove-member":      {"DELETE /v1/cluster/members/{member}", access.Operate, access.Cluster},
	"repair":             {"POST /v1/audit:repair", access.Operate, access.Cluster},

	// What these need follows from the record that they change.
	"set-role":          {Route: "PUT /v1/roles/{role}"},
	"delete-role":       {Route: "DELETE /v1/roles/{role}"},
	"set-binding":       {Route: "PUT /v1/bindings/{binding}"},
	"delete-binding":    {Route: "DELETE /v1/bindings/{binding}"},
	"set-namespace":     {Route: "PUT /v1/namespaces/{ns}"},
	"delete-namespace":  {Route: "DELETE /v1/namespaces/{ns}"},
	"set-node-limit":    {Route: "PUT /v1/node-limits/{limit}"},
	"delete-node-limit": {Route: "DELETE /v1/node-limits/{limit}"},
	"create-token":      {Route: "POST /v1/tokens"},
	"delete-token":      {Route: "DELETE /v1/tokens/{token}"},
	"create-session":    {Route: "POST /v1/sessions"},
	"delete-session":    {Route: "DELETE /v1/sessions/current"},
	"create-login-link": {Route: "POST /v1/login-links"},
	"use-login-link":    {Route: "POST /v1/login-links:use"},
	"finish-web-login":  {Route: "POST /v1/login/web:finish"},
	"poll-device-login": {Route: "POST /v1/login/device:poll"},
	"disable-subject":   {Route: "POST /v1/subjects/{subject}/disable"},
	"enable-subject":    {Route: "POST /v1/subjects/{subject}/enable"},
	"reset-access":      {Route: "POST /v1/access/reset"},
}

// needsOfRead returns what a read that an audit record describes needs: the right to read the output of each run.
func (j *accessJudge) needsOfRead(a *task.AuditRecord) []access.Need {
	var needs []access.Need
	for _, o := range a.Objects {
		needs = append(needs, j.needOfObject(operation{Verb: access.Output, Kind: access.Runs}, o))
	}

	return needs
}
