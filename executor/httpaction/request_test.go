package httpaction

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/carillonhq/carillon/executor/mask"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/task"
)

// testSecrets are the secrets of the tests. Each value contains "hush", which no error, log or stored text may.
var testSecrets = map[string]map[string]string{"default/api": {
	"key": "hush-key/1", "url": "http://127.0.0.1:1/services/hush-T0/hush-B0?hush=x", "login": "user:hush-pass", "body": `{"hush":"body"}`,
	"sign": "whsec_" + base64.StdEncoding.EncodeToString([]byte("hush-hush-hush-hush-hush")), "lines": "hush\r\nX-Evil: 1", "badsign": "hush!",
}}

// build returns the first request of an action, or its error.
func build(h task.HTTP, change func(*process.Attempt)) (*request, error) {
	a, _ := newAttempt(h)
	a.Token = 77
	a.Env = map[string]string{"DAY": "monday", "EMPTY": "", "UP": "..", "PATH_VALUE": "a/b", "SPACE": "a b&c=d+e/%", "CRLF": "x\r\nX-Evil: 1", "QUOTE": `"},{"`}
	if change != nil {
		change(&a)
	}

	s := &secretSource{reader: secretsOf(testSecrets), slots: make(chan struct{}, 1), namespace: a.Namespace, mask: &mask.Masker{}}

	return newRequest(context.Background(), &h, &values{&a, "n1", s}, time.Unix(1_700_000_000, 0))
}

func TestNewRequest_ExpandsTemplatesByPlace(t *testing.T) {
	tests := map[string]struct {
		h       task.HTTP
		method  string
		url     string
		headers map[string]string
		body    string
	}{
		"plain":                    {h: task.HTTP{URL: "https://API.corp/x?y=z"}, method: "GET", url: "https://api.corp/x?y=z"},
		"time in the path":         {h: task.HTTP{URL: "https://api.corp/orders/${run.scheduled_time}"}, url: "https://api.corp/orders/2026-11-26T07:00:00.000Z"},
		"time in the query":        {h: task.HTTP{URL: "https://api.corp/o?a=1&at=${run.scheduled_time}&b=2"}, url: "https://api.corp/o?a=1&at=2026-11-26T07%3A00%3A00.000Z&b=2"},
		"query without a path":     {h: task.HTTP{URL: "https://api.corp?a=${task.name}"}, url: "https://api.corp?a=call"},
		"values of the run":        {h: task.HTTP{URL: "https://api.corp/${task.namespace}/${task.name}/${run.id}/${run.attempt}/${run.token}/${node.name}"}, url: "https://api.corp/default/call/20261126T070000.000Z-k3f9/1/77/n1"},
		"part of a segment":        {h: task.HTTP{URL: "https://api.corp/day-${env.DAY}.json"}, url: "https://api.corp/day-monday.json"},
		"escaped in the query":     {h: task.HTTP{URL: "https://api.corp/?q=${env.SPACE}"}, url: "https://api.corp/?q=a+b%26c%3Dd%2Be%2F%25"},
		"slash after the query":    {h: task.HTTP{URL: "https://api.corp/?q=/${env.PATH_VALUE}"}, url: "https://api.corp/?q=/a%2Fb"},
		"escaped dollar":           {h: task.HTTP{URL: "https://api.corp/?q=$${x}"}, url: "https://api.corp/?q=${x}"},
		"secret in a header":       {h: task.HTTP{URL: "https://api.corp/", Headers: map[string]string{"X-Key": "k ${secret:api/key}"}}, headers: map[string]string{"X-Key": "k hush-key/1"}},
		"JSON":                     {h: task.HTTP{URL: "https://api.corp/", JSON: json.RawMessage(`{"a":["${env.QUOTE}",1.50,true,null],"${b}":{"c":"x${run.attempt}"}}`)}, method: "POST", body: `{"a":["\"},{\"",1.50,true,null],"${b}":{"c":"x1"}}`, headers: map[string]string{"Content-Type": "application/json"}},
		"JSON without templates":   {h: task.HTTP{URL: "https://api.corp/", JSON: json.RawMessage(`{"a": 1e400}`)}, body: `{"a": 1e400}`},
		"form":                     {h: task.HTTP{URL: "https://api.corp/", Form: map[string]string{"b": "${env.SPACE}", "a": "1"}}, method: "POST", body: "a=1&b=a+b%26c%3Dd%2Be%2F%25", headers: map[string]string{"Content-Type": "application/x-www-form-urlencoded"}},
		"text is sent as it is":    {h: task.HTTP{URL: "https://api.corp/", Method: "PUT", Body: "${run.id} x"}, method: "PUT", body: "${run.id} x", headers: map[string]string{"Content-Type": "text/plain; charset=utf-8"}},
		"body from a secret":       {h: task.HTTP{URL: "https://api.corp/", Body: "secret:api/body", Headers: map[string]string{"content-type": "application/json"}}, body: `{"hush":"body"}`, headers: map[string]string{"Content-Type": "application/json"}},
		"body from a variable":     {h: task.HTTP{URL: "https://api.corp/", Body: "env:QUOTE"}, method: "POST", body: `"},{"`, headers: map[string]string{"Content-Type": "text/plain; charset=utf-8"}},
		"URL from a secret":        {h: task.HTTP{URL: "secret:api/url"}, url: "http://127.0.0.1:1/services/hush-T0/hush-B0?hush=x"},
		"bearer":                   {h: task.HTTP{URL: "https://api.corp/", Auth: &task.HTTPAuth{Bearer: "api/key"}}, headers: map[string]string{"Authorization": "Bearer hush-key/1"}},
		"basic":                    {h: task.HTTP{URL: "https://api.corp/", Auth: &task.HTTPAuth{Basic: "api/login"}}, headers: map[string]string{"Authorization": "Basic dXNlcjpodXNoLXBhc3M="}},
		"own headers":              {h: task.HTTP{URL: "https://api.corp/"}, headers: map[string]string{"Idempotency-Key": "20261126T070000.000Z-k3f9", "Carillon-Fencing-Token": "77", "User-Agent": "Carillon"}},
		"another user agent":       {h: task.HTTP{URL: "https://api.corp/", Headers: map[string]string{"user-agent": "x"}}, headers: map[string]string{"User-Agent": "x"}},
		"percent in the URL stays": {h: task.HTTP{URL: "https://api.corp/a%2Fb/${env.DAY}"}, url: "https://api.corp/a%2Fb/monday"},
	}

	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			q, err := build(tt.h, nil)
			if err != nil {
				t.Fatal(err)
			}

			if tt.method != "" && q.method != tt.method || tt.url != "" && q.url.String() != tt.url || tt.body != "" && string(q.body) != tt.body {
				t.Errorf("%s %s %q", q.method, q.url, q.body)
			}
			for name, want := range tt.headers {
				if got := q.header.Get(name); got != want {
					t.Errorf("header %s is %q, want %q", name, got, want)
				}
			}
			if trace := q.header.Get("traceparent"); len(trace) != 55 {
				t.Errorf("traceparent %q", trace)
			}
		})
	}
}

// A step of a workflow also knows its item, its name and results of other steps. They are escaped by their place, as all values.
func TestNewRequest_OfAStep(t *testing.T) {
	asStep := func(a *process.Attempt) {
		item := 3
		a.ID, a.Step, a.Item = task.PartID(a.ID, 12), "load", &item
		a.Values = map[string]string{
			"item": "a b&c", "item.index": "3", "step.name": "load", "steps.extract.results.batch": "7", "steps.extract.results.quote": `"},{"`,
			"steps.extract.results.crlf": "x\r\nX-Evil: 1", "steps.extract.results.up": "..",
		}
	}

	q, err := build(task.HTTP{
		URL:     "https://api.corp/${steps.extract.results.batch}/${step.name}?item=${item}&i=${item.index}",
		Headers: map[string]string{"X-Item": "${item}"}, JSON: json.RawMessage(`{"q":"${steps.extract.results.quote}","run":"${run.id}"}`),
	}, asStep)
	if err != nil {
		t.Fatal(err)
	}
	const id = "20261126T070000.000Z-k3f9-p0012"
	if got := q.url.String(); got != "https://api.corp/7/load?item=a+b%26c&i=3" || string(q.body) != `{"q":"\"},{\"","run":"`+id+`"}` || q.header.Get("X-Item") != "a b&c" || q.header.Get("Idempotency-Key") != id {
		t.Errorf("%s %s %v", got, q.body, q.header)
	}

	for name, c := range map[string]struct {
		h    task.HTTP
		kind failureKind
		want string
	}{
		"no result":        {task.HTTP{URL: "https://api.corp/${steps.extract.results.k}"}, kindValues, `action.http.url: the step has no value for "${steps.extract.results.k}"`},
		"no period":        {task.HTTP{URL: "https://api.corp/${cause.results.k}"}, kindValues, `the run has no value for "${cause.results.k}"`},
		"a line break":     {task.HTTP{URL: "https://api.corp/", Headers: map[string]string{"X": "${steps.extract.results.crlf}"}}, kindURL, "line break"},
		"a segment":        {task.HTTP{URL: "https://api.corp/${steps.extract.results.up}"}, kindURL, `is ".."`},
		"a space in a URL": {task.HTTP{URL: "https://${item}/"}, kindURL, "scheme, host or port"},
	} {
		_, err := build(c.h, asStep)
		if f, ok := err.(*failure); !ok || f.kind != c.kind || !strings.Contains(f.message, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}

	if r := resultOf(&failure{kind: kindValues, message: "m"}, attemptFacts{}); r.State != task.Failed || r.Reason != task.ReasonValues {
		t.Errorf("without a value, the attempt ends %s, %s", r.State, r.Reason)
	}
}

func TestNewRequest_Refuses(t *testing.T) {
	tests := map[string]struct {
		h      task.HTTP
		kind   failureKind
		want   string
		change func(*process.Attempt)
	}{
		"empty segment":               {h: task.HTTP{URL: "https://api.corp/${env.EMPTY}/x"}, kind: kindURL, want: `action.http.url: "${env.EMPTY}" is empty`},
		"segment that goes up":        {h: task.HTTP{URL: "https://api.corp/${env.UP}/x"}, kind: kindURL, want: `is ".."`},
		"slash in a segment":          {h: task.HTTP{URL: "https://api.corp/${env.PATH_VALUE}"}, kind: kindURL, want: "contains /"},
		"percent in a segment":        {h: task.HTTP{URL: "https://api.corp/${env.SPACE}"}, kind: kindURL, want: "contains /"},
		"secret in the path":          {h: task.HTTP{URL: "https://api.corp/${secret:api/key}"}, kind: kindURL, want: "contains /"},
		"line break in a segment":     {h: task.HTTP{URL: "https://api.corp/${env.CRLF}"}, kind: kindURL, want: "control character"},
		"host":                        {h: task.HTTP{URL: "https://${env.DAY}/x"}, kind: kindURL, want: "scheme, host or port"},
		"port":                        {h: task.HTTP{URL: "https://api.corp:${env.DAY}/x"}, kind: kindURL, want: "scheme, host or port"},
		"scheme":                      {h: task.HTTP{URL: "${env.DAY}://api.corp/x"}, kind: kindURL, want: "scheme, host or port"},
		"name in the query":           {h: task.HTTP{URL: "https://api.corp/?${env.DAY}=1"}, kind: kindURL, want: "name of the URL's query"},
		"header injection":            {h: task.HTTP{URL: "https://api.corp/", Headers: map[string]string{"X-A": "${env.CRLF}"}}, kind: kindURL, want: `action.http.headers.X-A: "${env.CRLF}" contains a line break`},
		"header injection, secret":    {h: task.HTTP{URL: "https://api.corp/", Headers: map[string]string{"X-A": "${secret:api/lines}"}}, kind: kindURL, want: "contains a line break"},
		"bearer with a line break":    {h: task.HTTP{URL: "https://api.corp/", Auth: &task.HTTPAuth{Bearer: "api/lines"}}, kind: kindSecret, want: "action.http.auth.bearer: secret api/lines contains a line break"},
		"not a signing key":           {h: task.HTTP{URL: "https://api.corp/", Auth: &task.HTTPAuth{Signature: "api/badsign"}}, kind: kindSecret, want: "secret api/badsign is not a key"},
		"method":                      {h: task.HTTP{URL: "https://api.corp/", Method: "CONNECT"}, kind: kindURL, want: `action.http.method: "CONNECT"`},
		"reserved header":             {h: task.HTTP{URL: "https://api.corp/", Headers: map[string]string{"Transfer-Encoding": "chunked"}}, kind: kindURL, want: "Transfer-Encoding"},
		"unknown value":               {h: task.HTTP{URL: "https://api.corp/${run.nonsense}"}, kind: kindURL, want: "not a known value"},
		"variable that is not set":    {h: task.HTTP{URL: "https://api.corp/${env.OTHER}"}, kind: kindURL, want: "only a manual run"},
		"cause without one":           {h: task.HTTP{URL: "https://api.corp/${cause.task}"}, kind: kindURL, want: `no value for "${cause.task}"`},
		"result without a cause":      {h: task.HTTP{URL: "https://api.corp/${cause.results.rows}"}, kind: kindURL, want: `no value for "${cause.results.rows}"`},
		"part without a fan-out":      {h: task.HTTP{URL: "https://api.corp/${part.index}"}, kind: kindURL, want: "parts of a fan-out"},
		"secret that is missing":      {h: task.HTTP{URL: "https://api.corp/?k=${secret:other/key}"}, kind: kindSecret, want: "action.http.url: secret other does not exist in namespace default"},
		"secret without the key":      {h: task.HTTP{URL: "https://api.corp/?k=${secret:api/other}"}, kind: kindSecret, want: `secret api does not contain "other"`},
		"URL secret is not a URL":     {h: task.HTTP{URL: "secret:api/key"}, kind: kindURL, want: "action.http.url: the URL is not valid"},
		"no host":                     {h: task.HTTP{URL: "https:///x"}, kind: kindURL, want: "not valid"},
		"credentials":                 {h: task.HTTP{URL: "https://hush:hush@api.corp/"}, kind: kindURL, want: "not valid"},
		"another scheme":              {h: task.HTTP{URL: "file:///etc/hush"}, kind: kindURL, want: "not valid"},
		"odd port":                    {h: task.HTTP{URL: "https://api.corp:99999/"}, kind: kindURL, want: "not valid"},
		"control character":           {h: task.HTTP{URL: "https://api.corp/\n"}, kind: kindURL, want: "not valid"},
		"JSON that is not JSON":       {h: task.HTTP{URL: "https://api.corp/", JSON: json.RawMessage(`{"a":"${run.id}"`)}, kind: kindURL, want: "not valid JSON"},
		"secret of JSON is missing":   {h: task.HTTP{URL: "https://api.corp/", JSON: json.RawMessage(`["${secret:other/key}"]`)}, kind: kindSecret, want: "action.http.json: secret other does not exist"},
		"secret of a form is missing": {h: task.HTTP{URL: "https://api.corp/", Form: map[string]string{"day": "${secret:other/key}"}}, kind: kindSecret, want: "action.http.form.day: secret other does not exist"},
	}

	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := build(tt.h, tt.change)
			var f *failure
			if !errors.As(err, &f) || f.kind != tt.kind || !strings.Contains(f.message, tt.want) {
				t.Fatalf("%#v", err)
			}
			if strings.Contains(f.message, "hush") || strings.Contains(f.message, "\n") {
				t.Errorf("the message contains a value: %q", f.message)
			}
		})
	}
}

func TestNewRequest_PeriodAndCause(t *testing.T) {
	h := task.HTTP{URL: "https://api.corp/${cause.task}/${cause.state}?day=${run.period}", Headers: map[string]string{"X-Rows": "${cause.results.rows}", "X-Run": "${cause.run}"}}
	q, err := build(h, func(a *process.Attempt) {
		a.Period = task.At(time.Date(2026, 11, 19, 0, 0, 0, 0, time.UTC))
		a.Causes = []task.Cause{{Task: "etl", Run: "r7", State: task.Failed, Results: map[string]string{"rows": "7"}}}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := q.url.String(); got != "https://api.corp/etl/failed?day=2026-11-19T00%3A00%3A00.000Z" || q.header.Get("X-Rows") != "7" || q.header.Get("X-Run") != "r7" {
		t.Errorf("%s %v", got, q.header)
	}
}

func TestNewRequest_Parts(t *testing.T) {
	q, err := build(task.HTTP{URL: "https://api.corp/${part.index}?of=${part.count}"}, func(a *process.Attempt) {
		a.ID, a.PartCount = task.PartID(a.ID, 3), 8
	})
	if err != nil || q.url.String() != "https://api.corp/3?of=8" {
		t.Errorf("%v, %v", q, err)
	}
}

func TestNewRequest_SignsAsStandardWebhooks(t *testing.T) {
	q, err := build(task.HTTP{URL: "https://api.corp/", JSON: json.RawMessage(`{"a":1}`), Auth: &task.HTTPAuth{Signature: "api/sign"}}, nil)
	if err != nil {
		t.Fatal(err)
	}

	hook, err := standardwebhooks.NewWebhook(testSecrets["default/api"]["sign"])
	if err != nil {
		t.Fatal(err)
	}
	if err := hook.VerifyIgnoringTimestamp(q.body, q.header); err != nil {
		t.Error(err)
	}
	if id := q.header.Get("webhook-id"); id != "20261126T070000.000Z-k3f9" || q.header.Get("webhook-timestamp") != "1700000000" {
		t.Errorf("%v", q.header)
	}
}

// The test vector of the specification's reference implementations.
func TestSign_TestVector(t *testing.T) {
	q := &request{header: http.Header{}, body: []byte(`{"test": 2432232314}`)}
	if err := q.sign("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "x/y", "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0)); err != nil {
		t.Fatal(err)
	}
	if got := q.header.Get("webhook-signature"); got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Errorf("signature %s", got)
	}
}

func TestHTTPRequest_CannotBeReadTwice(t *testing.T) {
	q, err := build(task.HTTP{URL: "https://api.corp/", Body: "x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r := q.httpRequest(t.Context()); r.GetBody != nil || r.ContentLength != 1 {
		t.Errorf("%+v", r)
	}
}

func TestSecrets_AreReadOnceAndAwaitEtcd(t *testing.T) {
	calls := 0
	reader := func(context.Context, string, string) (map[string]string, error) {
		if calls++; calls == 1 {
			return nil, task.ErrUnavailable
		}
		return map[string]string{"key": "v"}, nil
	}
	s := &secretSource{reader: reader, slots: make(chan struct{}, 1), mask: &mask.Masker{}}

	for range 2 {
		if v, err := s.value(t.Context(), "api/key"); v != "v" || err != nil {
			t.Errorf("%q, %v", v, err)
		}
	}
	if calls != 2 {
		t.Errorf("%d reads, want 2", calls)
	}
}

func TestSecrets_RefusedByThePolicy(t *testing.T) {
	r := newRunner(t, func(c *Config) {
		c.Secrets = secretsOf(testSecrets)
		c.Rules = func() (Rules, error) { return Rules{NoSecrets: true}, nil }
	})

	if res := run(r, task.HTTP{URL: "secret:api/url"}); res.Reason != task.ReasonPolicy || res.Unsent {
		t.Errorf("%+v", res)
	}

	r = newRunner(t, nil)
	if res := run(r, task.HTTP{URL: "secret:api/url"}); res.Reason != task.ReasonSecret || res.Unsent || !strings.Contains(res.Message, "secret_keys") {
		t.Errorf("%+v", res)
	}
}

func TestSecrets_KilledWhileEtcdIsUnavailable(t *testing.T) {
	o := process.NewOrders()
	r := newRunner(t, func(c *Config) {
		c.Secrets = func(context.Context, string, string) (map[string]string, error) {
			o.Kill(process.Kill{Cause: process.CauseShutdown})
			return nil, task.ErrUnavailable
		}
	})

	a, _ := newAttempt(task.HTTP{URL: "secret:api/url"})
	if res := r.RunAttempt(a, o); !res.NotStarted || res.Unsent {
		t.Errorf("%+v", res)
	}
}
