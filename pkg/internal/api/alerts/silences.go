package alerts

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

const silenceAbout = "The alerts still open and close, and are in lists. With glob, the right to pause all tasks of the namespace is needed, or for one name, that task. " +
	"With selector, the right to pause tasks with the labels that it compares with one value is sufficient. With dry_run=true, nothing is written."

// listSilences serves the silences that are in force.
func (h *Handlers) listSilences(c *httpapi.Call) (httpapi.Answer, error) {
	namespaces, err := readableNamespaces(c)
	if err != nil {
		return httpapi.Answer{}, err
	}
	if namespaces == nil {
		namespaces = c.Rights().View().Namespaces()
	}

	list, err := h.Views.Silences(c.Context(), namespaces)
	if err != nil {
		return httpapi.Answer{}, err
	}
	for i := range list {
		list[i] = shown(list[i])
	}

	return httpapi.All(list)
}

// shown returns a silence as users see it.
func shown(s task.AlertSilence) task.AlertSilence {
	s.NamespaceRev = 0
	return s
}

// silenceQuery are the parameters of a new silence.
type silenceQuery struct {
	DryRun bool `query:"dry_run" default:"false" doc:"Checks everything but writes nothing."`
}

// createSilence serves a new silence.
func (h *Handlers) createSilence(c *httpapi.Call, q silenceQuery) (httpapi.Answer, error) {
	ns, err := c.Namespace()
	if err != nil {
		return httpapi.Answer{}, err
	}

	s, err := h.readSilence(c, ns)
	if err != nil {
		return httpapi.Answer{}, err
	}
	if err := h.requirePause(c, &s); err != nil {
		return httpapi.Answer{}, err
	}
	if err := c.Rights().RequireNamespace(ns); err != nil {
		return httpapi.Answer{}, err
	}
	c.Rights().Because(s.Reason)

	// A silence costs each message a comparison. Concurrent requests may exceed the limit by their number.
	inForce, err := h.Views.Silences(c.Context(), []string{ns})
	if err != nil {
		return httpapi.Answer{}, err
	}
	if len(inForce) >= task.MaxSilences {
		return httpapi.Answer{}, httpapi.Fail(http.StatusUnprocessableEntity, task.CodeTooMany, "namespace %s has %d silences, which is the maximum", ns, len(inForce)).
			WithHint("end some of them, or silence several tasks with one glob or selector")
	}

	out := client.Silenced{}
	if out.Alerts, err = h.countSilenced(c, s); err != nil {
		return httpapi.Answer{}, err
	}

	if q.DryRun {
		s.ID = ""
		out.AlertSilence = s
		return httpapi.Answer{Status: http.StatusOK, Body: out}, nil
	}

	err = httpapi.RetryConflict(c.Context(), func() error {
		written, err := h.Store.As(c.Rights()).CreateSilence(c.Context(), s)
		out.AlertSilence = shown(written)
		return httpapi.About(ns+"/"+s.ID, err)
	})

	return httpapi.Answer{Status: http.StatusCreated, Body: out}, err
}

// readSilence returns the silence in the body.
func (h *Handlers) readSilence(c *httpapi.Call, ns string) (task.AlertSilence, error) {
	var body struct {
		client.SilenceRequest
		For *task.Duration `json:"for"` // a pointer, to reject "0s"
	}
	if err := c.Decode(&body); err != nil {
		return task.AlertSilence{}, err
	}
	if err := h.ClockFault(); err != nil {
		return task.AlertSilence{}, httpapi.Fail(http.StatusServiceUnavailable, client.CodeClock, "this node's clock is not trusted: %s", err).
			WithHint("use another node, or correct this node's clock")
	}

	now := h.Now.Stamp()
	s := task.AlertSilence{ID: task.NewUID()[:8], Namespace: ns, Selector: body.Selector, Glob: body.Glob, Since: now, Until: body.Until, By: c.Actor(), Reason: body.Reason}
	if lasts := body.For; lasts != nil {
		switch {
		case !s.Until.IsZero():
			return s, task.Invalid(task.CodeBadValue, "for", "cannot be combined with until")
		case *lasts <= 0 || *lasts > task.MaxSilence:
			return s, task.Invalid(task.CodeOutOfRange, "for", "%s is not more than 0s and at most %s", *lasts, task.MaxSilence)
		}
		s.Until = task.At(now.Add(lasts.Std()))
	}

	return s, s.Validate(now.Time)
}

// requirePause refuses a silence, or its end, unless the caller may pause each task that the silence can be about. Of a selector, all of these
// have the labels that it compares with one value.
func (h *Handlers) requirePause(c *httpapi.Call, s *task.AlertSilence) error {
	if s.NamesOneTask() {
		if task.CheckName("glob", s.Glob) == nil {
			return c.Rights().RequireOnTask(c.Context(), h.Store, h.Ref(s.Namespace, s.Glob), access.Pause, access.Tasks)
		}
	}

	need := access.Need{Verb: access.Pause, Kind: access.Tasks, Namespace: s.Namespace}
	if selector, err := task.ParseSelector(s.Selector); err == nil && s.Glob == "" {
		need.Labels = selector.Equalities()
	}

	return c.Rights().Require(need)
}

// countSilenced returns how many open alerts a silence is about.
func (h *Handlers) countSilenced(c *httpapi.Call, s task.AlertSilence) (n int, err error) {
	silences := alert.CompileSilences([]task.AlertSilence{s}, nil)
	p := store.AlertPage{Shards: h.Shards, Namespaces: []string{s.Namespace}, Limit: 1000}

	for {
		list, next, err := h.Store.ListAlerts(c.Context(), p)
		if err != nil {
			return n, err
		}

		for i := range list {
			if list[i].IsOpen() && silences.Find(&list[i], s.Since.Time) != nil {
				n++
			}
		}

		if p.After = next; next == "" {
			return n, nil
		}
	}
}

// endSilence serves the end of a silence before its time.
func (h *Handlers) endSilence(c *httpapi.Call) (httpapi.Answer, error) {
	ns, err := c.Namespace()
	if err != nil {
		return httpapi.Answer{}, err
	}
	id := c.Request.PathValue("silence")
	if err := task.CheckName("silence", id); err != nil {
		return httpapi.Answer{}, err
	}

	var s task.AlertSilence
	err = httpapi.RetryConflict(c.Context(), func() error {
		list, err := h.Views.Silences(c.Context(), []string{ns})
		if err != nil {
			return err
		}

		i := slices.IndexFunc(list, func(s task.AlertSilence) bool { return s.ID == id })
		if i < 0 {
			// Only who may pause something there learns that it does not exist.
			return cmp.Or(c.Rights().RequireSomewhere(access.Need{Verb: access.Pause, Kind: access.Tasks, Namespace: ns}),
				fmt.Errorf("silence %s/%s: %w", ns, id, task.ErrNotFound))
		}
		if err := h.requirePause(c, &list[i]); err != nil {
			return err
		}

		s, err = h.Store.As(c.Rights()).EndSilence(c.Context(), list[i], h.Now.Stamp(), c.Actor())

		return httpapi.About(ns+"/"+id, err)
	})

	return httpapi.Answer{Status: http.StatusOK, Body: shown(s)}, err
}
