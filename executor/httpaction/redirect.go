package httpaction

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

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
func (q *request) follow(status int, location string) (*request, error) {
	refuse := func(format string, args ...any) (*request, error) {
		return nil, &failure{kind: kindURL, message: fmt.Sprintf("%s redirected with HTTP %d ", q.target(), status) + fmt.Sprintf(format, args...)}
	}

	to, err := q.url.Parse(location)
	if err != nil {
		return refuse("to a URL that is not valid")
	}

	to.Fragment, to.RawFragment = "", ""
	if to, err = parseURL(to.String()); err != nil {
		return refuse("to a URL that must not be requested: it must be http or https with a host, without credentials, spaces and control characters")
	}

	next := &request{method: q.method, url: to, header: q.header.Clone(), body: q.body, tls: q.tls}
	keepsBody := status == http.StatusTemporaryRedirect || status == http.StatusPermanentRedirect
	if !keepsBody {
		if next.method != http.MethodHead {
			next.method = http.MethodGet
		}
		next.dropBody()
	}

	switch {
	case q.url.Scheme == "https" && to.Scheme != "https":
		return refuse("from https to http, which is not followed: %s", next.target())
	case sameOrigin(q.url, to):
		return next, nil
	case keepsBody && q.body != nil:
		return refuse("to another origin, to which the body is not sent: %s", next.target())
	}

	next.header = http.Header{"User-Agent": {userAgent}}
	next.tls.cert = ""

	return next, nil
}

// dropBody removes the body and the headers that describe it.
func (q *request) dropBody() {
	q.body = nil
	for name := range q.header {
		if strings.HasPrefix(name, "Content-") || strings.HasPrefix(name, "Webhook-") {
			q.header.Del(name)
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
