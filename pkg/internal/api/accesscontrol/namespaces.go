package accesscontrol

import (
	"context"
	"fmt"
	"net/http"
	"os/user"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// namespaceHandlers serve the records of namespaces.
type namespaceHandlers struct {
	resource[task.Namespace]
	maxScanned int // how many tasks one request reads at most to find those that a change forbids
}

func newNamespaceHandlers(r *records, maxScanned int) *namespaceHandlers {
	h := &namespaceHandlers{maxScanned: maxScanned}
	h.resource = resource[task.Namespace]{
		records: r, what: "namespace", object: "namespace", param: "ns",
		fields: func(n *task.Namespace) serverFields {
			return serverFields{&n.Name, nil, &n.CreatedAt, &n.UpdatedAt, &n.CreatedBy, &n.UpdatedBy, &n.Revision}
		},
		find: findNamespace, all: allNamespaces, canSee: h.canSeeNamespace, missing: httpapi.NoNamespace,
		check: access.CheckNamespace, mayWrite: h.mayWriteNamespace,
		put: (*store.Store).PutNamespace, remove: h.removeNamespace,
	}

	return h
}

const setNSAbout = "Tasks of the namespace may use only what the record lists. The answer names the tasks that it no longer allows: their runs fail until the tasks are changed."

// Routes returns the operations on the records of namespaces.
func (h *namespaceHandlers) Routes() []*httpapi.Operation {
	ns := reflect.TypeFor[task.Namespace]()

	return []*httpapi.Operation{
		{ID: "list-namespaces", Method: http.MethodGet, Path: "/v1/namespaces", Tag: "access", Summary: "List the namespaces that you may read",
			Description: "They are in the order of their names.",
			Status:      200, Answer: reflect.TypeFor[client.List[task.Namespace]](), Handler: httpapi.Query(h.listAll)},
		{ID: "get-namespace", Method: http.MethodGet, Path: httpapi.InNamespace, Tag: "access", Summary: "Read the record of a namespace: what its tasks may use",
			Description: "The record says which users, groups, hosts and kinds of actions the tasks of the namespace may use. Everybody who may read the tasks of the namespace may read it.",
			Status:      200, Answer: ns, Tagged: true, Revalidated: true, Handler: httpapi.NoQuery(h.get)},
		{ID: "set-namespace", Method: http.MethodPut, Path: httpapi.InNamespace, Tag: "access", Summary: "Create or replace the record of a namespace", Description: setNSAbout + dryRunAbout,
			Body: jsonBody(ns), Conditional: true, Creates: true, Writes: true, Status: 200, Answer: reflect.TypeFor[client.NamespaceChange](), Tagged: true, Errors: []int{409, 429},
			Handler: httpapi.Query(h.setNamespace)},
		{ID: "delete-namespace", Verb: access.Delete, Kind: access.Namespaces, Method: http.MethodDelete, Path: httpapi.InNamespace, Tag: "access", Summary: "Delete the record of a namespace that has neither tasks nor secrets",
			Description: "The answer is 409 with the code not_empty while it has any.",
			Conditional: true, Writes: true, Status: 204, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.delete)},
	}
}

const (
	// maxForbidden is the maximum number of tasks that the answer to a change of a namespace names.
	maxForbidden = 20
	// tasksPerRead is the number of tasks that are read at once to find them.
	tasksPerRead = 500
)

// findNamespace returns the record of a namespace.
func findNamespace(v *authority.View, name string) (task.Namespace, bool) {
	n := v.Namespace(name)
	if n == nil {
		return task.Namespace{}, false
	}

	return *n, true
}

// allNamespaces returns the records of all namespaces.
func allNamespaces(v *authority.View) []task.Namespace {
	var list []task.Namespace
	for _, name := range v.Namespaces() {
		list = append(list, *v.Namespace(name))
	}

	return list
}

// canSeeNamespace reports whether the caller may read the record of a namespace.
func (h *namespaceHandlers) canSeeNamespace(c *httpapi.Call, v *authority.View, n *task.Namespace) bool {
	return h.callerMay(c, v, access.Read, access.Tasks, n.Name) || h.callerMay(c, v, access.Read, access.Namespaces, "")
}

// mayWriteNamespace refuses callers who may not make a change.
func (h *namespaceHandlers) mayWriteNamespace(c *httpapi.Call, v *authority.View, rights *httpapi.Rights, before, after *task.Namespace) error {
	verb := access.Update
	switch {
	case after == nil:
		verb = access.Delete
	case before == nil:
		verb = access.Create
	case !h.callerMay(c, v, access.Update, access.Namespaces, "") && !h.callerMay(c, v, access.Create, access.Namespaces, ""):
		verb = access.Create // the answer must not depend on whether the namespace exists
	}

	return rights.Require(access.Need{Verb: verb, Kind: access.Namespaces})
}

// setNamespace serves writes of the record of a namespace.
func (h *namespaceHandlers) setNamespace(c *httpapi.Call, q dryRunQuery) (httpapi.Answer, error) {
	n, dry, err := h.set(c, q.DryRun)
	if err != nil {
		return httpapi.Answer{}, err
	}

	change := client.NamespaceChange{Namespace: n, DryRun: dry}
	if change.WarningDetails = warnRootUsers(c.Context(), n.RunAs, hostGroupsOf); len(change.WarningDetails) > 0 {
		change.Warnings = task.WarningTexts(change.WarningDetails)
	}
	// Only to a caller who may read the tasks: the right to change limits does not include it.
	if c.Rights().CanRead(n.Name) {
		h.findForbidden(c.Context(), &change)
	}

	return answerRecord(change, n.Revision)
}

// findForbidden adds the tasks that the record of their namespace no longer allows. The record has been written, unless this
// is a dry run, so an error only makes the list incomplete.
func (h *namespaceHandlers) findForbidden(ctx context.Context, change *client.NamespaceChange) {
	after := ""
	for {
		if change.Checked >= h.maxScanned {
			change.Incomplete = true
			return
		}

		tasks, next, err := h.store.Tasks(ctx, change.Name, after, tasksPerRead)
		if err != nil {
			change.Incomplete = true
			return
		}

		for i := range tasks {
			change.Checked++
			err := access.CheckTask(&change.Namespace, &tasks[i].Spec)
			if err == nil {
				continue
			}

			if change.ForbiddenCount++; len(change.Forbidden) < maxForbidden {
				change.Forbidden = append(change.Forbidden, client.ForbiddenTask{Name: tasks[i].Name, Reason: err.Error()})
			}
		}

		if after = next; after == "" {
			return
		}
	}
}

// removeNamespace deletes the record of a namespace that is empty, not frozen, and that no binding or token names.
func (h *namespaceHandlers) removeNamespace(c *httpapi.Call, rights *httpapi.Rights, n *task.Namespace) error {
	if err := rights.Check(func(v *authority.View) error { return unnamedNamespace(v, n.Name, h.now()) }); err != nil {
		return err
	}
	if err := h.checkEmpty(c.Context(), n.Name); err != nil {
		return err
	}

	freezes, err := h.findNoFreeze(c.Context(), n.Name)
	if err != nil {
		return err
	}

	return h.store.As(rights).DeleteNamespace(c.Context(), n.Name, n.Revision, freezes, h.now())
}

// checkEmpty returns an error that says what a namespace contains. The deletion compares that it is empty all the same.
func (h *namespaceHandlers) checkEmpty(ctx context.Context, name string) error {
	tasks, err := h.store.CountTasks(ctx, name)
	if err != nil {
		return err
	}
	if tasks > 0 {
		return httpapi.Fail(http.StatusConflict, client.CodeNotEmpty, "namespace %s has %s", name, wording.Plural(int64(tasks), "task")).WithHint("delete its tasks first")
	}

	secrets, err := h.store.CountSecrets(ctx, name)
	if err != nil {
		return err
	}
	if secrets > 0 {
		return httpapi.Fail(http.StatusConflict, client.CodeNotEmpty, "namespace %s has %s, including those deleted in the last week", name, wording.Plural(int64(secrets), "secret")).
			WithHint("delete its secrets first; the tombstone of a deleted secret is removed after a week")
	}

	return nil
}

// findNoFreeze returns the record of freezes, which contains none of exactly this namespace. Otherwise it returns an
// error: the freeze would stop the tasks of a namespace that is created later with the same name.
func (h *namespaceHandlers) findNoFreeze(ctx context.Context, name string) (store.FreezeRecord, error) {
	r, err := h.store.Freezes(ctx)
	if err != nil {
		return r, err
	}

	if slices.ContainsFunc(r.Holding, func(f task.Freeze) bool { return f.Namespace == name }) {
		return r, httpapi.Fail(http.StatusConflict, client.CodeInUse, "namespace %s is frozen", name).
			WithHint("end its freeze first: carillon cluster unfreeze --namespace " + name)
	}

	return r, nil
}

// unnamedNamespace returns an error if a binding, or the scope of a token that has not expired, names exactly this
// namespace: it would apply to a namespace that is created later with the same name.
func unnamedNamespace(v *authority.View, name string, now time.Time) error {
	var bindings, tokens []string
	for _, b := range v.Bindings() {
		if slices.Contains(b.Namespaces, name) {
			bindings = append(bindings, b.Name)
		}
	}
	for _, t := range v.Tokens() {
		if t.Kind == task.TokenKindToken && slices.Contains(scopeNamespaces(&t), name) && (t.Until.IsZero() || now.Before(t.Until.Time)) {
			tokens = append(tokens, t.ID)
		}
	}

	switch {
	case len(bindings) > 0:
		return httpapi.Fail(http.StatusConflict, client.CodeInUse, "bindings name namespace %s: %s", name, joinFirst(bindings)).
			WithHint("delete or change them first; otherwise they would apply to a new namespace with this name")
	case len(tokens) > 0:
		return httpapi.Fail(http.StatusConflict, client.CodeInUse, "the scopes of tokens name namespace %s: %s", name, joinFirst(tokens)).
			WithHint("delete them first; otherwise they would apply to a new namespace with this name")
	}

	return nil
}

// joinFirst lists the first few names, and how many others there are.
func joinFirst(names []string) string {
	const most = 5
	if len(names) > most {
		names = append(names[:most:most], fmt.Sprintf("%d others", len(names)-most))
	}

	return strings.Join(names, ", ")
}

// userLookupTimeout limits how long a change of a namespace waits for the user database of this host.
const userLookupTimeout = 2 * time.Second

// warnRootUsers returns a warning for each entry of run_as that is a member of a group whose members are root in effect
// (task.IsRootGroup). groupsOf returns the names of a user's groups, and none for root and for users that this host does
// not know. Other hosts may have other members, so no warning does not mean that there are none.
func warnRootUsers(ctx context.Context, runAs []string, groupsOf func(name string) []string) []task.Warning {
	ctx, cancel := context.WithTimeout(ctx, userLookupTimeout)
	defer cancel()

	// A user database on the network may not answer.
	found, panicked := make(chan []task.Warning, 1), make(chan *callgroup.Panic, 1)
	callgroup.Start(func() {
		var list []task.Warning
		for _, name := range runAs {
			if ctx.Err() != nil {
				return
			}

			var groups []string
			for _, g := range groupsOf(name) {
				if task.IsRootGroup(g) {
					groups = append(groups, g)
				}
			}

			if len(groups) > 0 {
				list = append(list, rootUserWarning(name, groups))
			}
		}
		found <- list
	}, func(p *callgroup.Panic) { panicked <- p })

	select {
	case list := <-found:
		return list
	case p := <-panicked:
		panic(p) // it ends the request
	case <-ctx.Done():
		return nil
	}
}

// rootUserWarning is the warning about one user.
func rootUserWarning(name string, groups []string) task.Warning {
	text := fmt.Sprintf("run_as: on this host, user %s is in the group %s, so tasks of the namespace can become root", task.Quote(name), strings.Join(groups, ", "))
	if len(groups) == 1 && groups[0] == task.AdminGroup {
		text = fmt.Sprintf("run_as: on this host, user %s is in the group %s, whose members administer the cluster. Tasks do not get this group, "+
			"but what else runs as this user has it, such as its cron jobs, which a task can change", task.Quote(name), task.AdminGroup)
	}

	return task.Warning{Code: task.WarnRootUser, Text: text}
}

// hostGroupsOf returns the names of a user's groups, by the user database of this host.
func hostGroupsOf(name string) []string {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return nil
		}
	}
	if u.Uid == "0" {
		return nil // listing root is deliberate
	}

	ids, err := u.GroupIds()
	if err != nil {
		return nil
	}

	var names []string
	for _, id := range ids {
		if g, err := user.LookupGroupId(id); err == nil {
			names = append(names, g.Name)
		}
	}

	return names
}
