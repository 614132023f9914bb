package alert_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

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

// post runs one attempt of a receiver's request, and returns what the server got.
func post(t *testing.T, spec task.Spec, values, env map[string]string) (http.Header, map[string]any) {
	t.Helper()

	var header http.Header
	var body map[string]any
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(b, &body)
		}
		if err != nil {
			t.Errorf("the body is not JSON: %v", err)
		}
		header = r.Header
	}))
	t.Cleanup(server.Close)

	action := *spec.Action.HTTP
	if strings.HasPrefix(action.URL, "https:") {
		action.URL = server.URL + "/carillon"
	}
	values["url"] = server.URL + "/services/x"

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
	if res := runner.RunAttempt(a, process.NewOrders()); res.State != task.Succeeded {
		t.Fatalf("%+v", res)
	}

	return header, body
}

func TestExamples_SlackShowsTheTextAsItIs(t *testing.T) {
	spec := loadReceiver(t, "slack")
	env := hostileMessage(spec.Accept.Env)

	_, body := post(t, spec, map[string]string{}, env)
	want := map[string]any{"blocks": []any{map[string]any{"type": "section", "text": map[string]any{"type": "plain_text", "text": env[alert.VarText]}}}}
	got, _ := json.Marshal(body)
	if w, _ := json.Marshal(want); string(got) != string(w) {
		t.Errorf("Slack gets\n%s\nwant\n%s", got, w)
	}
}

func TestExamples_WebhookIsSigned(t *testing.T) {
	spec := loadReceiver(t, "webhook")
	env := hostileMessage(spec.Accept.Env)

	header, body := post(t, spec, map[string]string{"key": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, env)
	for field, name := range map[string]string{"title": alert.VarTitle, "text": alert.VarText, "action": alert.VarAction, "key": alert.VarKey,
		"severity": alert.VarSeverity, "url": alert.VarURL, "details": alert.VarJSON} {
		if body[field] != env[name] {
			t.Errorf("%s is %q, want %q", field, body[field], env[name])
		}
	}

	var d alert.Document
	if err := json.Unmarshal([]byte(body["details"].(string)), &d); err != nil || len(d.Opened) != 1 || d.Opened[0].Task != "sync" {
		t.Errorf("details: %v, %+v", err, d)
	}
	if header.Get("Webhook-Signature") == "" || header.Get("Idempotency-Key") == "" {
		t.Errorf("headers %v", header)
	}
}
