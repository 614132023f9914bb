package accesscontrol

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// bindingHandlers serve bindings.
type bindingHandlers struct {
	resource[task.Binding]
}

func newBindingHandlers(r *records) *bindingHandlers {
	h := &bindingHandlers{}
	h.resource = resource[task.Binding]{
		records: r, what: "binding", object: "binding", param: "binding",
		fields: func(b *task.Binding) serverFields {
			return serverFields{&b.Name, nil, &b.CreatedAt, &b.UpdatedAt, &b.CreatedBy, &b.UpdatedBy, &b.Revision}
		},
		find: (*authority.View).Binding, all: (*authority.View).Bindings, mayRead: r.requireReadBindings, canSee: h.canSeeBinding,
		check: h.checkBinding, mayWrite: h.mayWriteBinding, checkCount: h.checkBindingCount, covers: h.coversBinding, namespaces: namespacesOfBindings,
		put: (*store.Store).PutBinding, remove: h.removeBinding,
	}

	return h
}

const (
	setBindAbout = "Requires grant on the bindings of each namespace of the binding, before and after the change, or on access if it applies to the cluster. " +
		"You must hold all rights that it gives, for at least as long. " +
		"A name with a dot is the namespace of the binding, a dot, and a name without dots; of a prefix such as team-*, team--.NAME. Without grant on access, you can create only bindings with such names."
	listBindAbout = "Lists the bindings of namespaces whose bindings you may read, and those of the cluster if you may read access."
)

// Routes returns the operations on bindings.
func (h *bindingHandlers) Routes() []*httpapi.Operation {
	binding := reflect.TypeFor[task.Binding]()

	return []*httpapi.Operation{
		{ID: "list-bindings", Method: http.MethodGet, Path: "/v1/bindings", Tag: "access", Summary: "List the bindings that you may see", Description: listBindAbout,
			Status: 200, Answer: reflect.TypeFor[client.List[task.Binding]](), Handler: httpapi.Query(h.listBindings)},
		{ID: "get-binding", Method: http.MethodGet, Path: "/v1/bindings/{binding}", Tag: "access", Summary: "Read a binding",
			Description: "A binding gives a role to subjects, in the cluster or in some namespaces. You see it if you may read bindings where it applies.",
			Status:      200, Answer: binding, Tagged: true, Revalidated: true, Handler: httpapi.NoQuery(h.get)},
		{ID: "set-binding", Method: http.MethodPut, Path: "/v1/bindings/{binding}", Tag: "access", Summary: "Create or replace a binding", Description: setBindAbout,
			Body: jsonBody(binding), Conditional: true, Creates: true, Writes: true, Status: 200, Answer: binding, Tagged: true, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.setBinding)},
		{ID: "delete-binding", Method: http.MethodDelete, Path: "/v1/bindings/{binding}", Tag: "access", Summary: "Delete a binding",
			Description: "The subjects of the binding lose its rights at once: no change that depends on them is made afterwards. The last administrator of the cluster cannot be removed.",
			Conditional: true, Writes: true, Status: 204, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.delete)},
	}
}

// bindingQuery are the parameters of the list of bindings.
type bindingQuery struct {
	Subject string `query:"subject" doc:"Only bindings that name this subject."`
	httpapi.PageQuery
}

// needsOfBinding returns what is needed to read (access.Read) or write (access.Grant) a binding.
func needsOfBinding(verb access.Verb, b *task.Binding) []access.Need {
	if b.Cluster || len(b.Namespaces) == 0 {
		return []access.Need{{Verb: verb, Kind: access.Access}}
	}

	var needs []access.Need
	for _, ns := range b.Namespaces {
		needs = append(needs, access.Need{Verb: verb, Kind: access.Bindings, Namespace: ns})
	}

	return needs
}

// canSeeBinding reports whether the caller may read a binding: all of it, so that it does not tell the names of other
// namespaces.
func (h *bindingHandlers) canSeeBinding(c *httpapi.Call, v *authority.View, b *task.Binding) bool {
	for _, need := range needsOfBinding(access.Read, b) {
		if !v.Allows(caller(c), need, h.now()) {
			return false
		}
	}

	return true
}

// namespacesOfBindings returns the namespaces that decide who may see the audit record of a change: those of both versions
// of the binding, and none if one of them applies to the cluster.
func namespacesOfBindings(before, after *task.Binding) []string {
	var list []string
	for _, b := range []*task.Binding{before, after} {
		switch {
		case b == nil:
		case b.Cluster:
			return nil
		default:
			list = append(list, b.Namespaces...)
		}
	}

	slices.Sort(list)

	return slices.Compact(list)
}

// listBindings serves the bindings that the caller may see.
func (h *bindingHandlers) listBindings(c *httpapi.Call, q bindingQuery) (httpapi.Answer, error) {
	return h.list(c, q.PageQuery, func(b *task.Binding) bool { return q.Subject == "" || slices.Contains(b.Subjects, q.Subject) })
}

// setBinding serves writes of a binding.
func (h *bindingHandlers) setBinding(c *httpapi.Call) (httpapi.Answer, error) {
	b, _, err := h.set(c, false)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return answerRecord(b, b.Revision)
}

// checkBinding checks a binding in a request.
func (h *bindingHandlers) checkBinding(b *task.Binding) error {
	if err := access.CheckBinding(b); err != nil {
		return err
	}

	return access.CheckEnd("until", b.Until, h.now())
}

// mayWriteBinding refuses callers who may not change a binding, as it was and as it will be, and sets the uid of its role.
func (h *bindingHandlers) mayWriteBinding(c *httpapi.Call, v *authority.View, rights *httpapi.Rights, before, after *task.Binding) error {
	if after == nil {
		if err := h.requireRead(c, v, rights, c.Request.PathValue(h.param), before); err != nil {
			return err
		}

		return rights.Require(needsOfBinding(access.Grant, before)...)
	}

	if err := rights.Require(needsOfBinding(access.Grant, after)...); err != nil {
		return err
	}

	// Names without a scope are common to all namespaces. Their answers must not differ between names that are free and
	// those that are taken by bindings that the caller may not see.
	isSeen := before != nil && h.canSeeBinding(c, v, before)
	if !access.NameIsScoped(after) && !h.callerMay(c, v, access.Grant, access.Access, "") && !isSeen {
		return unscopedName(after)
	}
	if before != nil && !isSeen {
		return httpapi.Fail(http.StatusConflict, client.CodeExists, "the name %s is taken, by a binding that you may not read", after.Name).WithHint("choose another name")
	}

	if before != nil {
		if err := rights.Require(needsOfBinding(access.Grant, before)...); err != nil {
			return err
		}
	}

	var err error
	after.RoleUID, err = roleUID(v, "role", after.Role, after.RoleUID)

	return err
}

// coversBinding refuses a binding that gives more than the caller holds, or that leaves the cluster without an administrator.
func (h *bindingHandlers) coversBinding(c *httpapi.Call, rights *httpapi.Rights, after *task.Binding) error {
	b := *after
	if err := rights.Check(func(v *authority.View) error {
		excess, err := v.CoversBinding(caller(c), b, h.now())
		return refuseExcess(c, excess, err)
	}); err != nil {
		return err
	}

	rights.Because(b.Reason)

	return h.keepAdmin(rights, func(v *authority.View) bool { return v.LastAdminWith(h.now(), b) })
}

// unscopedName refuses a name that is not within the caller's namespaces.
func unscopedName(b *task.Binding) error {
	scope := access.NameScope(b.Namespaces)
	if scope == "" {
		return task.Invalid(task.CodeNotAllowed, "namespaces", "without grant on access, you can create only bindings of one namespace: create one for each")
	}

	return task.Invalid(task.CodeNotAllowed, "name", "%s: without grant on access, the name must begin with the binding's namespace and a dot, such as %s.%s", task.Quote(b.Name), scope, b.Name)
}

// roleUID returns the uid of a role. asked is the uid that the request names; "": the present one.
func roleUID(v *authority.View, field, role, asked string) (string, error) {
	r, ok := v.Role(role)
	switch {
	case !ok:
		return "", task.Invalid(task.CodeBadValue, field, "there is no role %s", task.Quote(role))
	case asked != "" && asked != r.UID:
		return "", task.Invalid(task.CodeBadValue, field+"_uid", "the role %s was deleted and created again since", task.Quote(role))
	}

	return r.UID, nil
}

// removeBinding deletes a binding, unless that leaves the cluster without an administrator.
func (h *bindingHandlers) removeBinding(c *httpapi.Call, rights *httpapi.Rights, b *task.Binding) error {
	dropped := func(what, name string) bool { return what == "binding" && name == b.Name }
	if err := h.keepAdmin(rights, func(v *authority.View) bool { return v.LastAdmin(h.now(), dropped) }); err != nil {
		return err
	}

	return h.store.As(rights).DeleteBinding(c.Context(), b.Name, b.Revision, h.now())
}

// Limits of roles and bindings. Every node that serves the API has all of them in memory, and compiles them again after
// each change.
const (
	// maxBindings is the maximum number of bindings in the cluster.
	maxBindings = 2000
	// reservedBindings is how many of them only administrators of the cluster can create. A caller who may grant rights can
	// create further subjects, each with its own maxCreated, and they must not keep an administrator from granting.
	reservedBindings = 200
)

// checkBindingCount refuses a new binding if the cluster has too many, or too many that the caller has created.
func (h *bindingHandlers) checkBindingCount(c *httpapi.Call, v *authority.View) error {
	n, rule := len(v.Bindings()), ""

	switch unreserved := maxBindings - reservedBindings; {
	case n >= maxBindings:
		rule = fmt.Sprintf("at most %d are allowed", maxBindings)
	case n >= unreserved && !v.Administers(caller(c), h.now()):
		rule = fmt.Sprintf("after %d, only an administrator of the cluster can create more", unreserved)
	default:
		return h.checkCreated(c, v)
	}

	return httpapi.Fail(http.StatusConflict, client.CodeConflict, "the cluster has %d bindings; %s", n, rule).
		WithHint("delete bindings that are no longer used")
}
