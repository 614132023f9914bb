package alert

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// specOf returns a spec in Berlin.
func specOf(schedule string, change func(*task.Spec)) *task.Spec {
	s := task.Defaults()
	s.Name, s.Schedule, s.Timezone, s.Alerts = "sync", task.Schedules{schedule}, "Europe/Berlin", &task.Alerts{Notify: []string{"slack"}}
	change(&s)
	return &s
}

func TestCheckSpec(t *testing.T) {
	by := func(cron string) func(*task.Spec) { return func(s *task.Spec) { s.Alerts.SuccessBy = cron } }
	keep := func(d time.Duration) func(*task.Spec) {
		return func(s *task.Spec) { s.History.KeepFor = task.Duration(d) }
	}
	withoutLedger := func(cron string, keep int, keepFor time.Duration) func(*task.Spec) {
		return func(s *task.Spec) {
			s.Alerts.SuccessBy, s.History.Ledger, s.History.Keep, s.History.KeepFor = cron, new(task.Duration), keep, task.Duration(keepFor)
		}
	}
	receiver := func(names ...string) func(*task.Spec) {
		return func(s *task.Spec) { s.Receiver, s.Alerts, s.Accept.Env = &task.Receiver{}, nil, names }
	}

	for _, c := range []struct {
		schedule string
		change   func(*task.Spec)
		want     string
	}{
		{"0 3 * * *", by("0 6 * * *"), ""},
		{"0 */3 * * *", by("0 6 * * *"), ""}, // eight a day
		{"0 * * * *", by("0 6 * * *"), "more than 8 ticks lie between two deadlines"},
		{"* * * * *", by("* * * * *"), ""},
		{"* * * * *", by("@hourly"), "more than 8 ticks"},
		{"0 3 * * *", by("0 6 1 * *"), "more than 8 ticks"}, // the deadlines are more than a month apart
		{"0 3 1 * *", by("0 6 1 * *"), ""},
		{"0 9-17 * * 1", by("0 18 * * *"), "more than 8 ticks"},
		{"@every 1h after completion", by("0 6 * * *"), "more than 8 ticks"},
		{"@every 6h after completion", by("0 6 * * *"), ""},
		{"@manual", by("0 6 * * *"), ""},
		{"0 3 * * *", by("0 25 * * *"), "hour 25 is greater than 23"},
		{"0 3 * * *", by("@manual"), `"@manual" is not a cron expression`},
		{"0 3 * * *", by("@every 1h"), `"@every 1h" is not a cron expression`},
		{"0 3 * * *", by("@at 2027-01-01T00:00:00Z"), "is not a cron expression"},
		{"0 3 * * *", by("H 6 * * *"), "alerts.success_by: "},
		{"0 3 * * *", by("0 6 31 2 *"), "alerts.success_by: "},

		{"0 */3 * * *", withoutLedger("0 6 * * *", 10, 0), ""},
		{"0 */3 * * *", withoutLedger("0 6 * * *", 9, 0), "history.keep: 9 is less than 10: without a ledger (history.ledger: 0s), the runs since the previous deadline must be kept, and up to 8 ticks lie"},
		{"0 */3 * * *", withoutLedger("0 6 * * *", 1, 48*time.Hour), ""},
		{"* * * * *", withoutLedger("* * * * *", 1, 0), "history.keep: 1 is less than 3"},

		{"0 * * * *", keep(20 * 24 * time.Hour), ""},
		{"0 * * * *", keep(21 * 24 * time.Hour), "history.keep_for: 504h: more than 500 ticks fall into this time"},
		{"@every 1s", keep(time.Hour), "history.keep_for"},
		{"@every 1m after completion", keep(10 * time.Hour), "history.keep_for"},
		{"@manual", keep(2000 * time.Hour), ""},

		{"@manual", receiver("ALERT_TEXT", "DAY"), ""},
		{"@manual", receiver("DAY", "ALERT_TXT"), `accept.env[1]: "ALERT_TXT" is not one of ALERT_TITLE,`},
	} {
		s := specOf(c.schedule, c.change)
		got := ""
		if err := CheckSpec(s, s.Timing(), clockAt("01:00").Time); err != nil {
			got = err.Error()
		}
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s, by %v: %q, want %q", c.schedule, s.Alerts, got, c.want)
		}
	}

	// A task that is neither watched nor a receiver is not checked.
	s := specOf("@every 1s", keep(time.Hour))
	s.Alerts = nil
	if err := CheckSpec(s, s.Timing(), clockAt("01:00").Time); err != nil {
		t.Error(err)
	}
}

func TestAdvice(t *testing.T) {
	off := 0
	for _, c := range []struct {
		name     string
		schedule string
		change   func(*task.Spec)
		longest  time.Duration
		want     []string // codes
		text     string   // of the first
	}{
		{name: "failures only", schedule: "0 3 * * *", change: func(*task.Spec) {}, want: []string{task.WarnNoSuccessExpected},
			text: "alerts: if the task does not start, nobody is notified; set success_within, success_by or max_lateness"},
		{name: "nobody is notified", schedule: "0 3 * * *", change: func(s *task.Spec) { s.Alerts.Notify = nil }, want: []string{task.WarnNobodyNotified},
			text: "alerts.notify: names no receiver, so nobody is notified of the alerts of this task"},
		{name: "started by hand", schedule: "@manual", change: func(*task.Spec) {}},
		{name: "success within", schedule: "0 3 * * *", change: func(s *task.Spec) { s.Alerts.SuccessWithin = task.Duration(time.Hour) }},
		{name: "nothing", schedule: "0 3 * * *", change: func(s *task.Spec) { s.Alerts.Failures = &off }, want: []string{task.WarnNothingExpected}},
		{name: "no alerts", schedule: "0 3 * * *", change: func(s *task.Spec) { s.Alerts = nil }},
		{name: "in time", schedule: "0 3 * * *", change: func(s *task.Spec) { s.Alerts.SuccessBy = "0 6 * * *" }, longest: 3 * time.Hour},
		{name: "too long", schedule: "0 3 * * *", change: func(s *task.Spec) { s.Alerts.SuccessBy, s.Jitter = "0 6 * * *", task.Duration(30*time.Minute) }, longest: 3 * time.Hour,
			want: []string{task.WarnTightDeadline},
			text: "alerts.success_by: the run of the tick at 2026-11-24 03:00 may end 30m after its deadline: its jitter is 30m, and a run took up to 3h"},
		{name: "a tick at the deadline", schedule: "0 6 * * *", change: func(s *task.Spec) { s.Alerts.SuccessBy = "0 6 * * *" }, longest: 20 * time.Hour},
		{name: "a tick at the deadline, too long", schedule: "0 6 * * *", change: func(s *task.Spec) { s.Alerts.SuccessBy = "0 6 * * *" }, longest: 25 * time.Hour, want: []string{task.WarnTightDeadline}},
		{name: "severity", schedule: "@manual", change: func(s *task.Spec) { s.Labels = map[string]string{"severity": "criticl"} }, want: []string{task.WarnUnknownSeverity},
			text: `labels.severity: "criticl" is not one of critical, error, warning, info; did you mean critical?; messages say error`},
		{name: "known severity", schedule: "@manual", change: func(s *task.Spec) { s.Labels = map[string]string{"severity": "info"} }},
		{name: "empty messages", schedule: "@manual", change: func(s *task.Spec) { s.Receiver, s.Alerts = &task.Receiver{}, nil }, want: []string{task.WarnEmptyMessages}},
		{name: "messages", schedule: "@manual", change: func(s *task.Spec) {
			s.Receiver, s.Alerts, s.Accept.Env = &task.Receiver{}, nil, []string{"ALERT_TITLE"}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := specOf(c.schedule, c.change)

			var codes []string
			list := Advice(s, s.Timing(), clockAt("01:00").Time, c.longest)
			for _, w := range list {
				codes = append(codes, w.Code)
			}
			if !slices.Equal(codes, c.want) || c.text != "" && list[0].Text != c.text {
				t.Errorf("warnings %+v, want %q %s", list, c.want, c.text)
			}
		})
	}
}
