package accesscontrol

import (
	"net/http"
	"reflect"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/task"
)

// rightsHandlers answer what a caller is, and what a caller or another subject may do.
type rightsHandlers struct {
	*records
}

// Routes returns the operations on the rights of callers.
func (h *rightsHandlers) Routes() []*httpapi.Operation {
	return []*httpapi.Operation{
		{ID: "whoami", Method: http.MethodGet, Path: "/v1/whoami", Tag: "access", Summary: "Read your identity and your rights",
			Status: 200, Answer: reflect.TypeFor[client.WhoAmI](), Handler: httpapi.NoQuery(h.whoAmI)},
		{ID: "can", Method: http.MethodGet, Path: "/v1/access/can", Tag: "access", Summary: "Check whether you or another subject may do something", Description: canAbout,
			Status: 200, Answer: reflect.TypeFor[client.Decision](), Handler: httpapi.Query(h.checkRight)},
	}
}

// whoAmI serves what the caller is and may do, within the scope of its token.
func (h *rightsHandlers) whoAmI(c *httpapi.Call) (httpapi.Answer, error) {
	v, err := h.keeper.Current(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}

	who, now := httpapi.CallerOf(c.Context()), h.now()
	me := client.WhoAmI{
		Subject: who.Who, Certificate: who.Certificate, Address: who.Address, Host: strings.HasPrefix(who.Who, access.KindUnix+":"),
		Bindings: []task.Binding{},
		// A token that reads "every namespace" by its binding reads only those of its scope: the rights count.
		Namespaces: v.Readable(who.Subject(), access.Tasks, v.Namespaces(), now), AllNamespaces: v.ReadsEveryNamespace(who.Subject(), access.Tasks, now),
		Cluster: v.ClusterRights(who.Subject(), now),
	}

	var scope *task.TokenScope
	if t, ok := v.Token(who.Token); ok {
		me.Token, scope = &t, t.Scope
	}
	// Who else has a role is not the caller's business.
	for _, b := range access.BindingsInScope(scope, v.BindingsOfCaller(who.Subject())) {
		if b.Until.IsZero() || now.Before(b.Until.Time) {
			me.Bindings = append(me.Bindings, b)
		}
	}

	if me.Namespaces == nil {
		me.Namespaces = []string{}
	}
	if me.Cluster == nil {
		me.Cluster = []task.Rule{}
	}

	return httpapi.Answer{Status: http.StatusOK, Body: me}, nil
}
