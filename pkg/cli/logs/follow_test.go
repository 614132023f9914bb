package logs

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/task"
)

// A client that waits for a run learns why it waits, once for each reason. That its target is down can take minutes.
func TestRunFollower_SaysWhyARunWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		f := factory.New(factory.IO{Out: &bytes.Buffer{}, Err: &out, Env: func(string) string { return "" }})
		f.NamespaceFlag, f.Color = "default", "never"
		r := &RunFollower{M: NewMerger(f, []selection.Ref{{Namespace: "default", Name: "order"}}), since: time.Now()}
		r.Run = task.Run{Namespace: "default", Task: "order", State: task.Queued, Reason: task.ReasonManual, Attempt: 1}
		r.noteWaiting()
		time.Sleep(startTimeout)
		r.noteWaiting()

		for i := range 3 {
			r.Run.Reason, r.Run.Attempt = task.ReasonTarget, 2+i
			r.Run.Unsent = &task.Unsent{Count: 1 + i, Message: "http://shop.test: cannot connect:\nconnection refused"}
			r.noteWaiting()
		}

		want := "waiting: order is queued (manual)\n" +
			"waiting: order is queued (target down), attempt 2: http://shop.test: cannot connect: connection refused\n"
		if out.String() != want {
			t.Errorf("it says\n%swant\n%s", out.String(), want)
		}
	})
}
