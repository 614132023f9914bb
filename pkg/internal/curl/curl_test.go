package curl_test

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/curl"
	"github.com/carillonhq/carillon/pkg/task"
)

// aRun is a run whose values the commands contain.
func aRun() task.Run {
	tick := time.Date(2026, 11, 26, 9, 0, 0, 0, time.UTC)
	return task.Run{ID: task.RunID(tick, "abcdefgh"), Namespace: "shop", Task: "order", ScheduledTime: task.At(tick), Attempt: 2, Token: 17, Node: "n1"}
}

// commandOf returns the command for an action.
func commandOf(t *testing.T, action string, r task.Run) curl.Command {
	t.Helper()

	s, err := task.DecodeSpec([]byte(`{"name":"order","namespace":"shop","schedule":"@manual","accept":{"env":["DAY"]},"action":{"http":` + action + `}}`))
	if err == nil {
		err = s.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}

	c, err := curl.Of(s, r)
	if err != nil {
		t.Fatal(err)
	}

	return c
}

func TestOf(t *testing.T) {
	t.Parallel()

	c := commandOf(t, `{"method":"PUT","url":"https://api.corp/orders/${run.scheduled_time}?by=${task.namespace}/${task.name}&key=${secret:api/key}",
		"headers":{"X-Day":"${env.DAY}","X-Attempt":"no. ${run.attempt}"},"json":{"it's":"<${run.id}> $${x}","n":[1.0,null],"k":"${secret:api/key}"},"auth":{"bearer":"api/token"}}`, aRun())

	const want = `curl -g -i --http1.1 -X PUT --max-time 30 \
  'https://api.corp/orders/2026-11-26T09:00:00.000Z?by=shop/order&key='"$API_KEY" \
  -H 'Idempotency-Key: 20261126T090000.000Z-abcd' \
  -H 'Carillon-Fencing-Token: 17' \
  -H 'X-Attempt: no. 2' \
  -H 'X-Day: '"$DAY" \
  -H 'Content-Type: application/json' \
  -H 'Authorization: Bearer '"$API_TOKEN" \
  --data-raw '{"it'\''s":"<20261126T090000.000Z-abcd> ${x}","n":[1.0,null],"k":"'"$API_KEY"'"}'
`
	if c.Text != want {
		t.Errorf("got:\n%swant:\n%s", c.Text, want)
	}

	if b, _ := json.Marshal(c.Variables); string(b) != `[{"name":"API_KEY","from":"secret api/key"},{"name":"API_TOKEN","from":"secret api/token"},{"name":"DAY","from":"env.DAY"}]` {
		t.Errorf("variables: %s", b)
	}

	if len(c.Notes) != 2 {
		t.Errorf("notes: %q", c.Notes)
	}
}

// arguments returns the arguments that curl gets from a shell.
func arguments(t *testing.T, c curl.Command, env ...string) []string {
	t.Helper()

	script := exec.CommandContext(t.Context(), "/bin/sh", "-c", "curl() { printf '%s\\0' \"$@\"; }\n"+c.Text)
	script.Env = env
	out, err := script.Output()
	if err != nil {
		t.Fatalf("%v:\n%s", err, c.Text)
	}

	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// A shell passes on what the request contains, whatever characters it has, and runs nothing of it.
func TestOf_IsSafeInAShell(t *testing.T) {
	t.Parallel()

	const hostile = "a'b\"c$(touch /tmp/x)`id`\\ \n!*?[x]{a,b};&|<>#~ $HOME ä"
	body, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}

	text := commandOf(t, `{"url":"https://api.corp/","body":`+string(body)+`}`, aRun())
	if got := arguments(t, text); !slices.Contains(got, hostile) {
		t.Errorf("%q", got)
	}

	data := commandOf(t, `{"url":"https://api.corp/","json":{"a":`+string(body)+`,"b":"${run.id}'"}}`, aRun())
	got := arguments(t, data)
	var sent struct{ A, B string }
	if err := json.Unmarshal([]byte(got[len(got)-1]), &sent); err != nil || sent.A != hostile || sent.B != aRun().ID+"'" {
		t.Errorf("%v: %q", err, got)
	}

	form := commandOf(t, `{"url":"https://api.corp/","form":{"a=b @c":"$${x} ${secret:api/key} ${node.name}"}}`, aRun())
	if got := arguments(t, form, "API_KEY="+hostile); !slices.Contains(got, "a%3Db+%40c=${x} "+hostile+" n1") {
		t.Errorf("%q", got)
	}
}

func TestOf_Forms(t *testing.T) {
	t.Parallel()

	for action, want := range map[string][]string{
		`{"url":"secret:slack/url","body":"x"}`:                                     {`  "$SLACK_URL" \`, "  -H 'Content-Type: text/plain; charset=utf-8' \\", "  --data-raw x"},
		`{"url":"https://a","method":"HEAD"}`:                                       {`curl -g -i --http1.1 --head --max-time 30 \`},
		`{"url":"https://a/../b","redirects":2}`:                                    {`curl -g -i --http1.1 -X GET --max-time 30 --location --max-redirs 2 --path-as-is \`},
		`{"url":"https://a","auth":{"basic":"api/login"}}`:                          {`  -u "$API_LOGIN"`},
		`{"url":"https://a","auth":{"signature":"api/key"},"json":1}`:               {`  --data-raw 1`},
		`{"url":"https://a","tls":{"ca":"secret:api/ca","cert":"secret:api/cert"}}`: {`  --cacert <(printf %s "$API_CA") \`, `  --cert <(printf %s "$API_CERT") \`},
		`{"url":"https://a","body":"secret:api/body"}`:                              {`  --data-raw "$API_BODY"`},
		`{"url":"https://a","body":"env:DAY"}`:                                      {`  --data-raw "$DAY"`},
		`{"url":"https://a","headers":{"a":"${secret:a-b/c}","b":"${secret:a.b/c}","c":"${secret:1/c}"}}`: {
			`  -H 'a: '"$A_B_C" \`, `  -H 'b: '"$A_B_C_2" \`, `  -H 'c: '"$_1_C"`},
	} {
		c := commandOf(t, action, aRun())
		lines := strings.Split(c.Text, "\n")
		for _, line := range want {
			if !slices.Contains(lines, line) {
				t.Errorf("%s: no line %q in:\n%s", action, line, c.Text)
			}
		}
	}
}

func TestOf_RefusesOtherActionsAndParents(t *testing.T) {
	t.Parallel()

	s := task.Defaults()
	s.Action = task.Action{Noop: &task.Noop{}}
	if _, err := curl.Of(s, aRun()); err == nil || !strings.Contains(err.Error(), "noop") {
		t.Errorf("noop: %v", err)
	}

	s.Action = task.Action{HTTP: &task.HTTP{URL: "https://a/${part.index}/${part.count}"}}
	if _, err := curl.Of(s, aRun()); err == nil || !strings.Contains(err.Error(), task.PartID(aRun().ID, 0)) {
		t.Errorf("a parent: %v", err)
	}

	part := aRun()
	part.ID, part.PartCount = task.PartID(part.ID, 3), 8
	if c, err := curl.Of(s, part); err != nil || !strings.Contains(c.Text, "https://a/3/8") {
		t.Errorf("a part: %v\n%s", err, c.Text)
	}
}
