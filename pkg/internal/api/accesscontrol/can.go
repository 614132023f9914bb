package accesscontrol

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
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
			Description: "The answer says as whom the node knows you, with which token or certificate, and which rights you have within the scope of the token.",
			Status:      200, Answer: reflect.TypeFor[client.WhoAmI](), Handler: httpapi.NoQuery(h.whoAmI)},
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

const canAbout = "For kinds of objects that belong to a namespace, the namespace is required. Without a subject, the answer is about you, within the scope of your token. " +
	"Answers about other subjects require read on access, and assume a token without a scope. Labels are those of the task."

// canQuery are the parameters of the question.
type canQuery struct {
	Verb      string `query:"verb" doc:"The verb, for example trigger. Required."`
	Kind      string `query:"kind" doc:"The kind of objects, for example tasks. Required."`
	Namespace string `query:"namespace" doc:"The namespace."`
	Labels    string `query:"labels" doc:"The labels of the task: KEY=VALUE, separated by commas."`
	Subject   string `query:"subject" doc:"The subject. Default: you."`
}

// checkRight answers whether somebody may do something. It changes nothing, and is judged like any request would be.
func (h *rightsHandlers) checkRight(c *httpapi.Call, q canQuery) (httpapi.Answer, error) {
	need, err := access.ParseNeed(q.Verb, q.Kind)
	if err != nil {
		return httpapi.Answer{}, err
	}
	if need.Labels, err = parseLabels(q.Labels); err != nil {
		return httpapi.Answer{}, err
	}

	switch ofCluster := need.Kind.OfCluster(); {
	case ofCluster && q.Namespace != "":
		return httpapi.Answer{}, task.Invalid(task.CodeBadValue, "namespace", "%s belong to the whole cluster, not to a namespace", need.Kind)
	case len(need.Labels) > 0 && !need.Kind.Labelled():
		return httpapi.Answer{}, task.Invalid(task.CodeBadValue, "labels", "only tasks and their runs have labels")
	case !ofCluster:
		if err := task.CheckName("namespace", q.Namespace); err != nil {
			return httpapi.Answer{}, err
		}
		need.Namespace = q.Namespace
	}

	v, err := h.keeper.Current(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}

	d := client.Decision{Subject: httpapi.CallerOf(c.Context()).Who, Verb: need.Verb.String(), Kind: need.Kind.String(), Namespace: need.Namespace, Labels: need.Labels}
	who := caller(c)

	if q.Subject != "" && q.Subject != d.Subject {
		if err := c.Rights().Require(access.Need{Verb: access.Read, Kind: access.Access}); err != nil {
			return httpapi.Answer{}, err
		}
		if err := access.CheckSubject("subject", q.Subject); err != nil {
			return httpapi.Answer{}, err
		}
		d.Subject, who = q.Subject, access.Caller{Subject: q.Subject}
	}

	d.Allowed = v.Allows(who, need, h.now())
	d.Reason = h.explainDecision(v, who, need, d)

	return httpapi.Answer{Status: http.StatusOK, Body: d}, nil
}

// explainDecision says what a caller should know about a decision.
func (h *rightsHandlers) explainDecision(v *authority.View, who access.Caller, need access.Need, d client.Decision) string {
	if d.Allowed {
		// Only to those who read it: a binding may apply to a prefix, and others exist or not.
		if need.Namespace != "" && v.Namespace(need.Namespace) == nil {
			return fmt.Sprintf("but there is no namespace %s", need.Namespace)
		}
		return ""
	}

	switch {
	case v.Disabled(who.Subject):
		return d.Subject + " is disabled"
	case who.Token != "" && v.Allows(access.Caller{Subject: who.Subject}, need, h.now()):
		return "the scope of the token does not include this right"
	case v.AllowsSomewhere(who, need, h.now()):
		return "it depends on the labels of the task"
	}

	if role := access.SuggestRole(need.Verb, need.Kind); role != "" {
		return role + " would allow it"
	}

	return ""
}

// parseLabels reads KEY=VALUE, separated by commas.
func parseLabels(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}

	labels := map[string]string{}
	for _, pair := range strings.Split(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, task.Invalid(task.CodeBadValue, "labels", "%s is not KEY=VALUE", task.Quote(pair))
		}
		labels[key] = value
	}

	return labels, task.CheckLabels("labels", labels)
}
