package task

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"
)

// HTTP sends one request. Its strings may contain templates, such as ${run.scheduled_time}, where the fields say so.
type HTTP struct {
	Method  string            `json:"method,omitempty" doc:"The method of the request." absent:"POST with a body, else GET" enum:"GET,HEAD,POST,PUT,PATCH,DELETE,OPTIONS"`
	URL     string            `json:"url" doc:"The target: http or https, with templates in path segments and query values. secret:NAME/KEY reads all of it from a secret." pattern:"^([hH][tT][tT][pP][sS]?://[^/?#@\\s]|secret:)" example:"https://api.example.com/orders/${run.scheduled_time}"`
	Headers map[string]string `json:"headers,omitempty" doc:"Request headers. Values may contain templates, also ${secret:NAME/KEY}." absent:"none" maxProperties:"64" example:"{\"X-Key\": \"${secret:api/key}\"}"`
	JSON    json.RawMessage   `json:"json,omitempty" doc:"The body as a JSON value. Its strings may contain templates." absent:"no body" oneof:"body"`
	Form    map[string]string `json:"form,omitempty" doc:"The body as form fields (application/x-www-form-urlencoded). Values may contain templates." absent:"no body" maxProperties:"64" minProperties:"1" oneof:"body"`
	Body    string            `json:"body,omitempty" doc:"The body as text, sent as it is. secret:NAME/KEY reads it from a secret; env:NAME takes the value of a variable of the run, which accept.env must list." absent:"no body" oneof:"body"`
	Auth    *HTTPAuth         `json:"auth,omitempty" doc:"Credentials, from secrets: one of bearer, basic and signature."`
	TLS     *HTTPTLS          `json:"tls,omitempty" doc:"Certificates for https."`

	Idempotent *bool             `json:"idempotent,omitempty" doc:"Whether the request may be repeated if its outcome is unknown." absent:"true for GET, HEAD, PUT, DELETE and OPTIONS"`
	UnsentFor  *Duration         `json:"unsent_for,omitempty" doc:"How long after the first attempt further attempts are free while none was sent, because the target is unreachable or asks to wait. 0s: none is free." absent:"10m" min:"0s" max:"24h"`
	Redirects  int               `json:"redirects,omitempty" doc:"The maximum number of redirects that are followed." absent:"0" min:"0" max:"5"`
	Expect     HTTPExpect        `json:"expect,omitzero" doc:"Which responses count as success."`
	Results    map[string]string `json:"results,omitempty" doc:"Results of the run: each name with the JSON pointer of its value in the response: {id: /order/id}." absent:"none" maxProperties:"32" example:"{\"id\": \"/order/id\"}"`
	Limit      HTTPLimit         `json:"limit,omitzero" doc:"What a request may use."`
	Output     string            `json:"output,omitempty" doc:"keep stores the response body of a success, too." absent:"only bodies of failures, and the last 256 bytes of a success" enum:"keep"`
}

// HTTPAuth is how a request authenticates. Exactly one field is set. Each names a value of a secret: NAME/KEY.
type HTTPAuth struct {
	Bearer    string `json:"bearer,omitempty" doc:"The token of Authorization: Bearer, as NAME/KEY of a secret." pattern:"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?/[A-Za-z_][A-Za-z0-9_]*$" example:"api/key" oneof:"credentials,required"`
	Basic     string `json:"basic,omitempty" doc:"user:password of Authorization: Basic, as NAME/KEY of a secret." pattern:"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?/[A-Za-z_][A-Za-z0-9_]*$" example:"api/key" oneof:"credentials,required"`
	Signature string `json:"signature,omitempty" doc:"The key with which the body is signed as Standard Webhooks specifies, as NAME/KEY of a secret." pattern:"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?/[A-Za-z_][A-Za-z0-9_]*$" example:"api/key" oneof:"credentials,required"`
}

// HTTPTLS is what a request trusts, and the certificate that it presents. Each field names a value of a secret, in PEM.
type HTTPTLS struct {
	CA   string `json:"ca,omitempty" doc:"The certificate authorities to trust instead of the host's, as secret:NAME/KEY." absent:"the host's" pattern:"^secret:[a-z0-9]([a-z0-9._-]*[a-z0-9])?/[A-Za-z_][A-Za-z0-9_]*$" example:"secret:api/ca"`
	Cert string `json:"cert,omitempty" doc:"The client certificate and its key, as secret:NAME/KEY." absent:"none" pattern:"^secret:[a-z0-9]([a-z0-9._-]*[a-z0-9])?/[A-Za-z_][A-Za-z0-9_]*$" example:"secret:api/ca"`
}

// HTTPExpect is which responses count as success.
type HTTPExpect struct {
	Status []string `json:"status,omitempty" doc:"Status codes from 200 to 599, and classes such as 2xx." absent:"2xx" maxItems:"64" uniqueItems:"true" pattern:"^[2-5]([0-9][0-9]|xx)$"`
	Body   string   `json:"body,omitempty" doc:"A regular expression (RE2) that the response body must match." absent:"none" maxLength:"1024"`
}

// HTTPLimit bounds what a request uses.
type HTTPLimit struct {
	Body      Size `json:"body,omitempty" doc:"How much of the response is read, decompressed." absent:"1Mi" min:"1" max:"16Mi"`
	PerTarget int  `json:"per_target,omitempty" doc:"The maximum number of requests in progress from one node to the same scheme, host and port." absent:"100" min:"1" max:"512"`
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

// BodyVariable returns the variable of the run whose value is the whole body.
func (h *HTTP) BodyVariable() (name string, ok bool) { return strings.CutPrefix(h.Body, EnvBodyPrefix) }

// MayRepeat reports whether the request may be sent again if its outcome is unknown.
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

	KindWorkflow = "workflow"
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
	case a.Workflow != nil:
		return KindWorkflow
	}

	return ""
}

// Unsent describes the attempts of a run that ended before anything was sent, or whose target asked to wait. They are
// counted, not listed in Run.Attempts, and use up no attempt of the retry policy.
type Unsent struct {
	Count   int    `json:"count" doc:"The number of attempts."`
	First   Time   `json:"first" doc:"The end of the first of them."`
	Last    Time   `json:"last" doc:"The end of the last of them."`
	Node    string `json:"node,omitempty" doc:"The node of the last of them. The next attempt prefers another one."`
	Message string `json:"message,omitempty" doc:"What prevented the last of them."`
}

// NotBeforeByTarget is the value of Run.NotBeforeBy if the state of the target decided when the next attempt starts.
const NotBeforeByTarget = "target"

// fieldRef is a reference in a template, with the field that contains it.
type fieldRef struct{ field, ref string }

// refs returns the references in all templates of the action, in the order of its fields. It skips templates that
// cannot be parsed.
func (h *HTTP) refs() []fieldRef {
	const field = "action.http"
	var list []fieldRef

	add := func(field, s string) {
		t, err := ParseTemplate(s)
		if err != nil {
			return
		}
		for _, p := range t {
			if p.Ref != "" {
				list = append(list, fieldRef{field, p.Ref})
			}
		}
	}

	if _, secret := h.URLSecret(); !secret {
		add(field+".url", h.URL)
	}

	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		add(field+".headers."+name, h.Headers[name])
	}

	for _, name := range slices.Sorted(maps.Keys(h.Form)) {
		add(field+".form."+name, h.Form[name])
	}

	if len(h.JSON) > 0 {
		d := json.NewDecoder(bytes.NewReader(h.JSON))
		d.UseNumber() // accepts numbers that do not fit into a float

		var v any
		if d.Decode(&v) == nil {
			eachString(field+".json", v, add)
		}
	}

	if name, ok := h.BodyVariable(); ok {
		list = append(list, fieldRef{field + ".body", EnvRefPrefix + name})
	}

	return list
}

// eachString calls visit for each string in a decoded JSON value, with the path of the string.
func eachString(field string, v any, visit func(field, s string)) {
	switch v := v.(type) {
	case string:
		visit(field, v)
	case []any:
		for i, inner := range v {
			eachString(fmt.Sprintf("%s[%d]", field, i), inner, visit)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			eachString(field+"."+key, v[key], visit)
		}
	}
}

// secretRefs returns each NAME/KEY of a secret that the request needs.
func (h *HTTP) secretRefs() []string {
	var list []string
	for _, s := range []string{h.URL, h.Body} {
		if ref, ok := strings.CutPrefix(s, SecretRefPrefix); ok {
			list = append(list, ref)
		}
	}

	if h.Auth != nil {
		list = append(list, h.Auth.Bearer, h.Auth.Basic, h.Auth.Signature)
	}
	if h.TLS != nil {
		list = append(list, strings.TrimPrefix(h.TLS.CA, SecretRefPrefix), strings.TrimPrefix(h.TLS.Cert, SecretRefPrefix))
	}

	for _, r := range h.refs() {
		if ref, ok := strings.CutPrefix(r.ref, SecretRefPrefix); ok {
			list = append(list, ref)
		}
	}

	return slices.DeleteFunc(list, func(ref string) bool { return ref == "" })
}

// SecretNames returns the sorted names of the secrets whose values an attempt reads.
func (a Action) SecretNames() []string {
	var names []string

	if a.Process != nil {
		for _, f := range a.Process.EnvFrom {
			if f.Secret != "" {
				names = append(names, f.Secret)
			}
		}

		if in := a.Process.Stdin; in != nil && in.Secret != "" {
			name, _, _ := strings.Cut(in.Secret, "/")
			names = append(names, name)
		}
	}

	if a.HTTP != nil {
		for _, ref := range a.HTTP.secretRefs() {
			name, _, _ := strings.Cut(ref, "/")
			names = append(names, name)
		}
	}

	if a.Workflow != nil {
		for _, step := range a.Workflow.Steps {
			names = append(names, step.Action().SecretNames()...)
		}
	}

	slices.Sort(names)

	return slices.Compact(names)
}

// NeedsKey reports whether an attempt reads a secret, for which its node must have a key.
func (a Action) NeedsKey() bool { return len(a.SecretNames()) > 0 }

// ownHeaders are the headers that Carillon or the protocol sets.
var ownHeaders = []string{
	"Host", "Connection", "Keep-Alive", "Content-Length", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Http2-Settings", "Expect",
	"Accept-Encoding", "Idempotency-Key", "Traceparent",
}

// ownHeaderPrefixes are the prefixes of such headers.
var ownHeaderPrefixes = []string{"Proxy-", "Carillon-", "X-Carillon-"}

// CheckHeaderName checks the name of a request header that a user sets.
func CheckHeaderName(field, name string) error {
	if name == "" {
		return Invalid(CodeRequired, field, "contains a header without a name")
	}
	if strings.ContainsFunc(name, func(r rune) bool { return !isTokenRune(r) }) || len(name) > 256 {
		return Invalid(CodeBadName, field, "%s is not the name of a header: letters, digits and !#$%%&'*+-.^_`|~, at most 256 bytes", Quote(name))
	}

	canonical := textproto.CanonicalMIMEHeaderKey(name)
	if slices.Contains(ownHeaders, canonical) || slices.ContainsFunc(ownHeaderPrefixes, func(p string) bool { return strings.HasPrefix(canonical, p) }) {
		return Invalid(CodeBadName, field, "%s is set by Carillon or by the protocol", Quote(name))
	}

	return nil
}

// isTokenRune reports whether a character may occur in the name of a header (RFC 9110).
func isTokenRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r < 0x7f && strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// validateHeaders checks the request headers.
func (h *HTTP) validateHeaders(field string) error {
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		if err := CheckHeaderName(field, name); err != nil {
			return err
		}

		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if other, ok := seen[canonical]; ok {
			return Invalid(CodeDuplicate, field+"."+name, "is the same header as %s", Quote(other))
		}
		seen[canonical] = name

		if err := h.checkAuthHeader(field+"."+name, canonical); err != nil {
			return err
		}
		if err := checkHeaderValue(field+"."+name, h.Headers[name]); err != nil {
			return err
		}
	}

	return nil
}

// checkAuthHeader refuses a header that auth sets.
func (h *HTTP) checkAuthHeader(field, canonical string) error {
	switch {
	case h.Auth == nil:
		return nil
	case canonical == "Authorization":
		return Invalid(CodeBadValue, field, "cannot be combined with action.http.auth")
	case h.Auth.Signature != "" && strings.HasPrefix(canonical, "Webhook-"):
		return Invalid(CodeBadValue, field, "is set by action.http.auth.signature")
	}

	return nil
}

// checkHeaderValue checks the value of a header, and its templates.
func checkHeaderValue(field, value string) error {
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return Invalid(CodeBadValue, field, "contains a line break or another control character")
	}
	if value != strings.TrimSpace(value) {
		return Invalid(CodeBadValue, field, "%s begins or ends with a space, which a header value cannot", Quote(value))
	}

	return checkTemplate(field, value)
}
