package task

import (
	"encoding/json"
	"errors"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func httpAction(fields string) string { return `"action": {"http": {` + fields + `}}` }

// get returns a document with a GET action that has more fields.
func get(fields string) string { return doc(httpAction(`"url": "https://api.corp/x", ` + fields)) }

func TestHTTP_RefusesBadInputWithItsFieldAndCode(t *testing.T) {
	t.Parallel()

	address := func(u string) string {
		b, _ := json.Marshal(u)
		return doc(httpAction(`"url": ` + string(b)))
	}

	for _, c := range []struct{ doc, field, code string }{
		{doc(`"action": {"http": {}}`), "action.http.url", CodeRequired},
		{doc(`"action": {"http": {"url": "https://a"}, "noop": {}}`), "action", CodeBadValue},
		{doc(`"action": {"http": {"url": "https://a"}, "process": {"shell": "x"}}`), "action", CodeBadValue},
		{doc(httpAction(`"url": "https://a", "uri": "x"`)), "action.http.uri", CodeUnknown},
		{get(`"method": "get"`), "action.http.method", CodeBadValue},
		{get(`"method": "CONNECT"`), "action.http.method", CodeBadValue},
		{get(`"method": "TRACE"`), "action.http.method", CodeBadValue},
		{get(`"method": "GET / HTTP/1.1\r\nX: y"`), "action.http.method", CodeBadValue},

		// URLs.
		{address("api.corp/x"), "action.http.url", CodeBadValue},
		{address("//api.corp/x"), "action.http.url", CodeBadValue},
		{address("/x"), "action.http.url", CodeBadValue},
		{address("ftp://api.corp/x"), "action.http.url", CodeBadValue},
		{address("file:///etc/passwd"), "action.http.url", CodeBadValue},
		{address("javascript:alert(1)"), "action.http.url", CodeBadValue},
		{address("https:"), "action.http.url", CodeBadValue},
		{address("https:api.corp"), "action.http.url", CodeBadValue},
		{address("https://"), "action.http.url", CodeBadValue},
		{address("https:///x"), "action.http.url", CodeBadValue},
		{address("https://:443/x"), "action.http.url", CodeBadValue},
		{address("https://user@api.corp/"), "action.http.url", CodeBadValue},
		{address("https://user:hunter2@api.corp/"), "action.http.url", CodeBadValue},
		{address("https://user:hunter2%zz@api.corp/"), "action.http.url", CodeBadValue},
		{address("https://api.corp/x#part"), "action.http.url", CodeBadValue},
		{address("https://api.corp/x#"), "action.http.url", CodeBadValue},
		{address("https://api.corp/a b"), "action.http.url", CodeBadValue},
		{address(" https://api.corp/"), "action.http.url", CodeBadValue},
		{address("https://api.corp/\n"), "action.http.url", CodeBadValue},
		{address("https://api.corp/\x00"), "action.http.url", CodeBadValue},
		{address("https://api.corp/\x7f"), "action.http.url", CodeBadValue},
		{address("https://api.corp\\@evil.example/"), "action.http.url", CodeBadValue},
		{address("https://api.corp/%zz"), "action.http.url", CodeBadValue},
		{address("https://api.corp:0/"), "action.http.url", CodeOutOfRange},
		{address("https://api.corp:65536/"), "action.http.url", CodeOutOfRange},
		{address("https://api.corp:/"), "action.http.url", CodeOutOfRange},
		{address("https://api.corp:x/"), "action.http.url", CodeBadValue},
		{address("https://api..corp/"), "action.http.url", CodeBadValue},
		{address("https://-api.corp/"), "action.http.url", CodeBadValue},
		{address("https://bücher.example/"), "action.http.url", CodeBadValue},
		{address("https://api%2ecorp/"), "action.http.url", CodeBadValue},
		{address("https://[::1/"), "action.http.url", CodeBadValue},
		{address("https://[api.corp]/"), "action.http.url", CodeBadValue},
		{address("https://[fe80::1%25eth0]/"), "action.http.url", CodeBadValue},
		{address("https://api.corp/" + strings.Repeat("x", maxURL)), "action.http.url", CodeTooLong},
		{address("secret:slack"), "action.http.url", CodeBadValue},
		{address("secret:slack/url/more"), "action.http.url", CodeBadValue},
		{address("secret:Slack/url"), "action.http.url", CodeBadValue},
		{address("secret:"), "action.http.url", CodeBadValue},

		// Templates by their places.
		{address("${run.id}"), "action.http.url", CodeBadValue},
		{address("${env.SCHEME}://api.corp/"), "action.http.url", CodeBadValue},
		{address("https://${env.HOST}/"), "action.http.url", CodeBadValue},
		{address("https://api.${env.HOST}"), "action.http.url", CodeBadValue},
		{address("https://api.corp:${env.PORT}/"), "action.http.url", CodeBadValue},
		{address("https://${env.USER}@api.corp/"), "action.http.url", CodeBadValue},
		{address("https://api.corp${run.id}/x"), "action.http.url", CodeBadValue},
		{address("https://api.corp?${run.id}"), "action.http.url", CodeBadValue},
		{address("https://api.corp/?${run.id}=1"), "action.http.url", CodeBadValue},
		{address("https://api.corp/?a=1&b${run.id}"), "action.http.url", CodeBadValue},
		{address("https://api.corp/#${run.id}"), "action.http.url", CodeBadValue},
		{address("https://api.corp/${run.name}"), "action.http.url", CodeBadValue},
		{address("https://api.corp/${}"), "action.http.url", CodeBadValue},
		{address("https://api.corp/${run.id"), "action.http.url", CodeBadValue},
		{address("https://api.corp/${secret:api}"), "action.http.url", CodeBadValue},
		{address("https://api.corp/${env.CARILLON_TOKEN}"), "action.http.url", CodeBadValue},
		{address("https://api.corp/${part.index}"), "action.http.url", CodeBadValue},
		{address("https://api.corp/${cause.task}"), "action.http.url", CodeBadValue},
		{address("https://api.corp/${cause.name}"), "action.http.url", CodeBadValue},
		{address("https://api.corp/${cause.results.}"), "action.http.url", CodeBadValue},
		{doc(httpAction(`"url": "https://a/${cause.results.rows}"`) + `, "after": {"task": "etl", "results": ["bytes"]}, "overlap": "queue"`), "action.http.url", CodeBadValue},
		{doc(httpAction(`"url": "https://a/${cause.results.rows}"`) + `, "after": [{"task": "a", "results": ["rows"]}, "b"], "join": "any", "overlap": "queue"`), "action.http.url", CodeBadValue},

		// Headers.
		{get(`"headers": {"": "x"}`), "action.http.headers", CodeRequired},
		{get(`"headers": {"X Y": "x"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"X:": "x"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"X\r\nY": "x"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"Ä": "x"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"X": "a\r\nHost: b"}`), "action.http.headers.X", CodeBadValue},
		{get(`"headers": {"X": "a\n"}`), "action.http.headers.X", CodeBadValue},
		{get(`"headers": {"X": "a\u0000"}`), "action.http.headers.X", CodeBadValue},
		{get(`"headers": {"X": " a"}`), "action.http.headers.X", CodeBadValue},
		{get(`"headers": {"X": "${run.nothing}"}`), "action.http.headers.X", CodeBadValue},
		{get(`"headers": {"X": "${env.NAME}"}`), "action.http.headers.X", CodeBadValue},
		{get(`"headers": {"X-Key": "a", "x-key": "b"}`), "action.http.headers.x-key", CodeDuplicate},
		{get(`"headers": {"Host": "a"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"host": "a"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"Connection": "close"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"Content-Length": "1"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"transfer-encoding": "chunked"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"TE": "trailers"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"Trailer": "X"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"Upgrade": "h2c"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"Expect": "100-continue"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"Proxy-Authorization": "x"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"Accept-Encoding": "br"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"idempotency-key": "x"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"Carillon-Fencing-Token": "9"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"X-Carillon-Run": "9"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"traceparent": "x"}`), "action.http.headers", CodeBadName},
		{get(`"headers": {"Authorization": "x"}, "auth": {"bearer": "api/key"}`), "action.http.headers.Authorization", CodeBadValue},
		{get(`"headers": {"Webhook-Id": "x"}, "auth": {"signature": "api/key"}`), "action.http.headers.Webhook-Id", CodeBadValue},
		{get(`"headers": ` + pairs(MaxHeaders+1, `"v"`)), "action.http.headers", CodeTooMany},

		// Bodies.
		{get(`"json": {}, "body": "x"`), "action.http.json", CodeBadValue},
		{get(`"json": 1, "form": {"a": "b"}`), "action.http.json", CodeBadValue},
		{get(`"body": "x", "form": {"a": "b"}`), "action.http.form", CodeBadValue},
		{get(`"form": {}`), "action.http.form", CodeRequired},
		{get(`"form": {"": "x"}`), "action.http.form", CodeRequired},
		{get(`"form": {"${run.id}": "x"}`), "action.http.form", CodeBadValue},
		{get(`"form": {"a": "${"}`), "action.http.form.a", CodeBadValue},
		{get(`"form": {"a": null}`), "action.http.form.a", CodeBadValue},
		{get(`"json": {"a": [1, {"b": "${x}"}]}`), "action.http.json.a[1].b", CodeBadValue},
		{get(`"json": {"${run.id}": 1}`), "action.http.json", CodeBadValue},
		{get(`"json": {"a": 1, "a": 2}`), "action.http.json.a", CodeDuplicate},
		{get(`"json": ` + strings.Repeat("[", 40) + strings.Repeat("]", 40)), "action.http.json" + strings.Repeat("[0]", 30), CodeBadJSON},
		{get(`"body": "secret:api"`), "action.http.body", CodeBadValue},
		{get(`"body": "secret: not a reference"`), "action.http.body", CodeBadValue},
		{get(`"body": "env:"`), "action.http.body", CodeBadEnv},
		{get(`"body": "env:A-B"`), "action.http.body", CodeBadEnv},
		{get(`"body": "env:NOT_ACCEPTED"`), "action.http.body", CodeBadValue},
		{get(`"body": ` + quoted(MaxHTTPAction)), "action.http", CodeTooLong},
		{get(`"json": ` + list(MaxHTTPAction/2, "1")), "action.http", CodeTooLong},

		// Credentials and certificates.
		{get(`"auth": {}`), "action.http.auth", CodeRequired},
		{get(`"auth": {"bearer": "a/k", "basic": "b/k"}`), "action.http.auth.basic", CodeBadValue},
		{get(`"auth": {"bearer": "token"}`), "action.http.auth.bearer", CodeBadValue},
		{get(`"auth": {"basic": "secret:a/k"}`), "action.http.auth.basic", CodeBadValue},
		{get(`"auth": {"signature": "a/k-1"}`), "action.http.auth.signature", CodeBadValue},
		{get(`"tls": {}`), "action.http.tls", CodeRequired},
		{get(`"tls": {"ca": "api/ca"}`), "action.http.tls.ca", CodeBadValue},
		{get(`"tls": {"cert": "secret:api"}`), "action.http.tls.cert", CodeBadValue},
		{doc(httpAction(`"url": "http://a/", "tls": {"ca": "secret:api/ca"}`)), "action.http.tls", CodeBadValue},
		{doc(httpAction(`"url": "HTTP://a/", "tls": {"ca": "secret:api/ca"}`)), "action.http.tls", CodeBadValue},

		// Responses.
		{get(`"redirects": 6`), "action.http.redirects", CodeOutOfRange},
		{get(`"redirects": -1`), "action.http.redirects", CodeOutOfRange},
		{get(`"expect": {"status": ["100"]}`), "action.http.expect.status[0]", CodeBadValue},
		{get(`"expect": {"status": ["2xx", "2XX"]}`), "action.http.expect.status[1]", CodeBadValue},
		{get(`"expect": {"status": ["2xx", "2xx"]}`), "action.http.expect.status[1]", CodeBadValue},
		{get(`"expect": {"status": ["600"]}`), "action.http.expect.status[0]", CodeBadValue},
		{get(`"expect": {"status": [200]}`), "action.http.expect.status[0]", CodeBadValue},
		{get(`"expect": {"status": [""]}`), "action.http.expect.status[0]", CodeBadValue},
		{get(`"expect": {"body": "("}`), "action.http.expect.body", CodeBadValue},
		{get(`"expect": {"body": "a{1000}{9}"}`), "action.http.expect.body", CodeBadValue},
		{get(`"method": "HEAD", "expect": {"body": "x"}`), "action.http.expect.body", CodeBadValue},
		{get(`"method": "HEAD", "results": {"a": "/a"}`), "action.http.results", CodeBadValue},
		{get(`"results": {"a": "order.id"}`), "action.http.results.a", CodeBadValue},
		{get(`"results": {"a": "/a~2"}`), "action.http.results.a", CodeBadValue},
		{get(`"results": {"a": "/a~"}`), "action.http.results.a", CodeBadValue},
		{get(`"results": {"a b": "/a"}`), "action.http.results", CodeBadName},
		{get(`"results": {"a~b": "/a"}`), "action.http.results", CodeBadName},
		{get(`"results": {"": "/a"}`), "action.http.results", CodeBadName},
		{get(`"results": {"checkpoint": "/a"}`), "action.http.results", CodeBadName},
		{get(`"results": ` + pairs(MaxResults+1, `"/v"`)), "action.http.results", CodeTooMany},
		{get(`"results": {"a": "/` + strings.Repeat("a", maxPointer) + `"}`), "action.http.results.a", CodeTooLong},
		{get(`"limit": {"body": "17Mi"}`), "action.http.limit.body", CodeOutOfRange},
		{get(`"limit": {"body": "0"}`), "action.http.limit.body", CodeOutOfRange},
		{get(`"limit": {"per_target": 0}`), "action.http.limit.per_target", CodeOutOfRange},
		{get(`"limit": {"per_target": 513}`), "action.http.limit.per_target", CodeOutOfRange},
		{get(`"limit": {"per_target": -1}`), "action.http.limit.per_target", CodeOutOfRange},
		{get(`"unsent_for": "25h"`), "action.http.unsent_for", CodeOutOfRange},
		{get(`"unsent_for": "-1s"`), "action.http.unsent_for", CodeOutOfRange},
		{get(`"output": "all"`), "action.http.output", CodeBadValue},

		// Fields of the task.
		{doc(httpAction(`"url": "https://a"`) + `, "timeout": "2h"`), "timeout", CodeOutOfRange},
		{doc(httpAction(`"url": "https://a"`) + `, "kill_signal": "SIGINT"`), "kill_signal", CodeBadValue},
		{doc(httpAction(`"url": "https://a"`) + `, "kill_grace": "1s"`), "kill_grace", CodeBadValue},
		{doc(httpAction(`"url": "https://a"`) + `, "success": {"exit_codes": [0]}`), "success.exit_codes", CodeBadValue},
		{doc(httpAction(`"url": "https://a"`) + `, "success": {"output": "ok"}`), "success.output", CodeBadValue},
		{doc(httpAction(`"url": "https://a"`) + `, "success": {"not_output": "no"}`), "success.not_output", CodeBadValue},
		{doc(httpAction(`"url": "https://a"`) + `, "retry": {"exit_codes": [1]}`), "retry.exit_codes", CodeBadValue},
		{doc(httpAction(`"url": "https://a"`) + `, "output": {"streams": "apart"}`), "output.streams", CodeBadValue},
	} {
		_, err := read(c.doc)

		var e *Error
		if !errors.As(err, &e) || e.Field != c.field || e.Code != c.code {
			t.Errorf("%.200s:\n\tgot %v, want %s in %q", c.doc, err, c.code, c.field)
			continue
		}
		if strings.Contains(e.Error(), "hunter2") {
			t.Errorf("%s: contains the password", e)
		}
	}
}

func TestHTTP_Accepts(t *testing.T) {
	t.Parallel()

	for _, fields := range []string{
		`"url": "https://api.corp"`,
		`"url": "http://127.0.0.1:8080/x?a=b"`,
		`"url": "HTTPS://API.corp./x"`,
		`"url": "https://[2001:db8::1]:8443/"`,
		`"url": "https://api.corp/orders/${run.scheduled_time}/x-${run.id}.json?day=${run.scheduled_time}&token=${secret:api/token}"`,
		`"url": "https://api.corp?day=${run.scheduled_time}"`,
		`"url": "https://api.corp/$${run.id}"`,
		`"url": "secret:slack/url", "tls": {"ca": "secret:api/ca"}`,
		`"url": "https://a", "method": "PUT", "json": null`,
		`"url": "https://a", "json": {"day": "${run.scheduled_time}", "n": 1e400, "none": null, "list": [null, true, "x"]}`,
		`"url": "https://a", "json": "text"`,
		`"url": "https://a", "form": {"a": "$${env.NAME}"}`,
		`"url": "https://a", "body": "${this is no template}"`,
		`"url": "https://a", "body": "secret:api/body"`,
		`"url": "https://a", "headers": {"Authorization": "Token ${secret:api/key}", "Content-Type": "text/csv", "X": "ä\ta"}`,
		`"url": "https://a", "headers": {"Authorization": "x"}`,
		`"url": "https://a", "auth": {"signature": "api/key"}, "idempotent": false, "unsent_for": "0s"`,
		`"url": "https://a", "expect": {"status": ["200", "4xx", "302"], "body": "^ok$"}, "redirects": 5`,
		`"url": "https://a", "results": {"id": "/order/id", "all": ""}`,
		`"url": "https://a", "results": {"id": "/a~0b~1c/0"}, "limit": {"body": "16Mi", "per_target": 1}, "output": "keep"`,
	} {
		b := doc(httpAction(fields))
		s := mustRead(t, b)
		written, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if again := mustRead(t, string(written)); !reflect.DeepEqual(again, s) {
			t.Errorf("%s is read back as %+v", written, again.Action.HTTP)
		}
	}

	mustRead(t, doc(httpAction(`"url": "https://a", "form": {"a": "${env.NAME}"}`)+`, "accept": {"env": ["NAME"]}`))
	mustRead(t, doc(httpAction(`"url": "https://a", "body": "env:NAME"`)+`, "accept": {"env": ["NAME"]}`))
	mustRead(t, doc(httpAction(`"url": "https://a/${part.index}"`)+`, "target": {"parts": 3}`))
	mustRead(t, doc(httpAction(`"url": "https://a/${run.period}"`)))
	mustRead(t, doc(httpAction(`"url": "https://a/${cause.task}/${cause.results.row.s-1}"`)+`, "after": {"task": "etl", "results": ["row.s-1"]}, "overlap": "queue"`))
}

// Equal bodies are stored alike, however they are written.
func TestHTTP_NormalizesJSON(t *testing.T) {
	t.Parallel()

	one := mustRead(t, get(`"json": { "z" : "<b>\u00e4\/", "a": [ 1.0, 1e400 , {} , [ ] ] }`))
	other := mustRead(t, get(`"json":{"z":"\u003cb\u003eä/","a":[1.0,1e400,{},[]]}`))
	if len(Compare(one, other)) != 0 {
		t.Errorf("differences: %v", Differences(one, other))
	}

	if h := mustRead(t, get(`"json": null`)).Action.HTTP; h.HasBody() || h.EffectiveMethod() != "GET" {
		t.Errorf("null is a body: %s", h.JSON)
	}
}

func TestAction_SecretNames(t *testing.T) {
	t.Parallel()

	for fields, want := range map[string]string{
		httpAction(`"url": "https://a", "body": "x ${secret:a/k}"`): "",
		httpAction(`"url": "secret:u/k", "headers": {"A": "${secret:h/a} ${secret:h/b}"}, "json": [{"a": "${secret:j/k}", "b": 1e400}],
			"auth": {"basic": "b/k"}, "tls": {"ca": "secret:c/k", "cert": "secret:d/k"}`): "b c d h j u",
		httpAction(`"url": "https://a/${secret:p/k}?q=${secret:q/k}", "form": {"f": "${secret:f/k}"}, "auth": {"signature": "s/k"}`):         "f p q s",
		httpAction(`"url": "https://a", "body": "secret:x/k", "auth": {"bearer": "x/l"}`):                                                    "x",
		process(`"shell": "x", "env_from": [{"secret": "z"}, {"file": "/a"}, {"secret": "y"}, {"secret": "z"}], "stdin": {"secret": "w/k"}`): "w y z",
		`"action": {"noop": {}}`: "",
	} {
		a := mustRead(t, doc(fields)).Action
		if got := a.SecretNames(); !slices.Equal(got, strings.Fields(want)) || a.NeedsKey() != (want != "") {
			t.Errorf("%s: secrets %v, needs key %v; want %s", fields, got, a.NeedsKey(), want)
		}
	}
}

// A reference never reaches a part of a URL that decides where the request goes.
func FuzzCheckURL(f *testing.F) {
	for _, seed := range []string{
		"https://api.corp/${run.id}", "https://api.corp/?a=${env.A}&b=$${x}", "https://[::1]:80/${run.id}", "http://a:1", "https://a${run.id}", "secret:a/b",
		"https://a@b/", "https://a/%2e%2e/${run.id}#", "https://a?b=${run.id}", "https://a/b?c${run.id}=d", "https://a\\b/", "https:/a/${run.id}", "$${://}${run.id}",
	} {
		f.Add(seed, "v")
	}

	f.Fuzz(func(t *testing.T, s, value string) {
		if checkURL("url", s) != nil || strings.HasPrefix(s, SecretRefPrefix) {
			return
		}

		tmpl, err := ParseTemplate(s)
		if err != nil {
			t.Fatalf("%q is accepted: %v", s, err)
		}

		expand := func(value string) string {
			text, _ := tmpl.Expand(func(string) (string, error) { return value, nil })
			return text
		}

		one, other := mustParseURL(t, expand("x")), mustParseURL(t, expand("evil.example%40%2F%23%3F"))
		if one.Scheme != other.Scheme || one.Host != other.Host || other.User != nil || other.Fragment != "" || one.Host == "" {
			t.Fatalf("%q leads to %s and to %s", s, one, other)
		}
	})
}

func mustParseURL(t *testing.T, s string) *url.URL {
	t.Helper()

	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}

	return u
}
