package wording_test

import (
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// A refusal says whether the attempt had begun: a redirect can be refused after a request was sent.
func TestRunResult_SaysWhetherARefusedAttemptHadBegun(t *testing.T) {
	now := time.Date(2026, 11, 26, 9, 0, 0, 0, time.UTC)
	run := task.Run{State: task.Failed, Reason: task.ReasonPolicy}
	if got := wording.RunResult(run, now); got != "not started (policy)" {
		t.Errorf("before anything was sent: %q", got)
	}

	run.HTTPStatus = 302
	if got := wording.RunResult(run, now); got != "failed (policy)" {
		t.Errorf("after a redirect: %q", got)
	}
}
