package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Only Carillon writes to the people who rely on a receiver.
func TestReceiver_TriggersAndRetriesSendNoMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply("default/tasks/slack", receiverBody)

	w.unchanged("a trigger", func() {
		r := w.as(w.secret, "POST", "/v1/namespaces/default/tasks/slack/trigger", `{"env":{"ALERT_TEXT":"prod is down, log in at https://evil"}}`)
		if wantStatus(t, "a trigger", r, http.StatusUnprocessableEntity, task.CodeNotAllowed); !strings.Contains(r.Detail, "ALERT_TEXT") {
			t.Errorf("detail %q", r.Detail)
		}
	})
	wantStatus(t, "another variable", w.as(w.secret, "POST", "/v1/namespaces/default/tasks/slack/trigger", `{"env":{"DAY":"1"}}`), http.StatusAccepted, "")

	run := w.dead(ref("default", "slack"), "", 1)
	w.unchanged("a retry", func() {
		r := w.as(w.secret, "POST", "/v1/namespaces/default/tasks/slack/runs/"+run+"/retry", "")
		if wantStatus(t, "a retry", r, http.StatusConflict, client.CodeConflict); !strings.Contains(r.Detail, "messages of a receiver cannot be retried") {
			t.Errorf("detail %q", r.Detail)
		}
	})
	_, err := w.Runs.Dismiss(t.Context(), "default", "slack", run)
	must(t, err)
}
