package api_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// receiverBody is the smallest document of a receiver.
const receiverBody = `{"receiver":{"from":["ops"]},"accept":{"env":["ALERT_TEXT","A","DAY"]},"action":{"noop":{}}}`

// apply writes a task, and returns the codes and the texts of the warnings.
func (w *world) apply(path, body string) (codes, texts []string) {
	w.t.Helper()

	r := w.as(w.secret, "PUT", "/v1/namespaces/"+path, body)
	if r.status != http.StatusOK {
		w.t.Fatalf("%s: %d %s", body, r.status, r.body)
	}

	var v client.Task
	must(w.t, json.Unmarshal([]byte(r.body), &v))
	for _, warning := range v.WarningDetails {
		codes, texts = append(codes, warning.Code), append(texts, warning.Text)
	}
	if !slices.Equal(texts, v.Warnings) {
		w.t.Errorf("warnings %q, details %q", v.Warnings, texts)
	}

	return codes, texts
}

func TestAlerts_WriteWarnsAboutReceivers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	watched := func(notify string) string {
		return `{"schedule":"@hourly","alerts":{"notify":` + notify + `,"success_within":"2h"},"action":{"noop":{}}}`
	}
	codes, texts := w.apply("ops/tasks/a", watched(`["default/slack"]`))
	if want := []string{"alerts.notify[0]: default/slack is no receiver of the alerts of namespace ops; it gets none until it is"}; !slices.Equal(texts, want) || codes[0] != task.WarnNoReceiver {
		t.Errorf("a receiver that does not exist: %q", texts)
	}
	missing := texts

	w.create("job", "@daily")
	if codes, _ := w.apply("default/tasks/a", watched(`["job"]`)); !slices.Equal(codes, []string{task.WarnNoReceiver}) {
		t.Errorf("a task that is no receiver: %q", codes)
	}

	if codes, _ := w.apply("default/tasks/slack", receiverBody); len(codes) > 0 {
		t.Errorf("a receiver: %q", codes)
	}
	for path, body := range map[string]string{"ops/tasks/a": watched(`["default/slack"]`), "default/tasks/a": watched(`["slack", "default/job"]`)} {
		want := []string(nil)
		if strings.Contains(body, "job") {
			want = []string{task.WarnNoReceiver}
		}
		if codes, texts := w.apply(path, body); !slices.Equal(codes, want) {
			t.Errorf("%s: %q", path, texts)
		}
	}

	// The text is the same whether the receiver does not exist or does not accept the namespace.
	w.apply("default/tasks/slack", strings.Replace(receiverBody, `"ops"`, `"other"`, 1))
	if _, texts := w.apply("ops/tasks/a", watched(`["default/slack"]`)); !slices.Equal(texts, missing) {
		t.Errorf("a receiver of others: %q, want %q", texts, missing)
	}

	// A dry run and a batch warn, too.
	if codes, _ := w.apply("ops/tasks/b?dry_run=true", watched(`["none"]`)); !slices.Equal(codes, []string{task.WarnNoReceiver}) {
		t.Errorf("a dry run: %q", codes)
	}

	// A batch knows its own receivers, also before they are written.
	for _, result := range w.batch("?dry_run=true", `{"name":"c","schedule":"@hourly","alerts":{"notify":["new"],"success_within":"2h"},"action":{"noop":{}}}`,
		strings.Replace(receiverBody, `{`, `{"name":"new",`, 1)) {
		if result.Error != nil || len(result.Warnings) > 0 {
			t.Errorf("a batch with its receiver: %+v, %q", result.Error, result.Warnings)
		}
	}

	results := w.batch("", `{"name":"c","schedule":"@hourly","alerts":{"notify":["slack"]},"action":{"noop":{}}}`,
		`{"name":"d","schedule":"@hourly","alerts":{"notify":["none"],"success_by":"0 6 * * *"},"action":{"noop":{}}}`, `{"name":"e","schedule":"@daily","action":{"noop":{}}}`)
	var got []string
	for _, result := range results {
		if result.Error != nil {
			got = append(got, result.Error.Field)
		}
		for _, warning := range result.WarningDetails {
			got = append(got, warning.Code)
		}
	}
	if want := []string{task.WarnNoSuccessExpected, "alerts.success_by"}; !slices.Equal(got, want) {
		t.Errorf("a batch: %q, want %q", got, want)
	}
}

// A run that would end after its deadline is known from the history of the task.
func TestAlerts_WriteWarnsAboutATightDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	body := `{"schedule":"0 5 * * *","alerts":{"success_by":"0 6 * * *"},"action":{"noop":{}}}`
	w.apply("default/tasks/a", body)

	st, err := w.store.Task(t.Context(), ref("default", "a"))
	must(t, err)
	w.ended("a", id(1, st.Task.UID), task.Succeeded, func(r *task.Run) {
		r.UID, r.StartedAt = st.Task.UID, task.At(r.ScheduledTime.Time)
		r.EndedAt = task.At(r.StartedAt.Add(90 * 60e9))
	})

	codes, texts := w.apply("default/tasks/a", strings.Replace(body, `"action"`, `"labels":{"a":"b"},"action"`, 1))
	if !slices.Equal(codes, []string{task.WarnNobodyNotified, task.WarnTightDeadline}) || !strings.Contains(texts[1], "30m after its deadline: a run took up to 1h 30m") {
		t.Errorf("warnings %q", texts)
	}
}

func TestAlerts_WriteRefusesWhatCannotBeJudged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	for body, field := range map[string]string{
		`{"schedule":"@hourly","alerts":{"success_by":"0 6 * * *"},"action":{"noop":{}}}`:                        "alerts.success_by",
		`{"schedule":"@hourly","alerts":{"success_by":"@manual"},"action":{"noop":{}}}`:                          "alerts.success_by",
		`{"schedule":"@hourly","alerts":{},"history":{"keep":600},"action":{"noop":{}}}`:                         "history.keep",
		`{"schedule":"* * * * *","alerts":{},"history":{"keep_for":"24h"},"action":{"noop":{}}}`:                 "history.keep_for",
		`{"schedule":"H * * * *","alerts":{"success_by":"0 6 * * *"},"action":{"noop":{}}}`:                      "alerts.success_by",
		`{"schedule":"@hourly","receiver":{},"action":{"noop":{}}}`:                                              "schedule",
		`{"receiver":{},"accept":{"env":["ALERT_TXT"]},"action":{"noop":{}}}`:                                    "accept.env[0]",
		`{"receiver":{},"action":{"http":{"url":"https://a","headers":{"X":"${env.ALERT_TITLE}"}}}}`:             "action.http.headers.X",
		`{"receiver":{},"alerts":{"notify":["default/x"]},"accept":{"env":["ALERT_TEXT"]},"action":{"noop":{}}}`: "alerts.notify[0]",
	} {
		w.unchanged(body, func() {
			if r := w.as(w.secret, "PUT", "/v1/namespaces/default/tasks/x", body); r.status != http.StatusUnprocessableEntity || r.Field != field {
				t.Errorf("%s: %d %q %s", body, r.status, r.Field, r.body)
			}
		})
	}
}
