package runs

import (
	"context"
	"net/url"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/task"
)

// waitQuery are the parameters of a request for one run.
type waitQuery struct {
	Wait task.Duration `query:"wait" doc:"Answers when the run has ended, but after this time at the latest, with the run as it is then: \"30s\". At most 1m. Default: answers at once."`
}

// Check rejects a wait that is too long.
func (q *waitQuery) Check(url.Values) error {
	if q.Wait < 0 || q.Wait.Std() > httpapi.MaxWait {
		return task.Invalid(task.CodeOutOfRange, "wait", "%s is out of range 0s–%s; to wait longer, repeat the request", q.Wait, task.Duration(httpapi.MaxWait))
	}
	return nil
}

// Watcher watches a run, as events.Handlers.WatchRun does.
type Watcher func(c *httpapi.Call, namespace, name, run string) (changed <-chan struct{}, stop func(), err error)

// answerWhenEnded answers with a run when it has ended, or when the request has waited for q.Wait. find reads the run.
//
// It learns of changes from the events of this node, and reads etcd only after a change, so a run that takes long costs nothing.
// It ends early if the caller leaves, loses its rights, or if the node stops: then the answer has the run as it is.
func (h *Handlers) answerWhenEnded(c *httpapi.Call, q waitQuery, find func(context.Context) (task.Run, error)) (httpapi.Answer, error) {
	run, err := find(c.Context())
	if err == nil && q.Wait > 0 && !run.State.Final() {
		run, err = h.awaitEnd(c, q.Wait.Std(), run, find)
	}

	if err == nil {
		h.Attempts.AddToRun(c, &run)
	}

	return answerRun(c, run, err)
}

// awaitEnd reads a run again after each change, until it has ended or limit has passed.
func (h *Handlers) awaitEnd(c *httpapi.Call, limit time.Duration, run task.Run, find func(context.Context) (task.Run, error)) (task.Run, error) {
	over := time.NewTimer(limit)
	defer over.Stop()

	changed, stop, err := h.Watch(c, run.Namespace, run.Task, run.ID)
	if err != nil {
		return run, err
	}
	defer stop()

	beat := time.NewTicker(h.Heartbeat)
	defer beat.Stop()

	for {
		// The watch began before this, so a change that this does not find is in changed.
		if run, err = find(c.Context()); err != nil || run.State.Final() {
			return run, err
		}

		waiting := true
		for waiting {
			select {
			case <-changed:
				waiting = false
			case <-beat.C:
				if err := h.CheckStream(c.Context(), c.Request); err != nil {
					return run, err // the token is no longer valid
				}
			case <-over.C:
				return find(c.Context()) // the event of a change can be late, or the watch may have ended
			case <-h.Ends:
				return run, nil
			case <-c.Context().Done():
				return run, c.Context().Err()
			}
		}
	}
}
