package alert_test

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/carillonhq/carillon/executor/httpaction"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/task"
)

// hostileMessage returns the variables of a message with a text that misuses what chats and mail servers interpret.
func hostileMessage(accept []string) map[string]string {
	exit := 1
	m := alert.Message{Now: time.Date(2026, 11, 24, 2, 1, 0, 0, time.UTC), Cluster: "c1", Receiver: "default/x", Output: true, Opened: []alert.Item{{
		Alert: task.Alert{Namespace: "default", Task: "sync", Kind: task.AlertFailures, Labels: map[string]string{"owner": "x\r\nBcc: all@example.com"}},
		Task:  &task.Task{Spec: task.Spec{Description: "<!channel> @everyone <at user_id=\"all\">\"},\"x\":{\""}},
		Run: &task.Run{State: task.Failed, ExitCode: &exit, OutputSummary: task.OutputSummary{
			OutputTail: "${secret:slack/url} $(touch /tmp/x) `id`\n.\n\r\n.\r\nBcc: all@example.com"}},
	}}}

	return m.Env(accept)
}

// loadReceiver reads an example.
func loadReceiver(t *testing.T, name string) task.Spec {
	t.Helper()

	b, err := os.ReadFile("../../../examples/receivers/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}

	objects, err := manifest.Read(name+".yaml", b, "default")
	if err != nil || len(objects) != 1 || objects[0].Err != nil {
		t.Fatalf("%v: %+v", err, objects)
	}

	return objects[0].Spec
}

// request is what a receiver has sent.
type request struct {
	header http.Header
	body   []byte
}

// json returns the body of a request as the value that it must be.
func (r *request) json(t *testing.T) (body map[string]any) {
	t.Helper()
	if err := json.Unmarshal(r.body, &body); err != nil {
		t.Fatalf("the body is not JSON: %v: %s", err, r.body)
	}

	return body
}

// post runs one attempt of a receiver's request. It returns what the server got, and how the attempt has ended.
func post(t *testing.T, spec task.Spec, env map[string]string, answer http.HandlerFunc) (request, process.Result) {
	t.Helper()

	var got request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.header = r.Header
		got.body, _ = io.ReadAll(r.Body)
		answer(w, r)
	}))
	t.Cleanup(server.Close)

	action := *spec.Action.HTTP
	if strings.HasPrefix(action.URL, "http") {
		action.URL = server.URL + "/carillon"
	}
	values := map[string]string{"url": server.URL + "/services/x", "key": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}

	runner, err := httpaction.New(t.Context(), httpaction.Config{
		Node: "n1", Dir: t.TempDir(), Secrets: func(context.Context, string, string) (map[string]string, error) { return values, nil },
		Rules: func() (httpaction.Rules, error) {
			return httpaction.Rules{HTTP: &policy.HTTP{Allow: []string{"127.0.0.0/8", "::1"}}}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runner.Close)

	a := process.Attempt{Token: 1, MayStart: func() error { return nil }, OnStarted: func(time.Time) {}, OnPause: func(process.PauseState) {}}
	a.Namespace, a.Task, a.ID, a.Attempt, a.Env, a.Timeout = "default", spec.Name, "20261124T020100.000Z-k3f9", 1, env, task.Duration(10*time.Second)
	a.Action.HTTP = &action

	return got, runner.RunAttempt(a, process.NewOrders())
}

// at returns a part of a decoded JSON value by the names of fields, and numbers of elements.
func at(v any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			fields, _ := v.(map[string]any)
			v = fields[step]
		case int:
			list, _ := v.([]any)
			if step >= len(list) {
				return nil
			}
			v = list[step]
		}
	}

	return v
}

// Each service shows a hostile text as it is, and mentions nobody. What it refuses fails the run, whatever the HTTP status is.
func TestExamples_ServicesShowTheTextAsItIs(t *testing.T) {
	for name, c := range map[string]struct {
		text    []any               // where the body has the text
		prefix  string              // before the text
		isSafe  func(body any) bool // the service mentions nobody and runs nothing
		longest int                 // bytes of the text that the service takes
		takes   string              // its answer
		status  int                 // of that
		refuses []http.HandlerFunc  // in addition to 400 and 429
	}{
		"slack": {text: []any{"blocks", 0, "text", "text"}, longest: 3000, takes: "ok", isSafe: func(body any) bool {
			return at(body, "blocks", 0, "text", "type") == "plain_text" && at(body, "text") == nil
		}},
		"teams": {text: []any{"attachments", 0, "content", "body", 0, "text"}, longest: 28 << 10, status: http.StatusAccepted, isSafe: func(body any) bool {
			card := at(body, "attachments", 0)
			return at(body, "type") == "message" && at(card, "contentType") == "application/vnd.microsoft.card.adaptive" && at(card, "content", "type") == "AdaptiveCard" &&
				at(card, "content", "msteams") == nil && at(card, "content", "body", 0, "type") == "TextBlock"
		}},
		"discord": {text: []any{"content"}, longest: 2000, status: http.StatusNoContent, isSafe: func(body any) bool {
			parse, is := at(body, "allowed_mentions", "parse").([]any)
			return is && len(parse) == 0
		}},
		"dingtalk": {text: []any{"text", "content"}, prefix: "Carillon: ", longest: 20000, takes: `{"errcode":0,"errmsg":"ok"}`, isSafe: func(body any) bool {
			return at(body, "msgtype") == "text" && at(body, "at", "isAtAll") == false && len(at(body, "at", "atMobiles").([]any)) == 0
		}, refuses: []http.HandlerFunc{answer(200, `{"errcode":310000,"errmsg":"keywords not in content, more: [\"errcode\":0,]"}`), answer(200, `{"errcode":130101,"errmsg":"send too fast"}`)}},
		"feishu": {text: []any{"content", "post", "en_us", "content", 0, 0, "text"}, longest: 20 << 10,
			takes: `{"StatusCode":0,"StatusMessage":"success","code":0,"data":{},"msg":"success"}`, isSafe: func(body any) bool {
				return at(body, "msg_type") == "post" && at(body, "content", "post", "en_us", "content", 0, 0, "tag") == "text" && len(at(body, "content", "post", "en_us", "content", 0).([]any)) == 1
			}, refuses: []http.HandlerFunc{answer(200, `{"code":19024,"data":{},"msg":"Key Words Not Found"}`), answer(200, `{"code":9499,"msg":"Bad Request","data":{}}`)}},
		"wecom": {text: []any{"text", "content"}, longest: 2048, takes: `{"errcode":0,"errmsg":"ok"}`, isSafe: func(body any) bool {
			return at(body, "msgtype") == "text" && len(at(body, "text", "mentioned_list").([]any)) == 0 && at(body, "text", "mentioned_mobile_list") == nil
		}, refuses: []http.HandlerFunc{answer(200, `{"errcode":93000,"errmsg":"invalid webhook url"}`), answer(200, `{"errcode":45009,"errmsg":"api freq out of limit"}`)}},
		"pagerduty": {text: []any{"payload", "custom_details", "text"}, longest: 512 << 10, status: http.StatusAccepted,
			takes: `{"status":"success","message":"Event processed","dedup_key":"x"}`, isSafe: func(body any) bool {
				return at(body, "routing_key") == "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" && at(body, "event_action") == "trigger" && len(at(body, "dedup_key").(string)) == 16 &&
					len(at(body, "payload", "summary").(string)) <= 1024 && at(body, "payload", "severity") == "error" && at(body, "payload", "source") == "carillon default/sync"
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := loadReceiver(t, name)
			env := hostileMessage(spec.Accept.Env)
			takes := answer(cmp.Or(c.status, http.StatusOK), c.takes)

			got, res := post(t, spec, env, takes)
			if res.State != task.Succeeded {
				t.Fatalf("%+v", res)
			}
			var body any = got.json(t)
			if text, _ := at(body, c.text...).(string); text != c.prefix+env[alert.VarText] || len(c.prefix)+alert.MaxText > c.longest {
				t.Errorf("the service shows %q of\n%s", text, got.body)
			}
			if !c.isSafe(body) {
				t.Errorf("the service would not show this as it is:\n%s", got.body)
			}

			for i, refuses := range append(c.refuses, answer(400, "invalid"), answer(429, "too fast")) {
				if _, res := post(t, spec, env, refuses); res.State != task.Failed {
					t.Errorf("answer %d: the attempt ends as %+v", i, res)
				}
			}
		})
	}
}

func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestExamples_NtfyGetsTheTextAsItIs(t *testing.T) {
	spec := loadReceiver(t, "ntfy")
	env := hostileMessage(spec.Accept.Env)

	got, res := post(t, spec, env, answer(200, `{"id":"x","event":"message"}`))
	if res.State != task.Succeeded || string(got.body) != env[alert.VarText] || got.header.Get("Title") != env[alert.VarTitle] || got.header.Get("Markdown") != "" {
		t.Errorf("%+v, headers %v, body\n%s", res, got.header, got.body)
	}
}

func TestExamples_WebhookIsSigned(t *testing.T) {
	spec := loadReceiver(t, "webhook")
	env := hostileMessage(spec.Accept.Env)

	got, res := post(t, spec, env, answer(200, ""))
	if res.State != task.Succeeded || string(got.body) != env[alert.VarJSON] {
		t.Errorf("%+v, body\n%s\nwant\n%s", res, got.body, env[alert.VarJSON])
	}

	var d alert.Document
	if err := json.Unmarshal(got.body, &d); err != nil || len(d.Opened) != 1 || d.Opened[0].Task != "sync" {
		t.Errorf("%v, %+v", err, d)
	}
	hook, err := standardwebhooks.NewWebhook("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	if err := hook.Verify(got.body, got.header); err != nil || got.header.Get("Idempotency-Key") == "" || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("%v, headers %v", err, got.header)
	}
}
