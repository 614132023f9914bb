package task

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Limits of HTTP actions.
const (
	MaxHTTPAction  = 16 << 10 // bytes of the JSON form; a larger body comes from a secret
	MaxHTTPTimeout = Duration(time.Hour)
	MaxHeaders     = 64 // also for form fields and expected statuses
	MaxRedirects   = 5
	MaxHTTPBody    = Size(16 << 20)
	maxPointer     = 1024 // bytes of a JSON pointer
)

// Defaults of HTTP actions. A task without these fields is stored without them.
const (
	DefaultHTTPTimeout = Duration(30 * time.Second)
	DefaultHTTPBody    = Size(1 << 20)
	DefaultPerTarget   = 100
	DefaultUnsentFor   = Duration(10 * time.Minute)
)

// HTTPMethods returns the methods that an HTTP action may have.
func HTTPMethods() []string {
	f, _ := FindField(SpecFields(), "action.http.method")
	return slices.Clone(f.Enum)
}

// ResultName matches the names of results, whether a status file or a response contains them.
var ResultName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,63}$`)

// expectedStatus matches a final status code, or a class of them.
var expectedStatus = regexp.MustCompile(`^[2-5]([0-9][0-9]|xx)$`)

// normalizeHTTP gives the body of a request the form in which it is stored. A body that is null is absent.
func normalizeHTTP(h *HTTP) error {
	if h.JSON == nil {
		return nil
	}

	d := json.NewDecoder(bytes.NewReader(h.JSON))
	d.UseNumber()

	var b bytes.Buffer
	if err := rewriteJSON(d, &b); err != nil {
		return Invalid(CodeBadJSON, "action.http.json", "%s", err)
	}

	h.JSON = b.Bytes()
	if b.String() == "null" {
		h.JSON = nil
	}

	return nil
}

// rewriteJSON writes the next value of a decoder without spaces, and its strings as json.Marshal writes them. It keeps
// the order of fields, and numbers as they are. Two equal bodies from different tools, such as an editor and a program that
// reads YAML, have the same form then, so that one does not replace the other as a change.
func rewriteJSON(d *json.Decoder, b *bytes.Buffer) error {
	tok, err := d.Token()
	if err != nil {
		return err
	}

	delim, isDelim := tok.(json.Delim)
	if !isDelim {
		text, err := json.Marshal(tok)
		b.Write(text)
		return err
	}

	b.WriteRune(rune(delim))
	for first := true; d.More(); first = false {
		if !first {
			b.WriteByte(',')
		}

		if delim == '{' {
			if err := rewriteJSON(d, b); err != nil { // the name of the field
				return err
			}
			b.WriteByte(':')
		}

		if err := rewriteJSON(d, b); err != nil {
			return err
		}
	}

	end, err := d.Token()
	if err == nil {
		b.WriteRune(rune(end.(json.Delim)))
	}

	return err
}

// validate checks the fields of an HTTP action.
func (h *HTTP) validate() error {
	const field = "action.http"

	checks := []func() error{
		func() error { return checkURL(field+".url", h.URL) },
		func() error { return h.validateHeaders(field + ".headers") },
		func() error { return h.validateBody(field) },
		func() error { return h.validateAuth(field + ".auth") },
		func() error { return h.validateTLS(field + ".tls") },
		func() error { return h.validateExpect(field + ".expect") },
		func() error { return h.validateResults(field + ".results") },
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}

	b, err := json.Marshal(h)
	if err != nil {
		return Invalid(CodeBadValue, field, "%s", err)
	}
	if len(b) > MaxHTTPAction {
		return Invalid(CodeTooLong, field, "is %d bytes as JSON; at most %d are allowed. A larger body can come from a secret: body: secret:NAME/KEY", len(b), MaxHTTPAction)
	}

	return nil
}

// validateBody checks that there is at most one body, and its templates.
func (h *HTTP) validateBody(field string) error {
	var bodies []string
	for name, is := range map[string]bool{"json": len(h.JSON) > 0, "form": h.Form != nil, "body": h.Body != ""} {
		if is {
			bodies = append(bodies, name)
		}
	}

	if len(bodies) > 1 {
		slices.Sort(bodies)
		return Invalid(CodeBadValue, field+"."+bodies[1], "cannot be combined with %s; a request has one body: json, form or body", bodies[0])
	}

	if len(h.JSON) > 0 {
		if err := checkJSONTemplates(field+".json", h.JSON); err != nil {
			return err
		}
	}

	if err := h.validateForm(field + ".form"); err != nil {
		return err
	}

	// The body may be any text, but one that begins like a reference must be one: otherwise a misspelled reference would be sent
	// to the target.
	if ref, ok := strings.CutPrefix(h.Body, SecretRefPrefix); ok {
		return checkSecretRef(field+".body", ref)
	}
	if name, ok := h.BodyVariable(); ok {
		return CheckVariable(field+".body", name)
	}

	return nil
}

// validateForm checks the fields of a form.
func (h *HTTP) validateForm(field string) error {
	if h.Form != nil && len(h.Form) == 0 {
		return Invalid(CodeRequired, field, "is empty; omit it for a request without a body")
	}

	for _, name := range slices.Sorted(maps.Keys(h.Form)) {
		if name == "" {
			return Invalid(CodeRequired, field, "contains a field without a name")
		}
		if strings.Contains(name, "${") {
			return Invalid(CodeBadValue, field, "%s: templates are allowed in values, not in names", Quote(name))
		}
		if err := checkTemplate(field+"."+name, h.Form[name]); err != nil {
			return err
		}
	}

	return nil
}

// checkJSONTemplates checks the templates in the strings of a JSON value.
func checkJSONTemplates(field string, raw json.RawMessage) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()

	var v any
	if err := d.Decode(&v); err != nil {
		return Invalid(CodeBadJSON, field, "%s", err)
	}

	return checkTemplatesIn(field, v)
}

// checkTemplatesIn checks the templates in the strings of a decoded JSON value.
func checkTemplatesIn(field string, v any) error {
	switch v := v.(type) {
	case string:
		return checkTemplate(field, v)
	case []any:
		for i, inner := range v {
			if err := checkTemplatesIn(fmt.Sprintf("%s[%d]", field, i), inner); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if strings.Contains(key, "${") {
				return Invalid(CodeBadValue, field, "%s: templates are allowed in values, not in keys", Quote(key))
			}
			if err := checkTemplatesIn(field+"."+key, v[key]); err != nil {
				return err
			}
		}
	}

	return nil
}

// checkTemplate checks a template that may contain any reference.
func checkTemplate(field, s string) error {
	if _, err := ParseTemplate(s); err != nil {
		return templateError(field, err)
	}
	return nil
}

// templateError returns the error of ParseTemplate for a field.
func templateError(field string, err error) error {
	return Invalid(CodeBadValue, field, "%s", err)
}

// checkSecretRef checks NAME/KEY, a reference to a value of a secret.
func checkSecretRef(field, ref string) error {
	if _, _, err := ParseSecretRef(ref); err != nil {
		return Invalid(CodeBadValue, field, "%s", err)
	}
	return nil
}

// validateAuth checks the credentials.
func (h *HTTP) validateAuth(field string) error {
	a := h.Auth
	if a == nil {
		return nil
	}

	var kinds []string
	for _, k := range []struct{ name, ref string }{{"bearer", a.Bearer}, {"basic", a.Basic}, {"signature", a.Signature}} {
		if k.ref == "" {
			continue
		}
		if err := checkSecretRef(field+"."+k.name, k.ref); err != nil {
			return err
		}
		kinds = append(kinds, k.name)
	}

	switch {
	case len(kinds) == 0:
		return Invalid(CodeRequired, field, "requires one of bearer, basic and signature")
	case len(kinds) > 1:
		return Invalid(CodeBadValue, field+"."+kinds[1], "cannot be combined with %s; exactly one of bearer, basic and signature is allowed", kinds[0])
	}

	return nil
}

// validateTLS checks the references to certificates.
func (h *HTTP) validateTLS(field string) error {
	if h.TLS == nil {
		return nil
	}
	if h.TLS.CA == "" && h.TLS.Cert == "" {
		return Invalid(CodeRequired, field, "requires ca or cert")
	}
	if _, secret := h.URLSecret(); !secret && strings.HasPrefix(strings.ToLower(h.URL), "http:") {
		return Invalid(CodeBadValue, field, "requires an https URL")
	}

	for _, f := range []struct{ name, ref string }{{"ca", h.TLS.CA}, {"cert", h.TLS.Cert}} {
		if f.ref == "" {
			continue
		}

		ref, ok := strings.CutPrefix(f.ref, SecretRefPrefix)
		if !ok {
			return Invalid(CodeBadValue, field+"."+f.name, "%s is not secret:NAME/KEY", Quote(f.ref))
		}
		if err := checkSecretRef(field+"."+f.name, ref); err != nil {
			return err
		}
	}

	return nil
}

// validateExpect checks which responses count as success.
func (h *HTTP) validateExpect(field string) error {
	for i, s := range h.Expect.Status {
		if !expectedStatus.MatchString(s) {
			return Invalid(CodeBadValue, fmt.Sprintf("%s.status[%d]", field, i), "%s is not a status from 200 to 599, or a class such as 2xx", Quote(s))
		}
	}

	if h.Expect.Body != "" && h.EffectiveMethod() == http.MethodHead {
		return Invalid(CodeBadValue, field+".body", "does not apply to HEAD, whose responses have no body")
	}

	return checkPattern(field+".body", h.Expect.Body)
}

// validateResults checks the names of results and the pointers to their values.
func (h *HTTP) validateResults(field string) error {
	if len(h.Results) > 0 && h.EffectiveMethod() == http.MethodHead {
		return Invalid(CodeBadValue, field, "does not apply to HEAD, whose responses have no body")
	}

	for _, name := range slices.Sorted(maps.Keys(h.Results)) {
		if !ResultName.MatchString(name) || name == "checkpoint" {
			return Invalid(CodeBadName, field, "%s is not the name of a result: letters, digits, '_', '.' and '-', beginning with a letter or '_', at most 64 bytes, and not checkpoint", Quote(name))
		}
		if err := checkPointer(field+"."+name, h.Results[name]); err != nil {
			return err
		}
	}

	return nil
}

// checkPointer checks a JSON pointer (RFC 6901).
func checkPointer(field, p string) error {
	switch {
	case len(p) > maxPointer:
		return Invalid(CodeTooLong, field, "is %d bytes long; at most %d are allowed", len(p), maxPointer)
	case p != "" && !strings.HasPrefix(p, "/"):
		return Invalid(CodeBadValue, field, "%s is not a JSON pointer, such as /order/id; did you mean %s?", Quote(p), Quote("/"+strings.ReplaceAll(p, ".", "/")))
	}

	// "~" only occurs in the escape sequences "~0" (for "~") and "~1" (for "/").
	for rest := p; ; {
		_, after, found := strings.Cut(rest, "~")
		if !found {
			return nil
		}
		if after == "" || after[0] != '0' && after[0] != '1' {
			return Invalid(CodeBadValue, field, "%s is not a JSON pointer: write ~0 for ~ and ~1 for / within a name", Quote(p))
		}
		rest = after[1:]
	}
}

// refuseNone rejects an explicit limit of 0. An absent limit is also stored as 0, which means the default.
func (h HTTPLimit) refuseNone(b []byte) error {
	var said struct {
		Action struct {
			HTTP struct{ Limit map[string]json.RawMessage }
		}
	}
	if json.Unmarshal(b, &said) != nil {
		return nil
	}

	for _, f := range []struct {
		name string
		none bool
	}{{"body", h.Body == 0}, {"per_target", h.PerTarget == 0}} {
		if v, ok := said.Action.HTTP.Limit[f.name]; ok && f.none && string(v) != "null" {
			return Invalid(CodeOutOfRange, "action.http.limit."+f.name, "0 is not a limit; omit the field for the default")
		}
	}

	return nil
}

// validateHTTP checks the fields of a task that depend on its HTTP action: those that only apply to processes, and
// references to parts.
func (s *Spec) validateHTTP() error {
	h := s.Action.HTTP
	if h == nil {
		return nil
	}

	if s.Timeout > MaxHTTPTimeout {
		return Invalid(CodeOutOfRange, "timeout", "%s is not between 0s and %s, the maximum for an HTTP action", s.Timeout, MaxHTTPTimeout)
	}

	for _, f := range []struct {
		field, instead string
		set            bool
	}{
		{"kill_signal", "", s.KillSignal != ""},
		{"kill_grace", "", s.KillGrace != Defaults().KillGrace},
		{"success.exit_codes", "; use action.http.expect.status", len(s.Success.ExitCodes) > 0},
		{"success.output", "; use action.http.expect.body", s.Success.Output != ""},
		{"success.not_output", "; use action.http.expect.body", s.Success.NotOutput != ""},
		{"retry.exit_codes", "", len(s.Retry.ExitCodes) > 0},
		{"output.streams", "", s.Output.Streams != ""},
		{"output.mask", "; responses are always masked", s.Output.Mask != nil},
	} {
		if f.set {
			return Invalid(CodeBadValue, f.field, "applies only to processes, but the action is http%s", f.instead)
		}
	}

	return s.checkRefs(h.refs())
}

// checkRefs refuses references that no run of the task could resolve.
func (s *Spec) checkRefs(list []fieldRef) error {
	for _, r := range list {
		if strings.HasPrefix(r.ref, "part.") && !s.Target.FansOut() {
			return Invalid(CodeBadValue, r.field, "%s requires a task with parts: target.count or target.parts", Quote("${"+r.ref+"}"))
		}

		if IsStepRef(r.ref) {
			return Invalid(CodeBadValue, r.field, "%s has a value only in a step of a workflow", Quote("${"+r.ref+"}"))
		}

		name, ok := strings.CutPrefix(r.ref, EnvRefPrefix)
		if ok && !slices.Contains(s.Accept.Env, name) {
			return Invalid(CodeBadValue, r.field, "%s has a value only if manual runs may set it: add %s to accept.env", Quote("${"+r.ref+"}"), name)
		}
	}

	return nil
}
