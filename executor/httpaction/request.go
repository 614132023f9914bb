package httpaction

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/task"
)

// The headers that every request has.
const (
	headerKey   = "Idempotency-Key"        // the run, the same for all of its attempts
	headerToken = "Carillon-Fencing-Token" // increases with every attempt of the task
	headerTrace = "Traceparent"            // W3C trace context
	userAgent   = "Carillon"               // unless the task sets another one
	typeJSON    = "application/json"
	ownHeaders  = 5 // the number of headers that are set for most requests
)

// Values of headers. Requests share them, so nothing may change them.
var (
	userAgents = []string{userAgent}
	typesText  = []string{"text/plain; charset=utf-8"}
	typesJSON  = []string{typeJSON}
	typesForm  = []string{"application/x-www-form-urlencoded"}
)

// request is the request of one hop.
type request struct {
	method string
	url    *url.URL
	header http.Header
	body   []byte // nil: none
	tls    tlsIdentity
}

// target returns the target of the request for messages.
func (re *request) target() string { return targetOf(re.url) }

// targetOf returns the scheme and the host, which is all that messages contain of a URL.
func targetOf(u *url.URL) string { return u.Scheme + "://" + u.Host }

// newRequest returns the first request of an attempt. An error is a *failure, or the cause of ctx's end.
func newRequest(ctx context.Context, h *task.HTTP, v *values, now time.Time) (*request, error) {
	q := &request{method: h.EffectiveMethod(), header: make(http.Header, ownHeaders+len(h.Headers))}
	if !slices.Contains(task.HTTPMethods(), q.method) {
		return nil, &failure{kind: kindURL, message: fmt.Sprintf("action.http.method: %s is not a method of HTTP actions", task.Quote(q.method))}
	}

	if err := q.setURL(ctx, h, v); err != nil {
		return nil, err
	}

	if err := q.setHeaders(ctx, h, v); err != nil {
		return nil, err
	}
	if err := q.setBody(ctx, h, v); err != nil {
		return nil, err
	}
	if err := q.setAuth(ctx, h.Auth, v, now); err != nil {
		return nil, err
	}
	if err := q.setTLS(ctx, h.TLS, v); err != nil {
		return nil, err
	}

	q.setOwnHeaders(v.attempt)

	return q, nil
}

// setHeaders sets the headers of the task.
func (re *request) setHeaders(ctx context.Context, h *task.HTTP, v *values) error {
	if len(h.Headers) == 0 {
		return nil
	}

	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		if err := task.CheckHeaderName("action.http.headers", name); err != nil {
			return &failure{kind: kindURL, message: err.Error()}
		}

		value, err := v.expand(ctx, h.Headers[name], checkHeaderValue)
		if err != nil {
			return inField(err, "action.http.headers."+name)
		}
		re.header.Set(name, value)
	}

	return nil
}

// setOwnHeaders sets the headers that every request has. It must be called last, so that nothing replaces them.
func (re *request) setOwnHeaders(a *process.Attempt) {
	if re.header.Get("User-Agent") == "" {
		re.header["User-Agent"] = userAgents
	}

	// One allocation for all values, instead of one each.
	list := []string{a.ID, strconv.FormatInt(a.Token, 10), process.NewTraceparent(a.Namespace, a.Task, a.ID)}
	re.header[headerKey], re.header[headerToken], re.header[headerTrace] = list[0:1:1], list[1:2:2], list[2:3:3]
}

// inField adds the field to the message of a failure in a template.
func inField(err error, field string) error {
	if f, ok := err.(*failure); ok {
		return &failure{kind: f.kind, message: field + ": " + f.message}
	}
	return err
}

// setURL sets the URL. It also checks what messages show of it: a scheme and a host, and no credentials.
func (re *request) setURL(ctx context.Context, h *task.HTTP, v *values) error {
	text, err := "", error(nil)
	ref, secret := h.URLSecret()
	if secret {
		text, err = v.secrets.value(ctx, ref)
	} else {
		text, err = v.expandURL(ctx, h.URL)
	}

	if err != nil {
		return inField(err, "action.http.url")
	}

	u, err := parseURL(text)
	if err != nil {
		return inField(err, "action.http.url")
	}
	re.url = u

	if secret {
		// A target that shows the path of its requests shows the secret.
		v.secrets.mask.HideURL(u)
	}

	return nil
}

// parseURL parses a URL that may be requested. The error is a *failure that contains nothing of the URL, which may be a
// secret.
func parseURL(text string) (*url.URL, error) {
	u, err := task.ParsePlainURL("", text)
	if err != nil {
		return nil, &failure{kind: kindURL, message: "the URL is not valid: it must be http or https with a host, without credentials, fragment, spaces and control characters"}
	}

	u.Scheme, u.Host = strings.ToLower(u.Scheme), strings.ToLower(u.Host)

	return u, nil
}

// setBody sets the body and its type.
func (re *request) setBody(ctx context.Context, h *task.HTTP, v *values) (err error) {
	var kind []string

	switch {
	case len(h.JSON) > 0:
		kind = typesJSON
		if re.body, err = v.expandJSON(ctx, h.JSON); err != nil {
			return inField(err, "action.http.json")
		}

	case len(h.Form) > 0:
		kind = typesForm
		form := url.Values{}
		for name, text := range h.Form {
			value, err := v.expand(ctx, text, nil)
			if err != nil {
				return inField(err, "action.http.form."+name)
			}
			form.Set(name, value)
		}
		re.body = []byte(form.Encode())

	case h.Body != "":
		kind = typesText
		text := h.Body
		if ref, ok := strings.CutPrefix(text, task.SecretRefPrefix); ok {
			if text, err = v.secrets.value(ctx, ref); err != nil {
				return inField(err, "action.http.body")
			}
			v.secrets.mask.HideBody(text)
		} else if name, ok := h.BodyVariable(); ok {
			if text, err = v.valueOf(ctx, task.EnvRefPrefix+name); err != nil {
				return inField(err, "action.http.body")
			}
		}
		re.body = []byte(text)
	}

	if kind != nil && re.header.Get("Content-Type") == "" {
		re.header["Content-Type"] = kind
	}

	return nil
}

// setAuth sets the headers of the credentials.
func (re *request) setAuth(ctx context.Context, auth *task.HTTPAuth, v *values, now time.Time) error {
	if auth == nil {
		return nil
	}

	read := func(field, ref string) (string, error) {
		value, err := v.secrets.value(ctx, ref)
		if err == nil {
			_, err = checkHeaderValue(value)
			if err != nil {
				err = &failure{kind: kindSecret, message: "secret " + ref + " " + err.Error()}
			}
		}
		return value, inField(err, "action.http.auth."+field)
	}

	switch {
	case auth.Bearer != "":
		value, err := read("bearer", auth.Bearer)
		if err != nil {
			return err
		}
		re.header.Set("Authorization", "Bearer "+value)

	case auth.Basic != "":
		value, err := read("basic", auth.Basic)
		if err != nil {
			return err
		}

		encoded := base64.StdEncoding.EncodeToString([]byte(value))
		_, password, _ := strings.Cut(value, ":")
		v.secrets.mask.Hide(password)
		v.secrets.mask.Hide(encoded)
		re.header.Set("Authorization", "Basic "+encoded)

	case auth.Signature != "":
		value, err := read("signature", auth.Signature)
		if err != nil {
			return err
		}
		return re.sign(value, auth.Signature, v.attempt.ID, now)
	}

	return nil
}

// sign signs the body as Standard Webhooks specifies. All attempts of a run have the same ID, by which the target
// recognizes a repetition.
func (re *request) sign(key, ref, id string, now time.Time) error {
	hook, err := standardwebhooks.NewWebhook(strings.TrimSpace(key))
	if err != nil {
		return &failure{kind: kindSecret, message: fmt.Sprintf("action.http.auth.signature: secret %s is not a key of Standard Webhooks: whsec_ and Base64", ref)}
	}

	signature, err := hook.Sign(id, now, re.body)
	if err != nil {
		return &failure{kind: kindSecret, message: fmt.Sprintf("action.http.auth.signature: cannot sign with secret %s", ref)}
	}

	re.header.Set(standardwebhooks.HeaderWebhookID, id)
	re.header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	re.header.Set(standardwebhooks.HeaderWebhookSignature, signature)

	return nil
}

// setTLS reads the certificates.
func (re *request) setTLS(ctx context.Context, t *task.HTTPTLS, v *values) error {
	if t == nil {
		return nil
	}

	for _, f := range []struct {
		field, ref string
		to         *string
	}{{"ca", t.CA, &re.tls.ca}, {"cert", t.Cert, &re.tls.cert}} {
		if f.ref == "" {
			continue
		}

		value, err := v.secrets.value(ctx, strings.TrimPrefix(f.ref, task.SecretRefPrefix))
		if err != nil {
			return inField(err, "action.http.tls."+f.field)
		}
		*f.to = value
	}

	return nil
}

// httpRequest returns the request for net/http. Its body cannot be read twice, so that net/http cannot send it twice.
func (re *request) httpRequest(ctx context.Context) *http.Request {
	r := &http.Request{Method: re.method, URL: re.url, Header: re.header, Host: re.url.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	// A target that answers HEAD with a body leaves a connection that cannot be used again, and net/http would log what
	// is left in it.
	r.Close = re.method == http.MethodHead

	if re.body != nil {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(re.body)), int64(len(re.body))
	}

	return r.WithContext(ctx)
}

// isRedirect reports whether a status asks for another request.
func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// follow returns the request to which a response redirects. 307 and 308 repeat the request; the others become GET
// without a body. A request to another origin has nothing of the task but its method: no header, credentials, client
// certificate, token or body. An error is a *failure that shows no more of a URL than scheme and host.
func (re *request) follow(status int, location string) (*request, error) {
	refuse := func(format string, args ...any) (*request, error) {
		return nil, &failure{kind: kindURL, message: fmt.Sprintf("%s redirected with HTTP %d ", re.target(), status) + fmt.Sprintf(format, args...)}
	}

	to, err := re.url.Parse(location)
	if err != nil {
		return refuse("to a URL that is not valid")
	}

	to.Fragment, to.RawFragment = "", ""
	if to, err = parseURL(to.String()); err != nil {
		return refuse("to a URL that must not be requested: it must be http or https with a host, without credentials, spaces and control characters")
	}

	next := &request{method: re.method, url: to, header: re.header.Clone(), body: re.body, tls: re.tls}
	keepsBody := status == http.StatusTemporaryRedirect || status == http.StatusPermanentRedirect
	if !keepsBody {
		if next.method != http.MethodHead {
			next.method = http.MethodGet
		}
		next.dropBody()
	}

	switch {
	case re.url.Scheme == "https" && to.Scheme != "https":
		return refuse("from https to http, which is not followed: %s", next.target())
	case sameOrigin(re.url, to):
		return next, nil
	case keepsBody && re.body != nil:
		return refuse("to another origin, to which the body is not sent: %s", next.target())
	}

	next.header = http.Header{"User-Agent": {userAgent}}
	next.tls.cert = ""

	return next, nil
}

// dropBody removes the body and the headers that describe it.
func (re *request) dropBody() {
	re.body = nil
	for name := range re.header {
		if strings.HasPrefix(name, "Content-") || strings.HasPrefix(name, "Webhook-") {
			re.header.Del(name)
		}
	}
}

// sameOrigin reports whether two URLs have the same scheme, host and port.
func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && portOf(a) == portOf(b)
}

// portOf returns the port of a URL, or that of its scheme.
func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}
