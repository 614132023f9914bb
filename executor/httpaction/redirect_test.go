package httpaction

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// redirected is a request of a task with everything that must not leave its origin.
func redirected(t *testing.T, method, body string) *request {
	t.Helper()

	u, err := url.Parse("https://api.corp/orders?key=hush")
	if err != nil {
		t.Fatal(err)
	}

	q := &request{method: method, url: u, header: http.Header{
		"Authorization": {"Bearer hush"}, "X-Key": {"hush"}, "Cookie": {"hush"}, headerKey: {"r1"}, headerToken: {"7"}, headerTrace: {"00-x"}, "User-Agent": {"own"},
		"Webhook-Signature": {"v1,x"},
	}, tls: tlsIdentity{ca: "ca", cert: "hush"}}
	if body != "" {
		q.body = []byte(body)
		q.header.Set("Content-Type", "text/plain")
	}

	return q
}

func TestFollow(t *testing.T) {
	tests := map[string]struct {
		method, body string
		status       int
		location     string

		want     string // method and URL, or a part of the error
		keeps    bool   // the headers of the task
		keepBody bool
	}{
		"307, same origin":            {"POST", "x", 307, "/new", "POST https://api.corp/new", true, true},
		"308, same origin":            {"PUT", "x", 308, "https://API.corp:443/new?a=b", "PUT https://api.corp:443/new?a=b", true, true},
		"301 becomes GET":             {"POST", "x", 301, "/new", "GET https://api.corp/new", true, false},
		"302 becomes GET":             {"PUT", "x", 302, "new", "GET https://api.corp/new", true, false},
		"303 becomes GET":             {"DELETE", "", 303, "?b", "GET https://api.corp/orders?b", true, false},
		"303 stays HEAD":              {"HEAD", "", 303, "/new", "HEAD https://api.corp/new", true, false},
		"the fragment is not sent":    {"GET", "", 302, "/new#x", "GET https://api.corp/new", true, false},
		"another host":                {"GET", "", 302, "https://other.corp/x", "GET https://other.corp/x", false, false},
		"another host, 303 of a POST": {"POST", "x", 303, "https://other.corp/x", "GET https://other.corp/x", false, false},
		"another port":                {"GET", "", 302, "https://api.corp:8443/x", "GET https://api.corp:8443/x", false, false},
		"scheme-relative":             {"GET", "", 302, "//other.corp/x", "GET https://other.corp/x", false, false},
		"subdomain":                   {"GET", "", 302, "https://sub.api.corp/x", "GET https://sub.api.corp/x", false, false},
		"another host, 307, no body":  {"DELETE", "", 307, "https://other.corp/x", "DELETE https://other.corp/x", false, false},
		"another host, 307, body":     {"POST", "x", 307, "https://other.corp/x?hush", "https://api.corp redirected with HTTP 307 to another origin, to which the body is not sent: https://other.corp", false, false},
		"to http":                     {"GET", "", 302, "http://api.corp/x", "from https to http", false, false},
		"to another scheme":           {"GET", "", 302, "file:///etc/hush", "must not be requested", false, false},
		"credentials":                 {"GET", "", 302, "https://u:hush@api.corp/x", "must not be requested", false, false},
		"no host":                     {"GET", "", 302, "https:///hush", "must not be requested", false, false},
		"not a URL":                   {"GET", "", 302, "https://api.corp:hush/", "not valid", false, false},
		"control characters":          {"GET", "", 302, "/x\x01hush", "not valid", false, false},
	}

	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			q := redirected(t, tt.method, tt.body)
			next, err := q.follow(tt.status, tt.location)

			if err != nil {
				var f *failure
				if !errors.As(err, &f) || f.kind != kindURL || !strings.Contains(f.message, tt.want) || strings.Contains(f.message, "hush") {
					t.Fatalf("error %v", err)
				}
				return
			}

			if got := next.method + " " + next.url.String(); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if tt.keeps != (next.header.Get("X-Key") != "") || tt.keeps != (next.header.Get("Authorization") != "") || tt.keeps != (next.tls.cert != "") || next.header.Get("Referer") != "" {
				t.Errorf("headers %v, certificate %q", next.header, next.tls.cert)
			}
			if !tt.keeps && (len(next.header) != 1 || next.header.Get("User-Agent") != userAgent) {
				t.Errorf("headers %v", next.header)
			}
			if tt.keepBody != (next.body != nil) || tt.keepBody != (next.header.Get("Content-Type") != "") {
				t.Errorf("body %q, headers %v", next.body, next.header)
			}
			if q.header.Get("X-Key") == "" || q.url.Path != "/orders" {
				t.Error("the request itself was changed")
			}
		})
	}
}

// What was dropped stays dropped when a later redirect leads back.
func TestFollow_DroppedHeadersDoNotComeBack(t *testing.T) {
	q := redirected(t, "GET", "")
	there, err := q.follow(302, "https://other.corp/x")
	if err != nil {
		t.Fatal(err)
	}

	back, err := there.follow(302, "https://api.corp/y")
	if err != nil || back.header.Get("Authorization") != "" || back.tls.cert != "" {
		t.Errorf("%v, %v", back, err)
	}
}

func TestRunAttempt_Redirects(t *testing.T) {
	p := newProbe(t)
	r := newRunner(t, nil)
	to := func(status, location string) string {
		return p.url + "/redirect?status=" + url.QueryEscape(status) + "&to=" + url.QueryEscape(location)
	}

	// Without redirects, the response is what it is.
	res := run(r, task.HTTP{URL: to("302 Found", "/ok")})
	if res.State != task.Failed || res.Reason != task.ReasonAnswer || res.Message != "HTTP 302 Found" || res.HTTPStatus != 302 {
		t.Errorf("%+v", res)
	}

	res = run(r, task.HTTP{Method: "POST", Body: "order", URL: to("307 Temporary Redirect", "/echo"), Redirects: 1})
	last, body := p.last("/echo")
	if res.State != task.Succeeded || res.HTTPStatus != 200 || last.Method != "POST" || body != "order" || last.Header.Get(headerKey) == "" {
		t.Errorf("%+v, %v, %q", res, last, body)
	}

	res = run(r, task.HTTP{Method: "POST", Body: "order", URL: to("303 See Other", "/echo"), Redirects: 1})
	last, body = p.last("/echo")
	if res.State != task.Succeeded || last.Method != "GET" || body != "" || last.Header.Get("Content-Type") != "" {
		t.Errorf("%+v, %v, %q", res, last, body)
	}

	res = run(r, task.HTTP{URL: p.url + "/circle", Redirects: 5})
	if res.State != task.Failed || res.Reason != task.ReasonAnswer || res.Message != "HTTP 307 Temporary Redirect after 5 redirects, and no more are followed" {
		t.Errorf("%+v", res)
	}
}

// After the first written hop, every later failure is judged by the first request: an order may have been placed.
func TestRunAttempt_LaterHopsAreJudgedByTheFirstRequest(t *testing.T) {
	p := newProbe(t)
	r := newRunner(t, nil)

	for _, tt := range []struct{ method, to, want, message string }{
		{"POST", "http://does-not-exist.invalid/x", "lost unanswered", "http://does-not-exist.invalid: cannot resolve the name"},
		{"GET", "http://does-not-exist.invalid/x", "failed unanswered", "cannot resolve the name"},
		{"POST", "ftp://x/", "lost unanswered", "must not be requested"},
		{"GET", "ftp://x/", "failed url", "must not be requested"},
		{"POST", "/after-body", "lost unanswered", "closed before a complete response"},
		{"POST", "/wait", "failed response", "HTTP 503"}, // the first target may have done something, so it is not free
		{"PUT", "/wait", "failed unsent", "HTTP 503"},
	} {
		h := task.HTTP{Method: tt.method, URL: p.url + "/redirect?status=303+See+Other&to=" + url.QueryEscape(tt.to), Redirects: 2}
		res := run(r, h)
		if got := string(res.State) + " " + res.Reason; got != tt.want || !strings.Contains(res.Message, tt.message) || res.Unsent != (tt.want == "failed unsent") {
			t.Errorf("%s to %s: %+v", tt.method, tt.to, res)
		}
	}
}

// A target may put a secret of the request into the host of the URL to which it redirects. Hosts are in lower case in messages.
func TestRunAttempt_MasksASecretInTheHostOfARedirect(t *testing.T) {
	p := newProbe(t)
	r := newRunner(t, func(c *Config) {
		c.Secrets = secretsOf(map[string]map[string]string{"default/api": {"key": "S3cr3t-Value"}})
	})

	for _, method := range []string{"GET", "POST"} {
		res := run(r, task.HTTP{
			Method: method, URL: p.url + "/redirect?status=303+See+Other&to=" + url.QueryEscape("http://S3cr3t-Value.does-not-exist.invalid/x"), Redirects: 1,
			Headers: map[string]string{"X-Key": "${secret:api/key}"},
		})
		if !strings.Contains(res.Message, ".does-not-exist.invalid: cannot resolve the name") || strings.Contains(strings.ToLower(res.Message), "s3cr3t") {
			t.Errorf("%s: %+v", method, res)
		}
	}
}
