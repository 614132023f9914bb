package wording

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// Field is a property for people. Code is set if the value is text of a program or of a message.
type Field struct {
	Name, Value string
	Code        bool
}

// fields collects fields. Those without a value are left out.
type fields []Field

func (f *fields) add(name, value string) {
	if value != "" {
		*f = append(*f, Field{Name: name, Value: value})
	}
}

func (f *fields) addCode(name, value string) {
	if value != "" {
		*f = append(*f, Field{Name: name, Value: value, Code: true})
	}
}

// RequestText returns the method and the URL of a request: "POST https://api.example.com/orders".
func RequestText(h *task.HTTP) string { return h.EffectiveMethod() + " " + h.URL }

// HTTPFields returns the fields of an HTTP action that are set, and those whose defaults people need to know. A value can
// have several lines.
func HTTPFields(h *task.HTTP) []Field {
	var list fields
	list.addCode("Request", RequestText(h))
	list.addCode("Headers", pairLines("%s: %s", h.Headers))
	list.addCode("Body", bodyText(h))
	list.addCode("Form", pairLines("%s=%s", h.Form))
	list.add("Authentication", authText(h.Auth))
	list.add("TLS", tlsText(h.TLS))
	list.add("Idempotent", idempotentText(h))
	list.add("Expects", expectText(h.Expect))
	list.addCode("Results", pairLines("%s = %s", h.Results))

	if h.Redirects > 0 {
		list.add("Redirects", fmt.Sprintf("at most %d", h.Redirects))
	}
	if h.UnsentFor != nil {
		list.add("Free attempts", fmt.Sprintf("for %s while the target cannot be reached or asks to wait", *h.UnsentFor))
	}

	list.add("Request limits", httpLimitText(h.Limit))

	if h.Output == task.HTTPOutputKeep {
		list.add("Response", "always stored")
	}

	return list
}

// pairLines returns a line for each pair, sorted by names.
func pairLines(format string, pairs map[string]string) string {
	var lines []string
	for _, k := range slices.Sorted(maps.Keys(pairs)) {
		lines = append(lines, fmt.Sprintf(format, k, pairs[k]))
	}

	return strings.Join(lines, "\n")
}

// bodyText returns the body, unless it is a form. JSON is indented if it is long.
func bodyText(h *task.HTTP) string {
	if len(h.JSON) == 0 {
		return strings.TrimRight(h.Body, "\n")
	}

	const most = 80 // characters on one line
	text := JSONText(h.JSON)

	var b bytes.Buffer
	if len(text) > most && json.Indent(&b, []byte(text), "", "  ") == nil {
		return b.String()
	}

	return text
}

// plainJSON replaces the escape sequences that encoding/json uses for characters of HTML. It skips escaped backslashes.
var plainJSON = strings.NewReplacer(`\\`, `\\`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&")

// JSONText returns a stored JSON value as people write it.
func JSONText(raw json.RawMessage) string { return plainJSON.Replace(string(raw)) }

// authText describes the credentials.
func authText(a *task.HTTPAuth) string {
	switch {
	case a == nil:
		return ""
	case a.Bearer != "":
		return "bearer token, from secret " + a.Bearer
	case a.Basic != "":
		return "user and password, from secret " + a.Basic
	}

	return "signature (Standard Webhooks), with the key from secret " + a.Signature
}

// tlsText describes the certificates.
func tlsText(t *task.HTTPTLS) string {
	if t == nil {
		return ""
	}

	var words []string
	if t.CA != "" {
		words = append(words, "authorities from "+strings.Replace(t.CA, ":", " ", 1))
	}
	if t.Cert != "" {
		words = append(words, "client certificate from "+strings.Replace(t.Cert, ":", " ", 1))
	}

	return strings.Join(words, "; ")
}

// idempotentText says what happens if a request was sent and no complete response arrived.
func idempotentText(h *task.HTTP) string {
	why := ""
	if h.Idempotent == nil {
		why = " (" + h.EffectiveMethod() + ")"
	}
	if h.MayRepeat() {
		return "yes" + why + ": a request without a response may be repeated"
	}

	return "no" + why + ": a request without a response is lost"
}

// expectText describes which responses count as success.
func expectText(e task.HTTPExpect) string {
	words := cmp.Or(strings.Join(e.Status, ", "), "2xx")
	if e.Body != "" {
		words += "; a body that matches " + e.Body
	}
	return words
}

// httpLimitText describes the limits that are set.
func httpLimitText(l task.HTTPLimit) string {
	var words []string
	if l.Body > 0 {
		words = append(words, "responses "+l.Body.String())
	}
	if l.PerTarget > 0 {
		words = append(words, fmt.Sprintf("%d at the same time for each node and target", l.PerTarget))
	}

	return strings.Join(words, ", ")
}

// httpResult describes how an attempt of an HTTP action ended, or returns "" for other attempts and reasons.
func httpResult(r task.Run) string {
	state := strings.ReplaceAll(string(r.State), "_", " ")

	switch r.Reason {
	case task.ReasonUnsent:
		return "not sent"
	case task.ReasonAnswer:
		switch {
		case r.HTTPStatus >= 400:
			return fmt.Sprintf("HTTP %d", r.HTTPStatus)
		case r.HTTPStatus > 0:
			return fmt.Sprintf("unexpected response (HTTP %d)", r.HTTPStatus)
		}
		return "unexpected response"
	case task.ReasonUnanswered:
		if r.State == task.Failed {
			return "no response"
		}
		return state + " (no response)"
	case task.ReasonURL:
		return "bad URL"
	case task.ReasonTLS:
		return "TLS error"
	}

	return ""
}

// UnsentText describes the attempts of a run that were not sent.
func UnsentText(u *task.Unsent) string {
	if u == nil || u.Count == 0 {
		return ""
	}

	words := Plural(int64(u.Count), "attempt") + " that the retry policy does not count"
	if u.Message != "" {
		words += "; the last one: " + OneLine(u.Message)
	}

	return words
}
