package wait

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestExplainFailure(t *testing.T) {
	for _, tt := range []struct {
		status  int
		output  int64
		message string
		want    string
	}{
		{0, 0, "no such user", "no such user"},
		{0, 7, "output is not kept", ""},
		{404, 7, "HTTP 404 Not Found", ""},
		{404, 0, "HTTP 404 Not Found", ""},
		{503, 7, "HTTP 503 Service Unavailable; the target asks to wait 5s", "the target asks to wait 5s"},
		{200, 7, `HTTP 200 OK, but the response does not contain "/id" (results.id)`, `the response does not contain "/id" (results.id)`},
		{307, 0, "HTTP 307 Temporary Redirect after 2 redirects, and no more are followed", "after 2 redirects, and no more are followed"},
		{302, 7, "http://b: the connection was closed before a complete response arrived", "http://b: the connection was closed before a complete response arrived"},
	} {
		r := task.Run{HTTPStatus: tt.status, Message: tt.message}
		r.OutputBytes = tt.output
		if got := explainFailure(r); got != tt.want {
			t.Errorf("%d, %q: %q, want %q", tt.status, tt.message, got, tt.want)
		}
	}
}

// The result of a workflow names the step that failed, so the explanation does not repeat it.
func TestExplainFailure_NamesTheFailedStepOnce(t *testing.T) {
	r := task.Run{State: task.Failed, Reason: task.ReasonSteps, Message: "step load/1: exited with code 3"}
	if got := explainFailure(r); got != "exited with code 3" {
		t.Errorf("%q", got)
	}
}
