package alert

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// maxTicksToDeadline is the most ticks between two deadlines of success_by. Only the newest of them counts, so with more of them
// success_within says better what is expected.
const maxTicksToDeadline = 8

// A check looks at the deadlines of a month, but at no more than maxDeadlines.
const (
	deadlinesAhead = 31 * 24 * time.Hour
	maxDeadlines   = 5000
)

// CheckSuccessBy checks the deadlines of a task.
func CheckSuccessBy(successBy string, timing task.Timing) error {
	_, err := parseSuccessBy(successBy, timing)
	return err
}

// parseSuccessBy returns the schedule of the deadlines of a task. The error is a *task.Error of the field.
func parseSuccessBy(successBy string, timing task.Timing) (*schedule.Schedule, error) {
	const field = "alerts.success_by"

	d, err := ParseDeadlines(successBy, timing.Timezone, timing.DST)
	if err != nil {
		if e, ok := err.(*task.Error); ok && e.Field == "schedule" {
			return nil, task.Invalid(e.Code, field, "%s", e.Message)
		}
		return nil, err
	}
	if s := d.schedule; s.Manual() || s.IsCounted() || s.OnlyAt() {
		return nil, task.Invalid(task.CodeBadSchedule, field, "%s is not a cron expression, such as \"0 6 * * *\"", task.Quote(successBy))
	}

	return d.schedule, nil
}

// CheckSpec checks what a spec expects, as far as that depends on its schedule: how many runs it keeps, and how many ticks lie between
// two deadlines. timing is that of the spec, with all its expressions resolved.
func CheckSpec(spec *task.Spec, timing task.Timing, now time.Time) error {
	if err := checkVariables(spec); err != nil {
		return err
	}

	a := spec.Alerts
	if a == nil {
		return nil
	}

	ticks, err := schedule.Parse(timing, now)
	if err != nil {
		return err
	}

	if keep := spec.History.KeepFor.Std(); countTicks(ticks, now, now.Add(keep), task.MaxAlertKept) > task.MaxAlertKept {
		return task.Invalid(task.CodeOutOfRange, "history.keep_for", "%s: more than %d ticks fall into this time, and a task with alerts keeps at most so many ended runs",
			spec.History.KeepFor, task.MaxAlertKept)
	}

	if a.SuccessBy == "" {
		return nil
	}

	deadlines, err := parseSuccessBy(a.SuccessBy, timing)
	if err != nil {
		return err
	}

	most, err := checkDeadlines(a.SuccessBy, deadlines, ticks, now)
	if err != nil {
		return err
	}

	// Without a ledger, only the history shows a success. keep_for keeps further runs.
	h := spec.History
	if least := most + spareKept; h.Ledger != nil && *h.Ledger == 0 && h.KeepFor == 0 && h.Keep < least {
		return task.Invalid(task.CodeOutOfRange, "history.keep", "%d is less than %d: without a ledger (history.ledger: 0s), the runs since the previous deadline must be kept, "+
			"and up to %d ticks lie between two deadlines of alerts.success_by", h.Keep, least, most)
	}

	return nil
}

// spareKept is how many runs a task without ledger keeps, at least, in addition to those between two deadlines: one may end between a
// deadline and its judgement, and one may be requested.
const spareKept = 2

// checkVariables checks the variables of messages that a receiver accepts. One with another name would always be empty.
func checkVariables(spec *task.Spec) error {
	if spec.Receiver == nil {
		return nil
	}

	for i, name := range spec.Accept.Env {
		if strings.HasPrefix(name, task.AlertEnvPrefix) && !slices.Contains(variableNames, name) {
			return task.NoneOf(task.CodeBadEnv, fmt.Sprintf("accept.env[%d]", i), name, variableNames...)
		}
	}

	return nil
}

// checkDeadlines checks that few ticks lie between two deadlines of the next month, and returns how many there are at most.
func checkDeadlines(successBy string, deadlines, ticks *schedule.Schedule, now time.Time) (most int, err error) {
	end := now.Add(deadlinesAhead)
	last := now
	for range maxDeadlines {
		deadline, ok := deadlines.Next(last)
		if !ok || deadline.After(end) {
			deadline = end
		}

		n := countTicks(ticks, last, deadline, maxTicksToDeadline)
		if n > maxTicksToDeadline {
			return 0, task.Invalid(task.CodeBadValue, "alerts.success_by", "%s: more than %d ticks lie between two deadlines, and only the newest one counts; use success_within",
				task.Quote(successBy), maxTicksToDeadline)
		}

		most = max(most, n)

		if last = deadline; !last.Before(end) {
			break
		}
	}

	return most, nil
}

// countTicks returns how many ticks lie after one time, up to another, but at most one more than most.
func countTicks(s *schedule.Schedule, after, upTo time.Time, most int) int {
	// A schedule that counts from the end of a run has only one tick ahead. At the earliest, the others follow in its period.
	if period, ok := s.AfterCompletion(); ok {
		return min(int(upTo.Sub(after)/period), most+1)
	}

	count := 0
	for tick, ok := s.Next(after); ok && !tick.After(upTo) && count <= most; tick, ok = s.Next(tick) {
		count++
	}

	return count
}

// Advice returns warnings for the author of a task with alerts, or of a receiver. longest is the longest that a run of
// the task is known to have taken; 0: it is not known.
func Advice(spec *task.Spec, timing task.Timing, now time.Time, longest time.Duration) []task.Warning {
	var list []task.Warning
	add := func(code, format string, args ...any) {
		list = append(list, task.Warning{Code: code, Text: fmt.Sprintf(format, args...)})
	}

	if spec.Receiver != nil && !slices.ContainsFunc(spec.Accept.Env, func(name string) bool { return slices.Contains(variableNames, name) }) {
		add(task.WarnEmptyMessages, "accept.env: contains no variable of a message, such as %s, so the runs of this receiver do not know what they are about", VarText)
	}

	a := spec.Alerts
	if a == nil {
		return list
	}

	ticks, err := schedule.Parse(timing, now)
	if err != nil {
		return list // CheckSpec has refused it
	}

	switch {
	case a.ExpectsNothing():
		add(task.WarnNothingExpected, "alerts: nothing is expected of the task, so it never alerts; set failures, success_within or another expectation")
	case len(a.Notify) == 0:
		add(task.WarnNobodyNotified, "alerts.notify: names no receiver, so nobody is notified of the alerts of this task")
	case a.SuccessWithin == 0 && a.SuccessBy == "" && a.MaxLateness == 0 && !ticks.Manual():
		add(task.WarnNoSuccessExpected, "alerts: if the task does not start, nobody is notified; set success_within, success_by or max_lateness")
	}

	if late, ok := tightDeadline(a.SuccessBy, timing, ticks, now, longest); ok {
		var why []string
		if jitter := ticks.Jitter(); jitter > 0 {
			why = append(why, "its jitter is "+task.Duration(jitter).String())
		}
		if longest > 0 {
			why = append(why, "a run took up to "+task.Duration(longest).Approximate())
		}
		add(task.WarnTightDeadline, "alerts.success_by: the run of the tick at %s may end %s after its deadline: %s",
			late.tick.In(ticks.Location()).Format("2006-01-02 15:04"), task.Duration(late.by).Approximate(), strings.Join(why, ", and "))
	}

	if label, ok := spec.Labels[task.LabelSeverity]; ok && (&task.Alert{Labels: spec.Labels}).Severity() != label {
		add(task.WarnUnknownSeverity, "labels.severity: %s", task.NoneOf("", "", label, task.AlertSeverities()...).Message+"; messages say "+task.DefaultAlertSeverity)
	}

	return list
}

// lateTick is a tick whose run may end after its deadline, and by how much.
type lateTick struct {
	tick time.Time
	by   time.Duration
}

// tightDeadline returns the first tick of the next deadlines whose run would miss it by its jitter and its usual duration.
func tightDeadline(successBy string, timing task.Timing, ticks *schedule.Schedule, now time.Time, longest time.Duration) (late lateTick, ok bool) {
	const ahead, most = 10, 1000 // deadlines, and the ticks before each of them

	deadlines, err := parseSuccessBy(successBy, timing)
	if successBy == "" || err != nil {
		return late, false
	}

	last := now
	for range ahead {
		deadline, ok := deadlines.Next(last)
		if !ok {
			break
		}

		// A tick at a deadline belongs to the next one.
		var newest time.Time
		tick, ok := ticks.Next(last.Add(-time.Millisecond))
		for n := 0; ok && tick.Before(deadline) && n < most; n++ {
			newest = tick
			tick, ok = ticks.Next(tick)
		}

		if end := newest.Add(ticks.Jitter() + longest); !newest.IsZero() && end.After(deadline) {
			return lateTick{newest, end.Sub(deadline)}, true
		}
		last = deadline
	}

	return late, false
}
