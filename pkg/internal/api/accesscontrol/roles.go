package accesscontrol

import (
	"net/http"
	"reflect"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/task"
)

// roleHandlers serve roles.
type roleHandlers struct {
	*records
}

const setRoleAbout = "You must hold all rights that the new rules give, in each binding of the role. A role that is deleted and created again is a different role: earlier bindings do not apply to it."

// Routes returns the operations on roles.
func (h *roleHandlers) Routes() []*httpapi.Operation {
	role := reflect.TypeFor[task.Role]()

	return []*httpapi.Operation{
		{ID: "list-roles", Method: http.MethodGet, Path: "/v1/roles", Tag: "access", Summary: "List the roles, the built-in ones first",
			Description: "Requires read on access, or on the bindings of a namespace.", Status: 200, Answer: reflect.TypeFor[client.List[task.Role]](), Handler: httpapi.NoQuery(h.listRoles)},
		{ID: "get-role", Method: http.MethodGet, Path: "/v1/roles/{role}", Tag: "access", Summary: "Read a role",
			Status: 200, Answer: role, Tagged: true, Handler: httpapi.NoQuery(h.getRole)},
		{ID: "set-role", Verb: access.Grant, Kind: access.Access, Method: http.MethodPut, Path: "/v1/roles/{role}", Tag: "access", Summary: "Create or replace a role", Description: setRoleAbout + dryRunAbout,
			Body: jsonBody(role), Conditional: true, Creates: true, Writes: true, Status: 200, Answer: reflect.TypeFor[client.RoleChange](), Tagged: true, Errors: []int{409, 429}, Handler: httpapi.Query(h.setRole)},
		{ID: "delete-role", Verb: access.Grant, Kind: access.Access, Method: http.MethodDelete, Path: "/v1/roles/{role}", Tag: "access", Summary: "Delete a role that no binding uses",
			Conditional: true, Writes: true, Status: 204, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.deleteRole)},
	}
}

// readRoles returns the records if the caller may read roles.
func (h *roleHandlers) readRoles(c *httpapi.Call) (*authority.View, error) {
	v, err := h.keeper.Current(c.Context())
	if err != nil {
		return nil, err
	}

	return v, h.requireReadRoles(c, v, c.Rights())
}

// requireReadRoles refuses the request unless the caller may read roles: a caller that reads bindings of a namespace must
// be able to understand them.
func (h *roleHandlers) requireReadRoles(c *httpapi.Call, v *authority.View, rights *httpapi.Rights) error {
	if h.readsBindingsSomewhere(c, v) {
		return nil
	}
	return rights.Require(access.Need{Verb: access.Read, Kind: access.Access})
}

// listRoles serves all roles.
func (h *roleHandlers) listRoles(c *httpapi.Call) (httpapi.Answer, error) {
	v, err := h.readRoles(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return httpapi.All(v.Roles())
}

// getRole serves one role.
func (h *roleHandlers) getRole(c *httpapi.Call) (httpapi.Answer, error) {
	v, err := h.readRoles(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	name := c.Request.PathValue("role")
	r, ok := v.Role(name)
	if !ok {
		return httpapi.Answer{}, notFound("role", task.Quote(name))
	}

	return answerRecord(r, r.Revision)
}

// setRole serves writes of a role.
func (h *roleHandlers) setRole(c *httpapi.Call, q dryRunQuery) (httpapi.Answer, error) {
	var r task.Role
	var dry *client.Change
	if err := c.Decode(&r); err != nil {
		return httpapi.Answer{}, err
	}
	if err := sameName(&r.Name, c.Request.PathValue("role")); err != nil {
		return httpapi.Answer{}, err
	}
	if err := access.CheckRole(&r); err != nil {
		return httpapi.Answer{}, err
	}

	err := h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Require(access.Need{Verb: access.Grant, Kind: access.Access}); err != nil {
			return err
		}

		old, is := v.Role(r.Name)
		if err := checkConditions(c, "role", r.Name, old.Revision); err != nil {
			return err
		}
		if !is {
			if err := h.checkCreated(c, v, "roles", creators(v.Roles(), func(r task.Role) string { return r.CreatedBy })); err != nil {
				return err
			}
		}

		now := h.now.Stamp()
		r.UID, r.BuiltIn, r.CreatedAt, r.CreatedBy = old.UID, false, old.CreatedAt, old.CreatedBy
		r.UpdatedAt, r.UpdatedBy, r.Revision = old.UpdatedAt, old.UpdatedBy, old.Revision
		if q.DryRun {
			if is {
				if err := h.requireReadRoles(c, v, rights); err != nil {
					return err
				}
			}
			old.Name = r.Name
			dry = wouldChange(is, old, r)
		}
		if is && reflect.DeepEqual(r, old) {
			return nil
		}

		written := r
		if !is {
			written.UID, written.CreatedAt, written.CreatedBy = task.NewUID(), now, c.Actor()
		}
		written.UpdatedAt, written.UpdatedBy = now, c.Actor()

		if err := rights.Check(func(v *authority.View) error {
			excess, err := v.CoversRole(caller(c), written, h.now())
			return refuseExcess(c, excess, err)
		}); err != nil || q.DryRun {
			return err
		}

		var err error
		r = written
		rights.Describe(task.AuditObject{Kind: "role", Name: r.Name, Changes: task.AccessChanges(existing(is, &old), &r)})
		r.Revision, err = h.store.As(rights).PutRole(c.Context(), old.Revision, r, h.now())

		return httpapi.About("role "+r.Name, err)
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { return v.Fence >= r.Revision })

	return answerRecord(client.RoleChange{Role: r, DryRun: dry}, r.Revision)
}

// deleteRole serves the deletion of a role that nothing uses.
func (h *roleHandlers) deleteRole(c *httpapi.Call) (httpapi.Answer, error) {
	name, err := pathName(c, "role")
	if err != nil {
		return httpapi.Answer{}, err
	}

	err = h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Require(access.Need{Verb: access.Grant, Kind: access.Access}); err != nil {
			return err
		}

		r, is := v.Role(name)
		switch {
		case !is:
			return notFound("role", name)
		case r.BuiltIn:
			return task.Invalid(task.CodeBadName, "role", "%s is a built-in role, which cannot be deleted", name)
		}

		if err := checkConditions(c, "role", name, r.Revision); err != nil {
			return err
		}

		if err := rights.Check(func(v *authority.View) error { return unusedRole(v, r) }); err != nil {
			return err
		}

		rights.Describe(task.AuditObject{Kind: "role", Name: name, Changes: task.AccessChanges(&r, nil)})

		return httpapi.About("role "+name, h.store.As(rights).DeleteRole(c.Context(), name, r.Revision, h.now()))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { _, is := v.Role(name); return !is })

	return httpapi.Answer{Status: http.StatusNoContent}, nil
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
