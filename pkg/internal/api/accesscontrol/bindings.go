package accesscontrol

import (
	"fmt"
	"iter"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/task"
)

// bindingHandlers serve bindings.
type bindingHandlers struct {
	*records
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
			Status: 200, Answer: binding, Tagged: true, Handler: httpapi.NoQuery(h.getBinding)},
		{ID: "set-binding", Method: http.MethodPut, Path: "/v1/bindings/{binding}", Tag: "access", Summary: "Create or replace a binding", Description: setBindAbout,
			Body: jsonBody(binding), Conditional: true, Creates: true, Writes: true, Status: 200, Answer: binding, Tagged: true, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.setBinding)},
		{ID: "delete-binding", Method: http.MethodDelete, Path: "/v1/bindings/{binding}", Tag: "access", Summary: "Delete a binding",
			Conditional: true, Writes: true, Status: 204, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.deleteBinding)},
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

// describeBinding returns what the audit record of a change says of a binding. before is nil for a new binding, and after
// for a deleted one. The namespaces decide who may see the record, so they are those of both.
func describeBinding(before, after *task.Binding) task.AuditObject {
	o := task.AuditObject{Kind: "binding", Changes: task.AccessChanges(before, after)}
	for _, b := range []*task.Binding{before, after} {
		if b == nil {
			continue
		}

		o.Name, o.Namespaces = b.Name, append(o.Namespaces, b.Namespaces...)
	}

	slices.Sort(o.Namespaces)
	o.Namespaces = slices.Compact(o.Namespaces)
	if before != nil && before.Cluster || after != nil && after.Cluster {
		o.Namespaces = nil
	}

	return o
}

// readBindings returns the records if the caller may read any binding.
func (h *bindingHandlers) readBindings(c *httpapi.Call) (*authority.View, error) {
	v, err := h.keeper.Current(c.Context())
	if err != nil {
		return nil, err
	}

	if !h.readsBindingsSomewhere(c, v) {
		if err := c.Rights().Require(access.Need{Verb: access.Read, Kind: access.Access}); err != nil {
			return nil, err
		}
	}

	return v, nil
}

// listBindings serves the bindings that the caller may see.
func (h *bindingHandlers) listBindings(c *httpapi.Call, q bindingQuery) (httpapi.Answer, error) {
	v, err := h.readBindings(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	var list []task.Binding
	for _, b := range v.Bindings() {
		if (q.Subject == "" || slices.Contains(b.Subjects, q.Subject)) && h.canSeeBinding(c, v, &b) {
			list = append(list, b)
		}
	}

	return pageOf(c, q.PageQuery, list, func(b task.Binding) string { return b.Name })
}

// getBinding serves one binding.
func (h *bindingHandlers) getBinding(c *httpapi.Call) (httpapi.Answer, error) {
	name, err := pathName(c, "binding")
	if err != nil {
		return httpapi.Answer{}, err
	}

	v, err := h.readBindings(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	b, ok := v.Binding(name)
	if !ok || !h.canSeeBinding(c, v, &b) {
		return httpapi.Answer{}, notFound("binding", name)
	}

	return answerRecord(b, b.Revision)
}

// setBinding serves writes of a binding.
func (h *bindingHandlers) setBinding(c *httpapi.Call) (httpapi.Answer, error) {
	var b task.Binding
	if err := c.Decode(&b); err != nil {
		return httpapi.Answer{}, err
	}
	if err := sameName(&b.Name, c.Request.PathValue("binding")); err != nil {
		return httpapi.Answer{}, err
	}
	if err := access.CheckBinding(&b); err != nil {
		return httpapi.Answer{}, err
	}
	if err := access.CheckEnd("until", b.Until, h.now()); err != nil {
		return httpapi.Answer{}, err
	}

	uid := b.RoleUID

	err := h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Require(needsOfBinding(access.Grant, &b)...); err != nil {
			return err
		}

		old, is := v.Binding(b.Name)

		// Names without a scope are common to all namespaces. Their answers must not differ between names that are free and
		// those that are taken by bindings that the caller may not see.
		if !access.NameIsScoped(&b) && !h.callerMay(c, v, access.Grant, access.Access, "") && !(is && h.canSeeBinding(c, v, &old)) {
			return unscopedName(&b)
		}
		if is && !h.canSeeBinding(c, v, &old) {
			return httpapi.Fail(http.StatusConflict, client.CodeExists, "the name %s is taken, by a binding that you may not read", b.Name).WithHint("choose another name")
		}
		if err := checkConditions(c, "binding", b.Name, old.Revision); err != nil {
			return err
		}
		if is {
			if err := rights.Require(needsOfBinding(access.Grant, &old)...); err != nil {
				return err
			}
		}

		if !is {
			if err := h.checkBindingCount(c, v); err != nil {
				return err
			}
			if err := h.checkCreated(c, v, "bindings", creators(v.Bindings(), func(b task.Binding) string { return b.CreatedBy })); err != nil {
				return err
			}
		}

		var err error
		if b.RoleUID, err = roleUID(v, "role", b.Role, uid); err != nil {
			return err
		}

		now := h.now.Stamp()
		b.CreatedAt, b.CreatedBy, b.UpdatedAt, b.UpdatedBy, b.Revision = old.CreatedAt, old.CreatedBy, old.UpdatedAt, old.UpdatedBy, old.Revision
		if is && reflect.DeepEqual(b, old) {
			return nil
		}

		if !is {
			b.CreatedAt, b.CreatedBy = now, c.Actor()
		}
		b.UpdatedAt, b.UpdatedBy = now, c.Actor()

		if err := rights.Check(func(v *authority.View) error {
			excess, err := v.CoversBinding(caller(c), b, h.now())
			return refuseExcess(c, excess, err)
		}); err != nil {
			return err
		}
		if err := h.keepAdmin(rights, func(v *authority.View) bool { return v.LastAdminWith(h.now(), b) }); err != nil {
			return err
		}

		rights.Because(b.Reason)
		rights.Describe(describeBinding(existing(is, &old), &b))
		b.Revision, err = h.store.As(rights).PutBinding(c.Context(), old.Revision, b, h.now())

		return httpapi.About("binding "+b.Name, err)
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { return v.Fence >= b.Revision })

	return answerRecord(b, b.Revision)
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

// deleteBinding serves the deletion of a binding.
func (h *bindingHandlers) deleteBinding(c *httpapi.Call) (httpapi.Answer, error) {
	name, err := pathName(c, "binding")
	if err != nil {
		return httpapi.Answer{}, err
	}

	err = h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if !h.readsBindingsSomewhere(c, v) {
			if err := rights.Require(access.Need{Verb: access.Read, Kind: access.Access}); err != nil {
				return err
			}
		}

		b, is := v.Binding(name)
		if !is || !h.canSeeBinding(c, v, &b) {
			return notFound("binding", name)
		}
		if err := rights.Require(needsOfBinding(access.Grant, &b)...); err != nil {
			return err
		}
		if err := checkConditions(c, "binding", name, b.Revision); err != nil {
			return err
		}

		dropped := func(what, dropped string) bool { return what == "binding" && dropped == name }
		if err := h.keepAdmin(rights, func(v *authority.View) bool { return v.LastAdmin(h.now(), dropped) }); err != nil {
			return err
		}

		rights.Describe(describeBinding(&b, nil))

		return httpapi.About("binding "+name, h.store.As(rights).DeleteBinding(c.Context(), name, b.Revision, h.now()))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { _, is := v.Binding(name); return !is })

	return httpapi.Answer{Status: http.StatusNoContent}, nil
}

// Limits of roles and bindings. Every node that serves the API has all of them in memory, and compiles them again after
// each change.
const (
	// maxBindings is the maximum number of bindings in the cluster.
	maxBindings = 2000
	// reservedBindings is how many of them only administrators of the cluster can create. A caller who may grant rights can
	// create further subjects, each with its own maxCreated, and they must not keep an administrator from granting.
	reservedBindings = 200
	// maxCreated is the maximum number of bindings, and of roles, that were created by one subject that does not
	// administer the cluster.
	maxCreated = 500
)

// checkBindingCount refuses a new binding if the cluster has too many.
func (h *bindingHandlers) checkBindingCount(c *httpapi.Call, v *authority.View) error {
	n, rule := len(v.Bindings()), ""

	switch unreserved := maxBindings - reservedBindings; {
	case n >= maxBindings:
		rule = fmt.Sprintf("at most %d are allowed", maxBindings)
	case n >= unreserved && !v.Administers(caller(c), h.now()):
		rule = fmt.Sprintf("after %d, only an administrator of the cluster can create more", unreserved)
	default:
		return nil
	}

	return httpapi.Fail(http.StatusConflict, client.CodeConflict, "the cluster has %d bindings; %s", n, rule).
		WithHint("delete bindings that are no longer used")
}

// checkCreated refuses a new record if the caller has created too many of its kind. createdBy has the creators of those
// that exist.
func (r *records) checkCreated(c *httpapi.Call, v *authority.View, kind string, createdBy iter.Seq[string]) error {
	if v.Administers(caller(c), r.now()) {
		return nil
	}

	who, created := httpapi.CallerOf(c.Context()), 0
	for by := range createdBy {
		if wasWrittenBy(by, who.Who) {
			created++
		}
	}
	if created < maxCreated {
		return nil
	}

	return httpapi.Fail(http.StatusConflict, client.CodeConflict, "%s has created %d %s that still exist; at most %d are allowed", who.Name(), created, kind, maxCreated).
		WithHint("delete those that are no longer used")
}

// creators yields who has created each record of a list.
func creators[T any](list []T, createdBy func(T) string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, r := range list {
			if !yield(createdBy(r)) {
				return
			}
		}
	}
}

// wasWrittenBy reports whether a record says that a subject wrote it. Records have the format of
// httpapi.Caller.Actor: the subject, and then its token.
func wasWrittenBy(by, subject string) bool {
	name := httpapi.Caller{Who: subject}.Name()
	return by == name || strings.HasPrefix(by, name+" (")
}
