package runs

import (
	"fmt"
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/task"
)

const testAbout = "Queues a run of the receiver, as for an alert, with a message that says that it is a test. It changes nothing of what the receiver knows. " +
	"Trigger is not enough for this, because callers could then send any text that looks like an alert."

// testReceiver serves the test of a receiver: it queues a run with a message of its own.
func (h *Handlers) testReceiver(c *httpapi.Call) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	var out client.Triggered
	err = httpapi.RetryConflict(c.Context(), func() error {
		out = client.Triggered{}
		st, err := h.Store.Task(c.Context(), ref)
		if err != nil {
			return err
		}

		if err := c.Rights().Require(access.Need{Verb: access.Update, Kind: access.Tasks, Namespace: ref.Namespace, Labels: st.Task.Labels}); err != nil {
			return err
		}
		if st.Task.Receiver == nil {
			return httpapi.Fail(http.StatusConflict, client.CodeConflict, "task %s is not a receiver of alerts: it has no receiver block", ref).
				WithHint(fmt.Sprintf("carillon task trigger -n %s %s runs it", ref.Namespace, ref.Name))
		}

		if err := h.checkQueue(c.Context(), ref); err != nil {
			return err
		}
		settings, err := h.Store.Cluster(c.Context())
		if err != nil {
			return err
		}

		m := alert.Message{
			Now: h.Now(), Cluster: h.Cluster, PublicURL: settings.PublicURL, Receiver: ref.String(), Repeat: st.Task.Receiver.RepeatAfter(),
			Output: st.Task.Receiver.AllowsOutput(), Test: true,
		}
		input := task.ManualInput{Env: m.Env(st.Task.Accept.Env)}

		run := requestedBy(c, h.manualRun(st), input)
		c.Rights().Describe(describeInput(run, input))
		_, paused := views.PauseInForce(&st.Entry, run.CreatedAt.Time)
		out = client.Triggered{Run: run, Paused: paused}
		_, err = h.Store.As(c.Rights()).Enqueue(c.Context(), st, task.Waiting{Run: run, Env: input.Env})

		return httpapi.About(run.ID, err)
	})

	if err == nil {
		out.Frozen = h.findFreeze(c.Context(), ref.Namespace)
	}

	return httpapi.Answer{Status: http.StatusAccepted, Body: out}, err
}
