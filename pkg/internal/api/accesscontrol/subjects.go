package accesscontrol

import (
	"net/http"
	"reflect"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/task"
)

// subjectHandlers list, disable and enable subjects.
type subjectHandlers struct {
	*records
}

// Routes returns the operations on subjects.
func (h *subjectHandlers) Routes() []*httpapi.Operation {
	subject := reflect.TypeFor[client.SubjectChange]()

	return []*httpapi.Operation{
		{ID: "list-subjects", Verb: access.Read, Kind: access.Access, Method: http.MethodGet, Path: "/v1/subjects", Tag: "access", Summary: "List the subjects that have bindings or tokens, or are disabled",
			Description: "A subject exists as soon as a binding or a token names it. The list says which of them are disabled.",
			Status:      200, Answer: reflect.TypeFor[client.List[client.Subject]](), Handler: httpapi.Query(h.listSubjects)},
		{ID: "disable-subject", Verb: access.Grant, Kind: access.Access, Method: http.MethodPost, Path: "/v1/subjects/{subject}/disable", Tag: "access", Summary: "Disable a subject, so that it may do nothing",
			Description: "Its tokens are no longer accepted, and its streams end. Its tasks continue, because they belong to their namespaces. The answer lists its bindings and tokens, and those that it created for others.",
			Writes:      true, Status: 200, Answer: subject, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.disableSubject)},
		{ID: "enable-subject", Verb: access.Grant, Kind: access.Access, Method: http.MethodPost, Path: "/v1/subjects/{subject}/enable", Tag: "access", Summary: "Enable a subject that was disabled",
			Description: "You must hold all rights that the subject regains.",
			Writes:      true, Status: 200, Answer: subject, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.enableSubject)},
	}
}

// listSubjects serves all subjects that access records name.
func (h *subjectHandlers) listSubjects(c *httpapi.Call, q httpapi.PageQuery) (httpapi.Answer, error) {
	v, err := h.keeper.Current(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}

	tokens := map[string]int{}
	for _, t := range v.Tokens() {
		if t.Kind == task.TokenKindToken {
			tokens[t.Subject]++
		}
	}

	bindings := map[string][]string{}
	for _, b := range v.Bindings() {
		for _, s := range b.Subjects {
			bindings[s] = append(bindings[s], b.Name)
		}
	}

	var list []client.Subject
	for _, s := range v.Subjects() {
		list = append(list, client.Subject{Subject: s, Disabled: v.Disabled(s), Bindings: append([]string{}, bindings[s]...), Tokens: tokens[s]})
	}

	return pageOf(c, q, list, func(s client.Subject) string { return s.Subject })
}

// subjectInPath returns the subject in the path after checking it.
func subjectInPath(c *httpapi.Call) (string, error) {
	s := c.Request.PathValue("subject")
	return s, access.CheckActor("subject", s)
}

// disableSubject serves POST …/disable.
func (h *subjectHandlers) disableSubject(c *httpapi.Call) (httpapi.Answer, error) {
	subject, err := subjectInPath(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	err = h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Require(access.Need{Verb: access.Grant, Kind: access.Access}); err != nil {
			return err
		}
		if v.Disabled(subject) {
			return nil
		}

		dropped := func(what, name string) bool { return what == "subject" && name == subject }
		if err := h.keepAdmin(rights, func(v *authority.View) bool { return v.LastAdmin(h.now(), dropped) }); err != nil {
			return err
		}

		return httpapi.About("subject "+subject, h.store.As(rights).DisableSubject(c.Context(), subject, h.now()))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { return v.Disabled(subject) })

	return h.answerSubject(c, subject, true)
}

// enableSubject serves POST …/enable. It gives the subject back all that its bindings say, so the caller must hold all of
// it.
func (h *subjectHandlers) enableSubject(c *httpapi.Call) (httpapi.Answer, error) {
	subject, err := subjectInPath(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	err = h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Require(access.Need{Verb: access.Grant, Kind: access.Access}); err != nil {
			return err
		}
		if !v.Disabled(subject) {
			return nil
		}

		if err := rights.Check(func(v *authority.View) error {
			return refuseExcess(c, v.CoversSubject(caller(c), subject, h.now()), nil)
		}); err != nil {
			return err
		}

		key := h.store.Keys().DisabledSubject(subject)

		return httpapi.About("subject "+subject, h.store.As(rights).EnableSubject(c.Context(), subject, v.Mod(key), h.now()))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { return !v.Disabled(subject) })

	return h.answerSubject(c, subject, false)
}

// answerSubject answers with what a subject has, and what it has made for others.
func (h *subjectHandlers) answerSubject(c *httpapi.Call, subject string, disabled bool) (httpapi.Answer, error) {
	v, err := h.keeper.Current(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}

	a := client.SubjectChange{Subject: subject, Disabled: disabled, Bindings: []task.Binding{}, Tokens: []task.Token{}, MadeBindings: []task.Binding{}, MadeTokens: []task.Token{}}
	a.Bindings = append(a.Bindings, v.BindingsOf(subject)...)
	for _, b := range v.Bindings() {
		if b.CreatedBy.Is(subject) || b.UpdatedBy.Is(subject) {
			a.MadeBindings = append(a.MadeBindings, b)
		}
	}

	for _, t := range v.Tokens() {
		switch {
		case t.Kind != task.TokenKindToken: // it ends with its token
		case t.Subject == subject:
			a.Tokens = append(a.Tokens, t)
		case t.CreatedBy.Is(subject):
			a.MadeTokens = append(a.MadeTokens, t)
		}
	}

	return httpapi.Answer{Status: http.StatusOK, Body: a}, nil
}
