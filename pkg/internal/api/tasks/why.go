package tasks

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/why"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const whyAbout = "Set at for one time, or from and to for a range. By default, the answer covers the latest tick and the next one. " +
	"Write a time as 2026-03-29T02:30, optionally with seconds and an offset such as Z. Without an offset it is local to the time zone. A date means the whole day."

// whyQuery are the parameters of a request to explain a task's ticks.
type whyQuery struct {
	At       *string `query:"at" doc:"A time, or a date."`
	From     *string `query:"from" doc:"The beginning of a range; with to."`
	To       *string `query:"to" doc:"The end of a range, inclusive. Default: now."`
	Timezone string  `query:"timezone" doc:"The time zone for local times. Default: the task's."`
}

// whyTask serves the explanation why a task did, did not or will run at a time.
func (h *Handlers) whyTask(c *httpapi.Call, ask whyQuery) (httpapi.Answer, error) {
	ref, err := c.Ref()
	if err != nil {
		return httpapi.Answer{}, err
	}

	// The explanation is made of the runs of the task.
	if err := c.Rights().Require(access.Need{Verb: access.Read, Kind: access.Runs, Namespace: ref.Namespace}); err != nil {
		return httpapi.Answer{}, err
	}

	q, err := h.parseQuestion(c, ref, ask)
	if err != nil {
		return httpapi.Answer{}, err
	}

	// All records are read at one revision, so the explanation is consistent.
	from, to := q.Span(h.Now())
	account, err := h.Store.Account(c.Context(), ref, from, to)
	if err != nil {
		return httpapi.Answer{}, err
	}
	// A task that never existed has no records at all. Anything else, even a tombstone, can be explained.
	if account.Task == nil && account.EntryMade == 0 && account.Deleted == nil && len(account.Broken) == 0 {
		return httpapi.Answer{}, fmt.Errorf("task %s: %w", ref, task.ErrNotFound)
	}

	facts := h.factsOf(ref, account, c.Rights().View())
	if err := h.addSources(c, ref, &facts, to); err != nil {
		return httpapi.Answer{}, err
	}

	for _, runs := range [][]task.Run{facts.Runs, facts.Late} {
		for i := range runs {
			runs[i] = views.ReadableRun(c.Rights(), runs[i])
		}
	}

	answer := why.For(facts, q)
	if q.At == nil && q.From == nil {
		if err := h.addAlerts(c, ref, q.Timezone, &answer); err != nil {
			return httpapi.Answer{}, err
		}
	}

	return httpapi.Answer{Status: http.StatusOK, Body: answer}, nil
}

// addSources adds what waits to start a dependent, and the newest ends of its sources until a time.
func (h *Handlers) addSources(c *httpapi.Call, ref record.Ref, f *why.Facts, until time.Time) error {
	if f.Task == nil || len(f.Task.After) == 0 {
		return nil
	}

	// The end of a run is later than the time in its id.
	var sources []record.Ref
	for _, name := range f.Task.After.Names() {
		sources = append(sources, h.Ref(ref.Namespace, name))
	}

	a, err := h.Store.AccountOfSources(c.Context(), ref, sources, until, f.Revision)
	if err != nil {
		return err
	}

	for _, p := range a.Triggers {
		f.Triggers = append(f.Triggers, p.Trigger)
	}
	for _, s := range a.Sources {
		f.Sources = append(f.Sources, why.SourceRuns{Task: s.Task, Gone: s.Gone, Runs: s.Runs})
	}

	return nil
}

// addAlerts adds to an answer about now the open alerts of the task and what each receiver knows of them. Without an open alert, it adds only
// what would keep messages away from a receiver.
func (h *Handlers) addAlerts(c *httpapi.Call, ref record.Ref, timezone string, answer *task.Answer) error {
	all, err := h.Views.TaskAlerts(c.Context(), ref)
	switch {
	case errors.Is(err, task.ErrNotFound):
		return nil // the task was deleted, or its entry cannot be read
	case err != nil:
		return err
	}

	loc, err := schedule.Location(timezone)
	if err != nil {
		return err
	}
	at := func(t task.Time) string { return t.In(loc).Format("Mon 2 Jan 2006 15:04 MST") }
	add := func(what, format string, args ...any) {
		answer.Lines = append(answer.Lines, task.EvidenceLine{What: what, Says: fmt.Sprintf(format, args...)})
	}

	for _, a := range all.Items {
		if !a.IsOpen() {
			continue
		}
		answer.Alerts = append(answer.Alerts, a)

		words := fmt.Sprintf("%s, since %s; severity %s", wording.AlertProblem(&a.Alert, at), at(a.Since), a.Severity)
		if a.Rule != "" {
			words += "; expected by the rule " + a.Rule
		}
		if k := a.Acknowledged; k != nil {
			words += fmt.Sprintf("; %s works on it since %s", k.By.Name(), at(k.At))
		}
		if a.Silence != nil {
			words += "; " + wording.AlertSilenceText(a.Silence, at)
		}

		add("Alert "+string(a.Kind), "%s", words)
		for _, r := range a.Receivers {
			add("Receiver "+r.Receiver, "%s", wording.AlertReceiverText(&r, false, at))
		}
	}

	if len(answer.Alerts) > 0 {
		return nil
	}

	for _, r := range all.Receivers {
		if r.Blocked != nil {
			add("Receiver "+r.Receiver, "%s", wording.AlertReceiverText(&r, false, at))
		}
	}

	return nil
}

// parseQuestion parses the parameters. Local times are in the task's time zone unless the request names another one.
func (h *Handlers) parseQuestion(c *httpapi.Call, ref record.Ref, ask whyQuery) (q why.Question, err error) {
	// A task that is deleted or unreadable can still be explained, so only other errors end here.
	if q.Timezone = ask.Timezone; q.Timezone == "" {
		st, err := h.Store.Task(c.Context(), ref)
		if err != nil && !errors.Is(err, task.ErrNotFound) && !errors.Is(err, task.ErrInvalid) {
			return q, err
		}

		if q.Timezone = st.Task.Timezone; q.Timezone == "" {
			q.Timezone = task.Defaults().Timezone
		}
	}

	zone, err := schedule.Location(q.Timezone)
	if err != nil {
		return q, err
	}
	base := schedule.TimeBase{Now: h.Now(), Zone: zone}

	for _, p := range []struct {
		name string
		text *string
		to   **why.Moment
	}{{"at", ask.At, &q.At}, {"from", ask.From, &q.From}, {"to", ask.To, &q.To}} {
		if p.text == nil {
			continue
		}

		// A range ends now by default, so a duration in it is that long ago, as it is for --since.
		base.Direction = schedule.Nearest
		if _, err := task.ParseDuration("", *p.text); err == nil && p.name != "at" {
			base.Direction = schedule.Past
		}

		m, err := why.ReadMoment(*p.text, base)
		if err != nil {
			return q, task.Under(p.name, err)
		}

		*p.to = &m
	}

	switch {
	case q.At != nil && (q.From != nil || q.To != nil):
		return q, task.Invalid(task.CodeBadValue, "at", "cannot be combined with from and to")
	case q.To != nil && q.From == nil:
		return q, task.Invalid(task.CodeRequired, "from", "is required with to")
	case q.From != nil && q.To == nil:
		q.To = why.Instant(h.Now())
	}

	if from, to := q.Span(h.Now()); to.Before(from) {
		if ask.To == nil {
			return q, task.Invalid(task.CodeRequired, "to", "is required if from is in the future, because a range ends now by default")
		}
		return q, task.Invalid(task.CodeBadValue, "to", "is before from")
	}

	return q, nil
}

// factsOf converts an account of the store to the form of package why. known has the record of the task's namespace and the
// limits of nodes.
func (h *Handlers) factsOf(ref record.Ref, a record.Account, known *authority.View) why.Facts {
	f := why.Facts{
		Namespace: ref.Namespace, Name: ref.Name, Shard: ref.Shard,
		Task: a.Task, Entry: a.Entry, Versions: a.Versions,
		Runs: a.Runs, Late: a.Late, Dead: a.Dead, Newer: a.Newer, CutAt: a.CutAt.Time,
		Nodes: known.LimitNodes(a.Nodes), Limits: known.Namespace(ref.Namespace), Freezes: a.Freezes, Now: h.Now.Stamp().Time, Revision: a.Revision,
	}
	if d := a.Deleted; d != nil {
		f.Deleted = &task.Deletion{UID: d.UID, Generation: d.Generation, At: d.DeletedAt, By: d.DeletedBy, Why: d.Why}
	}

	if o := a.Owner; o != nil {
		f.Owner = &why.Owner{Node: o.Node, Since: o.Since.Time, Previous: o.Previous}
	}

	if w := a.Watermark; w != nil {
		f.Watermark = &why.Watermark{Time: w.Time.Time, All: w.Decided(w.Time, ref.String())}
		f.Covered = a.EntryMade > 0 && a.EntryMade <= w.Seen
	}

	for _, p := range a.Unread {
		f.Unread = append(f.Unread, why.Period{From: p.From.Time, To: p.To.Time})
	}

	if a.Task != nil {
		f.Ledger = ledger.NewBook(a.Task.UID, a.Ledger)
	}

	keys := h.Store.Keys()

	// Unreadable records are named, because the explanation may be incomplete without them.
	for _, key := range a.Broken {
		switch k, ok := keys.ParseShard(key); {
		case key == keys.Spec(ref):
			f.BrokenTask = append(f.BrokenTask, "spec")
		case key == keys.Entry(ref):
			f.BrokenTask = append(f.BrokenTask, "entry")
		case ok && k.Run != "":
			f.Broken = append(f.Broken, k.Run)
		}
	}

	return f
}
