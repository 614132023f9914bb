package accesscontrol

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/oidclogin"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// startSession creates the session of a person whom an OpenID Connect provider has identified. The session has no parent: it
// may do what the bindings of the person and of the person's groups at this login allow, for at most eight hours.
//
// The call must be one of that person (see httpapi.Call.Become). It has no credential that its transaction could compare.
// The transaction compares the fence, so that the session is created only while the person is not disabled, and the person or
// one of the groups has a binding.
func (h *sessionHandlers) startSession(c *httpapi.Call, id oidclogin.Identity) (client.NewToken, error) {
	if err := h.guard.requireClock(); err != nil {
		return client.NewToken{}, err
	}

	secret, made := authority.NewSecret()
	err := h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		made.Groups = chooseGroups(v, id.Groups)
		err := rights.Check(func(v *authority.View) error {
			if !v.HoldsSomething(id.Subject, made.Groups, h.now()) {
				return noAccess(id)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := h.guard.countTokenChange(c, v); err != nil {
			return err
		}

		made.Kind, made.Subject, made.Name, made.Mail = task.TokenKindSession, id.Subject, id.Name, id.Mail
		made.CreatedAt, made.CreatedBy, made.Until = h.now.Stamp(), c.Actor(), task.At(h.now().Add(sessionAge))
		rights.Describe(store.DescribeToken(nil, &made.Token))
		n := store.NewSession{Token: made, Remove: h.sessionsToRemove(v, id.Subject, "", task.TokenKindSession)}

		return httpapi.About(made.ID, h.store.As(rights).CreateSession(c.Context(), n))
	})
	if err != nil {
		return client.NewToken{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { return v.Created(made.ID) > 0 })

	return client.NewToken{Token: made.Token, Secret: secret}, nil
}

// chooseGroups returns the groups that the record of a session keeps. If a person is in very many groups, those that have
// a binding are chosen first.
func chooseGroups(v *authority.View, groups []string) []string {
	if len(groups) <= task.MaxLoginGroups {
		return groups
	}

	bound := map[string]bool{}
	for _, b := range v.Bindings() {
		for _, s := range b.Subjects {
			bound[s] = true
		}
	}

	list := slices.Clone(groups)
	slices.SortStableFunc(list, func(a, b string) int {
		switch {
		case bound[a] && !bound[b]:
			return -1
		case bound[b] && !bound[a]:
			return 1
		}
		return 0
	})
	list = list[:task.MaxLoginGroups]
	slices.Sort(list)

	return list
}

// noAccess returns the failure for a person who has signed in and has no binding.
func noAccess(id oidclogin.Identity) *httpapi.Failure {
	who := id.Subject
	if shown := strings.TrimSpace(id.Name + " " + id.Mail); shown != "" {
		who += " (" + shown + ")"
	}

	groups := "this login has no groups"
	if len(id.Groups) > 0 {
		const most = 10
		groups = "the groups of this login are " + strings.Join(id.Groups[:min(most, len(id.Groups))], ", ")
		if more := len(id.Groups) - most; more > 0 {
			groups += fmt.Sprintf(" and %d more", more)
		}
	}

	return httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "you are signed in as %s, but have no access to this cluster: no binding names you or your groups; %s", who, groups).
		WithHint("ask an administrator of the cluster to give you a role with carillon access grant, and then sign in again")
}
