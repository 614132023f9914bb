package accesscontrol

import (
	"net/http"
	"reflect"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// roleHandlers serve roles.
type roleHandlers struct {
	resource[task.Role]
}

func newRoleHandlers(r *records) *roleHandlers {
	h := &roleHandlers{}
	h.resource = resource[task.Role]{
		records: r, what: "role", object: "role", param: "role",
		fields: func(r *task.Role) serverFields {
			return serverFields{&r.Name, &r.UID, &r.CreatedAt, &r.UpdatedAt, &r.CreatedBy, &r.UpdatedBy, &r.Revision}
		},
		find: (*authority.View).Role, all: (*authority.View).Roles, mayRead: r.requireReadBindings,
		check: checkRole, mayWrite: h.mayWriteRole, checkCount: h.checkCreated, covers: h.coversRole,
		put: (*store.Store).PutRole, remove: h.removeRole,
	}

	return h
}

const setRoleAbout = "You must hold all rights that the new rules give, in each binding of the role. A role that is deleted and created again is a different role: earlier bindings do not apply to it."

// Routes returns the operations on roles.
func (h *roleHandlers) Routes() []*httpapi.Operation {
	role := reflect.TypeFor[task.Role]()

	return []*httpapi.Operation{
		{ID: "list-roles", Method: http.MethodGet, Path: "/v1/roles", Tag: "access", Summary: "List the roles, the built-in ones first",
			Description: "Requires read on access, or on the bindings of a namespace.", Status: 200, Answer: reflect.TypeFor[client.List[task.Role]](), Handler: httpapi.NoQuery(h.listRoles)},
		{ID: "get-role", Method: http.MethodGet, Path: "/v1/roles/{role}", Tag: "access", Summary: "Read a role",
			Description: "A role is a list of rules, each with verbs and kinds of objects. The built-in roles have no revision.",
			Status:      200, Answer: role, Tagged: true, Revalidated: true, Handler: httpapi.NoQuery(h.get)},
		{ID: "set-role", Verb: access.Grant, Kind: access.Access, Method: http.MethodPut, Path: "/v1/roles/{role}", Tag: "access", Summary: "Create or replace a role", Description: setRoleAbout + dryRunAbout,
			Body: jsonBody(role), Conditional: true, Creates: true, Writes: true, Status: 200, Answer: reflect.TypeFor[client.RoleChange](), Tagged: true, Errors: []int{409, 429}, Handler: httpapi.Query(h.setRole)},
		{ID: "delete-role", Verb: access.Grant, Kind: access.Access, Method: http.MethodDelete, Path: "/v1/roles/{role}", Tag: "access", Summary: "Delete a role that no binding uses",
			Description: "The answer is 409 while a binding or the scope of a token uses the role. Built-in roles cannot be deleted.",
			Conditional: true, Writes: true, Status: 204, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.delete)},
	}
}

// listRoles serves all roles. The list has no pages.
func (h *roleHandlers) listRoles(c *httpapi.Call) (httpapi.Answer, error) {
	v, err := h.keeper.Current(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}
	if err := h.requireReadBindings(c, v, c.Rights()); err != nil {
		return httpapi.Answer{}, err
	}

	return httpapi.All(v.Roles())
}

// setRole serves writes of a role.
func (h *roleHandlers) setRole(c *httpapi.Call, q dryRunQuery) (httpapi.Answer, error) {
	r, dry, err := h.set(c, q.DryRun)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return answerRecord(client.RoleChange{Role: r, DryRun: dry}, r.Revision)
}

// checkRole checks a role in a request.
func checkRole(r *task.Role) error {
	r.BuiltIn = false
	return access.CheckRole(r)
}

// mayWriteRole refuses callers who may not change roles, and the deletion of built-in roles.
func (h *roleHandlers) mayWriteRole(_ *httpapi.Call, _ *authority.View, rights *httpapi.Rights, before, after *task.Role) error {
	if err := rights.Require(access.Need{Verb: access.Grant, Kind: access.Access}); err != nil {
		return err
	}

	if after == nil && before != nil && before.BuiltIn {
		return task.Invalid(task.CodeBadName, "role", "%s is a built-in role, which cannot be deleted", before.Name)
	}

	return nil
}

// coversRole refuses rules that give more than the caller holds, in any binding of the role.
func (h *roleHandlers) coversRole(c *httpapi.Call, rights *httpapi.Rights, after *task.Role) error {
	written := *after

	return rights.Check(func(v *authority.View) error {
		excess, err := v.CoversRole(caller(c), written, h.now())
		return refuseExcess(c, excess, err)
	})
}

// removeRole deletes a role that nothing uses.
func (h *roleHandlers) removeRole(c *httpapi.Call, rights *httpapi.Rights, r *task.Role) error {
	if err := rights.Check(func(v *authority.View) error { return unusedRole(v, *r) }); err != nil {
		return err
	}

	return h.store.As(rights).DeleteRole(c.Context(), r.Name, r.Revision, h.now())
}

// unusedRole returns an error if a binding or the scope of a token uses a role.
func unusedRole(v *authority.View, r task.Role) error {
	const most = 5
	var users []string
	for _, b := range v.Bindings() {
		if b.Role == r.Name && b.RoleUID == r.UID {
			users = append(users, "binding "+b.Name)
		}
	}
	for _, t := range v.Tokens() {
		if t.Kind == task.TokenKindToken && t.Scope != nil && t.Scope.Role == r.Name && t.Scope.RoleUID == r.UID {
			users = append(users, "token "+t.ID)
		}
	}

	if len(users) == 0 {
		return nil
	}
	if len(users) > most {
		users = append(users[:most], "others")
	}

	return httpapi.Fail(http.StatusConflict, client.CodeInUse, "role %s is used by %s", r.Name, strings.Join(users, ", ")).WithHint("delete these first")
}
