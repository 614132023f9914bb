package task

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"time"
)

// HTTP sends one request. Its strings may contain templates, such as ${run.scheduled_time}, where the fields say so.
type HTTP struct {
	Method  string            `json:"method,omitempty" doc:"GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS. Default: POST if the request has a body, otherwise GET."`
	URL     string            `json:"url" doc:"The target: http or https, with templates in path segments and query values. secret:NAME/KEY reads all of it from a secret."`
	Headers map[string]string `json:"headers,omitempty" doc:"Request headers. Values may contain templates, also ${secret:NAME/KEY}."`
	JSON    json.RawMessage   `json:"json,omitempty" doc:"The body as a JSON value. Its strings may contain templates."`
	Form    map[string]string `json:"form,omitempty" doc:"The body as form fields (application/x-www-form-urlencoded). Values may contain templates."`
	Body    string            `json:"body,omitempty" doc:"The body as text, sent as it is. secret:NAME/KEY reads it from a secret."`
	Auth    *HTTPAuth         `json:"auth,omitempty" doc:"Credentials, from secrets."`
	TLS     *HTTPTLS          `json:"tls,omitempty" doc:"Certificates for https."`

	Idempotent *bool             `json:"idempotent,omitempty" doc:"Whether the request may be repeated if it is not known what became of it. Default: true for GET, HEAD, PUT, DELETE and OPTIONS."`
	UnsentFor  *Duration         `json:"unsent_for,omitempty" doc:"How long after the first attempt further attempts are free while none was sent, because the target is unreachable or asks to wait. 0s: none is free. At most 24h. Default: 10m."`
	Redirects  int               `json:"redirects,omitempty" doc:"The maximum number of redirects that are followed, at most 5. Default: 0."`
	Expect     HTTPExpect        `json:"expect,omitzero" doc:"Which responses count as success."`
	Results    map[string]string `json:"results,omitempty" doc:"Results of the run: each name with the JSON pointer of its value in the response: {id: /order/id}."`
	Limit      HTTPLimit         `json:"limit,omitzero" doc:"What the request may use."`
	Output     string            `json:"output,omitempty" doc:"keep stores the response body of a success, too. Default: only the body of a failure is stored, and the last 256 bytes of a success."`
}

// HTTPAuth is how a request authenticates. Exactly one field is set. Each names a value of a secret: NAME/KEY.
type HTTPAuth struct {
	Bearer    string `json:"bearer,omitempty" doc:"The token of Authorization: Bearer, as NAME/KEY of a secret."`
	Basic     string `json:"basic,omitempty" doc:"user:password of Authorization: Basic, as NAME/KEY of a secret."`
	Signature string `json:"signature,omitempty" doc:"The key with which the body is signed as Standard Webhooks specifies, as NAME/KEY of a secret."`
}

// HTTPTLS is what a request trusts, and the certificate that it presents. Each field names a value of a secret, in PEM.
type HTTPTLS struct {
	CA   string `json:"ca,omitempty" doc:"The certificate authorities to trust instead of the host's, as secret:NAME/KEY."`
	Cert string `json:"cert,omitempty" doc:"The client certificate and its key, as secret:NAME/KEY."`
}

// HTTPExpect is which responses count as success.
type HTTPExpect struct {
	Status []string `json:"status,omitempty" doc:"Status codes and classes: [\"200\", \"2xx\"]. Default: 2xx."`
	Body   string   `json:"body,omitempty" doc:"A regular expression (RE2) that the response body must match."`
}

// HTTPLimit bounds what a request uses.
type HTTPLimit struct {
	Body      Size `json:"body,omitempty" doc:"How much of the response is read, decompressed, at most 16Mi. Default: 1Mi."`
	PerTarget int  `json:"per_target,omitempty" doc:"The maximum number of requests in progress from one node to the same scheme, host and port. Default: 100."`
}

// HTTPSlots is how many HTTP attempts a node executes at the same time. They use no slot of a process.
const HTTPSlots = 512

// MaxUnsentBackoff is the longest wait after an attempt that was not sent, unless its target asked for more.
const MaxUnsentBackoff = 30 * time.Second

// HTTPOutputKeep is the value of HTTP.Output that stores the body of each response.
const HTTPOutputKeep = "keep"

// EffectiveMethod returns the request's method.
func (h *HTTP) EffectiveMethod() string {
	if h.Method == "" && h.HasBody() {
		return http.MethodPost
	}
	return cmp.Or(h.Method, http.MethodGet)
}

// HasBody reports whether the request has a body.
func (h *HTTP) HasBody() bool { return len(h.JSON) > 0 || len(h.Form) > 0 || h.Body != "" }

// MayRepeat reports whether the request may be sent again if it is not known what became of it.
func (h *HTTP) MayRepeat() bool {
	if h.Idempotent != nil {
		return *h.Idempotent
	}

	return slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete, http.MethodOptions}, h.EffectiveMethod())
}

// EffectiveUnsentFor returns how long attempts that were not sent are free.
func (h *HTTP) EffectiveUnsentFor() time.Duration {
	if h.UnsentFor == nil {
		return DefaultUnsentFor.Std()
	}

	return h.UnsentFor.Std()
}

// The kinds of actions, as they appear in metrics and records.
const (
	KindProcess = "process"
	KindHTTP    = "http"
	KindNoop    = "noop"
)

// Kind returns the kind of an action, or "" for one that this version does not know.
func (a Action) Kind() string {
	switch {
	case a.Process != nil:
		return KindProcess
	case a.HTTP != nil:
		return KindHTTP
	case a.Noop != nil:
		return KindNoop
	}

	return ""
}

// Unsent describes the attempts of a run that ended before anything was sent, or whose target asked to wait. They are
// counted, not listed in Run.Attempts, and use up no attempt of the retry policy.
type Unsent struct {
	Count   int    `json:"count"`
	First   Time   `json:"first" doc:"The end of the first of them."`
	Last    Time   `json:"last" doc:"The end of the last of them."`
	Node    string `json:"node,omitempty" doc:"The node of the last of them. The next attempt prefers another one."`
	Message string `json:"message,omitempty" doc:"What prevented the last of them."`
}

// NotBeforeByTarget is the value of Run.NotBeforeBy if the state of the target decided when the next attempt starts.
const NotBeforeByTarget = "target"
