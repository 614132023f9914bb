package client

import (
	"context"
	"net/http"
	"net/url"
)

// Question asks whether a subject may do something.
type Question struct {
	Verb, Kind string
	Namespace  string // for kinds of objects of namespaces
	Labels     string // of the task: KEY=VALUE, separated by commas
	Subject    string // "": the caller, with the scope of its token
}

// Decision answers a Question.
type Decision struct {
	Allowed   bool              `json:"allowed"`
	Subject   string            `json:"subject"`
	Verb      string            `json:"verb"`
	Kind      string            `json:"kind"`
	Namespace string            `json:"namespace,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Reason    string            `json:"reason,omitempty" doc:"Why it is not allowed, or what else is needed."`
}

// Can answers whether the caller, or another subject, may do something.
func (s *AccessService) Can(ctx context.Context, ask Question) (Decision, error) {
	q := url.Values{"verb": {ask.Verb}, "kind": {ask.Kind}}
	setIfNotEmpty(q, "namespace", ask.Namespace)
	setIfNotEmpty(q, "labels", ask.Labels)
	setIfNotEmpty(q, "subject", ask.Subject)

	var d Decision
	err := s.conn.doCall(ctx, call{method: http.MethodGet, path: "/v1/access/can", query: q}, &d)

	return d, err
}
