package alert

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/task"
)

// clockAt returns a time of 24 November 2026 in Berlin (UTC+1).
func clockAt(clock string) task.Time {
	t, err := time.Parse("2006-01-02 15:04 -07:00", "2026-11-24 "+clock+" +01:00")
	if err != nil {
		panic(err)
	}

	return task.At(t)
}

// syncTask is the task of the example in the docs, whose run has failed.
func syncTask() Item {
	exit := 1
	return Item{
		Alert: task.Alert{
			ID: 7, Namespace: "shop", Task: "sync", Kind: task.AlertFailures, UID: "u1", Since: clockAt("01:00"), Run: "20261124T010000.000Z-k3f9", Failures: 2,
			Notify: []string{"ops/slack", "ops/pager"}, Labels: map[string]string{"owner": "team-data", "severity": "critical"}, Openings: 1,
		},
		Task: &task.Task{Spec: task.Spec{Timezone: "Europe/Berlin", Description: "Runbook: https://wiki/sync\nmore", Alerts: &task.Alerts{Output: true}}},
		Run: &task.Run{State: task.Failed, ExitCode: &exit, Node: "n2", Attempt: 1, Message: "why",
			OutputSummary: task.OutputSummary{OutputTail: "dumping\n\x1b[31mpg_dump: error\x1b[0m: connection to server \"db1\" failed\r\n\n"}},
		LastSuccess: clockAt("00:04"),
		Next:        clockAt("03:00"),
	}
}

// closedSync is the same alert after a success.
func closedSync(c task.AlertClose) Item {
	item := syncTask()
	item.Alert.Closed = &c
	item.Run = nil
	return item
}

// message returns a message to ops/slack.
func message(clock string, change func(*Message)) *Message {
	m := &Message{Now: clockAt(clock).Time, Cluster: "c1", PublicURL: "https://carillon.example.com/", Receiver: "ops/slack", Output: true}
	change(m)
	return m
}

func TestMessage_TextOfOneAlert(t *testing.T) {
	for _, c := range []struct {
		name string
		m    *Message
		want string
	}{
		{
			name: "failed",
			m: message("02:01", func(m *Message) {
				m.Opened, m.Open = []Item{syncTask()}, map[string]int{"shop": 10, "web": 3}
				m.Silenced, m.SilencedBy, m.SilencedUntil = 2, "ann", clockAt("16:00").Time
			}),
			want: `
FAILED shop/sync: exit 1, 2 in a row, since Tue 24 Nov 01:00 +01:00 (as of 02:01)
> pg_dump: error: connection to server "db1" failed
Runbook: https://wiki/sync
owner team-data | run 20261124T010000.000Z-k3f9 on n2 | last success Tue 24 Nov 00:04
next: Tue 24 Nov 03:00 +01:00
https://carillon.example.com/ui/tasks/shop/sync
carillon why -n shop sync
also notified: ops/pager | 12 more open: shop 9, web 3 | 2 silenced by ann until 16:00`,
		},
		{
			name: "resolved",
			m: message("08:20", func(m *Message) {
				m.Closed = []Item{closedSync(task.AlertClose{At: clockAt("08:16"), Why: task.AlertSucceeded, Failures: 8})}
				m.Closed[0].Run = &task.Run{State: task.Succeeded, EndedAt: clockAt("08:15")}
			}),
			want: `
RESOLVED shop/sync: succeeded Tue 24 Nov 08:15 +01:00, failing for 7h 15m, 8 failures (as of 08:20)
https://carillon.example.com/ui/tasks/shop/sync
carillon why -n shop sync
also notified: ops/pager`,
		},
		{
			name: "deleted, the task cannot be read",
			m: message("08:20", func(m *Message) {
				m.Closed = []Item{closedSync(task.AlertClose{At: clockAt("08:16"), Why: task.AlertDeleted, By: task.NewActor("ann")})}
				m.Closed[0].Task, m.Closed[0].Alert.Notify, m.PublicURL = nil, nil, ""
			}),
			want: `
CLOSED shop/sync: task deleted by ann (as of 07:20 UTC)
carillon why -n shop sync`,
		},
		{
			name: "another receiver gets its messages now",
			m:    message("08:20", func(m *Message) { m.Closed, m.PublicURL = []Item{syncTask()}, "" }),
			want: `
CLOSED shop/sync: no longer for this receiver (as of 08:20)
carillon why -n shop sync
also notified: ops/pager`,
		},
		{
			name: "repeated, acknowledged before, paused",
			m: message("12:00", func(m *Message) {
				item := syncTask()
				item.Alert.Openings, item.Alert.Failures, item.Alert.Notify = 3, 1, nil
				item.Next, item.NextWords, item.Task.Description = task.Time{}, "paused after failures", ""
				item.Run.OutputTail = " \r\n"
				m.Repeated = []Item{item}
			}),
			want: `
STILL FAILED shop/sync: exit 1, since Tue 24 Nov 01:00 +01:00 (as of 12:00)
> why
owner team-data | run 20261124T010000.000Z-k3f9 on n2 | last success Tue 24 Nov 00:04 | opened 3 times
next: none, paused after failures
https://carillon.example.com/ui/tasks/shop/sync
carillon why -n shop sync`,
		},
		{
			name: "nothing was printed",
			m: message("12:00", func(m *Message) {
				item := syncTask()
				item.Alert.Notify, item.Task.Description = nil, ""
				item.Run.OutputTail, item.Run.Reason, item.Run.Message = "", task.ReasonExit, "exited with code 1"
				m.Opened = []Item{item}
			}),
			want: `
FAILED shop/sync: exit 1, 2 in a row, since Tue 24 Nov 01:00 +01:00 (as of 12:00)
owner team-data | run 20261124T010000.000Z-k3f9 on n2 | last success Tue 24 Nov 00:04
next: Tue 24 Nov 03:00 +01:00
https://carillon.example.com/ui/tasks/shop/sync
carillon why -n shop sync`,
		},
		{
			name: "no success within",
			m: message("12:00", func(m *Message) {
				m.PublicURL = ""
				m.Opened = []Item{{Alert: task.Alert{Namespace: "shop", Task: "sync", Kind: task.AlertSuccessWithin, Since: clockAt("11:59")},
					Task: &task.Task{Spec: task.Spec{Timezone: "UTC", Alerts: &task.Alerts{SuccessWithin: task.Duration(26 * time.Hour)}}}}}
			}),
			want: `
OVERDUE shop/sync: no success within 26h, since Tue 24 Nov 10:59 UTC (as of 11:00 UTC)
carillon why -n shop sync`,
		},
		{
			name: "no success by a deadline of another year, unknown zone",
			m: message("12:00", func(m *Message) {
				m.PublicURL = ""
				m.Opened = []Item{{Alert: task.Alert{Namespace: "shop", Task: "sync", Kind: task.AlertSuccessBy, Since: clockAt("06:00"), Deadline: task.At(clockAt("06:00").AddDate(-1, 0, 0))},
					Task: &task.Task{Spec: task.Spec{Timezone: "No/Zone"}}}}
			}),
			want: `
OVERDUE shop/sync: no success by Mon 24 Nov 2025 05:00 UTC (as of 11:00 UTC)
carillon why -n shop sync`,
		},
		{
			name: "a problem of the cluster",
			m: message("12:00", func(m *Message) {
				m.Opened = []Item{{Alert: task.Alert{Kind: task.AlertCluster, Code: "not_evaluated", Text: "12 tasks", Since: clockAt("11:00")}}}
				m.Open = map[string]int{"": 2}
			}),
			want: `
PROBLEM cluster/not_evaluated: 12 tasks, since Tue 24 Nov 10:00 UTC (as of 11:00 UTC)
https://carillon.example.com/ui/health
carillon cluster status
1 more open: cluster 1`,
		},
		{
			name: "alerts that are only counted",
			m: message("12:00", func(m *Message) {
				m.Opened = []Item{{Alert: task.Alert{Namespace: "shop", Kind: task.AlertMore, Receiver: "ops/slack", Since: clockAt("11:00"),
					More: map[task.AlertKind]int{task.AlertFailures: 100, task.AlertSuccessBy: 12}}}}
				m.Open = map[string]int{"shop": 162}
			}),
			want: `
MORE shop: 112 alerts without a name: 100 failures, 12 success_by (as of 11:00 UTC)
https://carillon.example.com/ui/alerts?ns=shop
carillon alert list -n shop
50 more open: shop 50`,
		},
		{
			name: "plain",
			m:    message("02:01", func(m *Message) { m.Opened, m.Plain = []Item{syncTask()}, true }),
			want: `
FAILED shop/sync (as of 02:01)
https://carillon.example.com/ui/tasks/shop/sync
carillon why -n shop sync
also notified: ops/pager`,
		},
		{
			name: "test",
			m:    message("02:01", func(m *Message) { m.Test, m.Open = true, map[string]int{"shop": 1} }),
			want: `
TEST ops/slack: this receiver gets messages (as of 01:01 UTC)
This is a test. No alert has caused it.
https://carillon.example.com/ui/alerts
1 more open: shop 1`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := c.m.Variables()
			if want := strings.TrimPrefix(c.want, "\n"); v[VarText] != want {
				t.Errorf("text\n%s\nwant\n%s", v[VarText], want)
			}

			if first, _, _ := strings.Cut(v[VarText], "\n"); first != v[VarTitle] {
				t.Errorf("title %q is not the first line", v[VarTitle])
			}
			checkMessage(t, v)
		})
	}
}

func TestMessage_TextOfSeveralAlerts(t *testing.T) {
	resolved := closedSync(task.AlertClose{At: clockAt("08:16"), Why: task.AlertSucceeded})
	resolved.Alert.Task = "load"
	m := message("08:20", func(m *Message) {
		other := syncTask()
		other.Alert.Namespace, other.Alert.Task, other.Task.Alerts = "web", "cache", nil
		m.Opened, m.Closed, m.Unnamed, m.Open = []Item{syncTask(), other}, []Item{resolved}, 2, map[string]int{"shop": 4, "web": 1, "": 1}
	})

	want := `2 FAILED, 1 RESOLVED, 2 CLOSED: shop/sync, web/cache, shop/load (as of 07:20 UTC)
FAILED shop/sync: exit 1, 2 in a row, since Tue 24 Nov 01:00 +01:00
  owner team-data | > pg_dump: error: connection to server "db1" failed
FAILED web/cache: exit 1, 2 in a row, since Tue 24 Nov 01:00 +01:00
  owner team-data | next: Tue 24 Nov 03:00 +01:00
RESOLVED shop/load: succeeded Tue 24 Nov 08:16 +01:00, failing for 7h 16m
  owner team-data
2 more closed
https://carillon.example.com/ui/alerts
carillon alert list -A
4 more open: shop 3, cluster 1`
	if got := m.Variables()[VarText]; got != want {
		t.Errorf("text\n%s\nwant\n%s", got, want)
	}
}

// The document of a closed alert names the failed run, and how the alert was closed. The state is not that of another run.
func TestMessage_DocumentOfAClosedAlert(t *testing.T) {
	m := message("08:20", func(m *Message) {
		m.Closed = []Item{closedSync(task.AlertClose{At: clockAt("08:16"), Why: task.AlertSucceeded, Run: "r2", By: task.NewActor("ann"), Failures: 8})}
		m.Closed[0].Run = &task.Run{State: task.Succeeded, EndedAt: clockAt("08:15"), Node: "n9", OutputSummary: task.OutputSummary{OutputTail: "done"}}
	})

	var d Document
	if err := json.Unmarshal([]byte(m.Variables()[VarJSON]), &d); err != nil || len(d.Closed) != 1 {
		t.Fatalf("%v: %+v", err, d)
	}
	if a := d.Closed[0]; a.Run != "20261124T010000.000Z-k3f9" || a.State != "" || a.Node != "" || a.Output != "" ||
		a.Closed.Run != "r2" || !a.Closed.By.Is("ann") || a.Closed.Failures != 8 || d.Action != ActionResolve {
		t.Errorf("%+v, closed %+v", a, a.Closed)
	}
}

// However much is open, the newest alerts of each namespace have names, and the others are counted.
func TestMessage_NamesTheNewestOfEachNamespace(t *testing.T) {
	m := message("08:20", func(m *Message) {
		for i := range 3000 {
			item := syncTask()
			item.Alert.ID, item.Alert.Task, item.Alert.Labels["severity"] = int64(i), fmt.Sprintf("task-%d", i), "info"
			if i >= 2500 {
				item.Alert.Namespace = "web"
			}
			m.Opened = append(m.Opened, item)
		}
		m.Closed = []Item{closedSync(task.AlertClose{At: clockAt("08:16"), Why: task.AlertSucceeded})}
		m.Open = map[string]int{"shop": 2500, "web": 600}
	})

	var names []string
	for _, item := range m.Named() {
		names = append(names, item.Alert.Task)
	}
	if want := []string{"task-0", "task-2500", "task-1", "task-2501"}; len(names) != MaxNamed || !slices.Equal(names[:4], want) {
		t.Errorf("named %q, want %d that begin with %q", names, MaxNamed, want)
	}

	v := m.Variables()
	checkMessage(t, v)
	if want := "3000 FAILED, 1 RESOLVED: shop/task-0, web/task-2500, "; !strings.HasPrefix(v[VarTitle], want) {
		t.Errorf("title %q, want %q", v[VarTitle], want)
	}
	for _, want := range []string{"\nFAILED web/task-2501: ", " more in this message: shop ", "\n100 more open: web 100"} {
		if !strings.Contains(v[VarText], want) {
			t.Errorf("the text does not contain %q:\n%s", want, v[VarText])
		}
	}
	if v[VarSeverity] != "info" || v[VarAction] != ActionTrigger {
		t.Errorf("severity %s, action %s", v[VarSeverity], v[VarAction])
	}

	var d Document
	if err := json.Unmarshal([]byte(v[VarJSON]), &d); err != nil || len(d.Opened) != MaxNamed || d.NotNamed != 2981 {
		t.Fatalf("%v: the document has %d alerts, and %d without names", err, len(d.Opened), d.NotNamed)
	}
	if d.Opened[5].Output == "" || d.Opened[MaxNamed-1].Output != "" {
		t.Errorf("the first alerts have no details, or all have: %d bytes", len(v[VarJSON]))
	}
}

func TestMessage_Variables(t *testing.T) {
	key := FormatKey(KeyOf("c1", &task.Alert{Namespace: "shop", Task: "sync", UID: "u1", Kind: task.AlertFailures}))
	receiver := FormatKey(KeyOf("c1", &task.Alert{Receiver: "ops/slack"}))
	unlabelled := syncTask()
	unlabelled.Alert.Labels = map[string]string{"severity": "fatal"}
	warning := syncTask()
	warning.Alert.Labels = map[string]string{"severity": "warning"}
	resolved := closedSync(task.AlertClose{At: clockAt("02:00"), Why: task.AlertSucceeded})

	for _, c := range []struct {
		name string
		m    *Message
		want map[string]string
	}{
		{"opened", message("02:01", func(m *Message) { m.Opened = []Item{syncTask()} }), map[string]string{
			VarTask: "shop/sync", VarKind: "failures", VarSince: "2026-11-24T00:00:00.000Z", VarURL: "https://carillon.example.com/ui/tasks/shop/sync",
			VarAction: ActionTrigger, VarKey: key, VarSeverity: "critical"}},
		{"closed, while others are open", message("02:01", func(m *Message) { m.Closed, m.Open = []Item{resolved}, map[string]int{"shop": 3} }), map[string]string{
			VarTask: "shop/sync", VarAction: ActionResolve, VarKey: key}},
		{"several", message("02:01", func(m *Message) { m.Opened = []Item{warning, unlabelled} }), map[string]string{
			VarTask: "", VarKind: "", VarSince: "", VarURL: "https://carillon.example.com/ui/alerts", VarAction: ActionTrigger, VarKey: receiver, VarSeverity: "error"}},
		{"several closed, nothing open", message("02:01", func(m *Message) { m.Closed = []Item{resolved, resolved} }), map[string]string{
			VarAction: ActionResolve, VarKey: receiver, VarSeverity: "critical"}},
		{"several closed, others open", message("02:01", func(m *Message) { m.Closed, m.Open = []Item{resolved, resolved}, map[string]int{"web": 1} }), map[string]string{
			VarAction: ActionTrigger}},
		{"warning", message("02:01", func(m *Message) { m.Repeated = []Item{warning} }), map[string]string{VarSeverity: "warning", VarAction: ActionTrigger}},
		{"test", message("02:01", func(m *Message) { m.Test, m.PublicURL = true, "" }), map[string]string{
			VarTask: "", VarURL: "", VarAction: ActionTrigger, VarSeverity: "error"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := c.m.Variables()
			for name, want := range c.want {
				if v[name] != want {
					t.Errorf("%s is %q, want %q", name, v[name], want)
				}
			}
			checkMessage(t, v)
		})
	}

	test := message("02:01", func(m *Message) { m.Test = true }).Variables()[VarKey]
	if test == receiver || test == key {
		t.Error("a test has the key of an incident")
	}
}

// A request whose template names a variable that its run does not have fails, so each variable is set.
func TestMessage_EnvHasAllThatTheReceiverAccepts(t *testing.T) {
	m := message("02:01", func(m *Message) { m.Opened = []Item{syncTask(), syncTask()} })

	env := m.Env([]string{VarTitle, VarTask, "DAY"})
	if task, set := env[VarTask]; len(env) != 3 || !set || task != "" || env["DAY"] != "" || !strings.HasPrefix(env[VarTitle], "2 FAILED") {
		t.Errorf("env %q", env)
	}
}

// The output of a run leaves its namespace only if its task allows it. It is in no message from a namespace that audits reads of output.
func TestMessage_OutputStaysInItsNamespace(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Message, *Item)
		want   bool
	}{
		{"the task allows it", func(*Message, *Item) {}, true},
		{"the task does not allow it", func(_ *Message, i *Item) { i.Task.Alerts.Output = false }, false},
		{"without alerts", func(_ *Message, i *Item) { i.Task.Alerts = nil }, false},
		{"the task is not known", func(_ *Message, i *Item) { i.Task = nil }, false},
		{"the same namespace", func(m *Message, i *Item) { i.Task, m.Receiver = nil, "shop/slack" }, true},
		{"a namespace with the same beginning", func(m *Message, i *Item) { i.Task, m.Receiver = nil, "shop-2/slack" }, false},
		{"reads are audited", func(m *Message, i *Item) { i.AuditReads = true }, false},
		{"the receiver refuses it", func(m *Message, i *Item) { m.Output = false }, false},
		{"plain", func(m *Message, i *Item) { m.Plain = true }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, list := range []int{1, 2} { // a text of one alert, and of several
				m := message("02:01", func(m *Message) {
					item := syncTask()
					item.Run.Message = "pg_dump"
					c.change(m, &item)
					m.Opened = slices.Repeat([]Item{item}, list)
				})

				for name, v := range m.Variables() {
					if name != VarText && name != VarJSON {
						continue
					}
					if got := strings.Contains(v, "pg_dump"); got != c.want {
						t.Errorf("%s of %d alerts contains the output: %v, want %v", name, list, got, c.want)
					}
				}
			}
		})
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"a\r\nb\rc\u2028d":                       "a\nb\nc\nd",
		"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x": "red x",
		"\x1b]0;never closed\nx":                 "\nx",
		"tab\there\u00a0nbsp":                    "tab here nbsp",
		"pay\u200b\u2060\ufeffload\u00ad":        "payload",
		"a\u202egnp.exe\u2066\u200f":             "agnp.exe",
		"x\U000E0041\u3164\u115f\ufe0f":          "x",
		"bad \xff\xfe utf8":                      "bad \ufffd\ufffd utf8",
		"naïve 日本 ✓ 🚀":                           "naïve 日本 ✓ 🚀",
		"nul\x00bell\x07del\x7fc1\u009b31m":      "nulbelldelc131m",
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}

	if got := OneLine(" Bcc\r\nx:  y\t"); got != "Bcc x: y" {
		t.Errorf("OneLine returned %q", got)
	}
}

// checkMessage fails unless the variables keep what every receiver relies on.
func checkMessage(t *testing.T, v map[string]string) {
	t.Helper()

	for _, name := range slices.Sorted(maps.Keys(v)) {
		text := v[name]
		if !utf8.ValidString(text) {
			t.Errorf("%s is not UTF-8: %q", name, text)
		}
		for _, r := range text {
			if r == '\n' && name == VarText {
				continue
			}
			if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Bidi_Control, unicode.Other_Default_Ignorable_Code_Point) {
				t.Errorf("%s contains %U: %q", name, r, text)
			}
		}
	}

	if n := utf8.RuneCountInString(v[VarTitle]); n > MaxTitle || n == 0 {
		t.Errorf("the title has %d characters: %q", n, v[VarTitle])
	}
	if !strings.HasPrefix(v[VarText]+"\n", v[VarTitle]+"\n") {
		t.Errorf("the text does not begin with the title %q:\n%s", v[VarTitle], v[VarText])
	}
	if len(v[VarText]) > MaxText {
		t.Errorf("the text has %d bytes", len(v[VarText]))
	}
	if len(v[VarJSON]) > MaxJSON || !json.Valid([]byte(v[VarJSON])) {
		t.Errorf("ALERT_JSON has %d bytes: %s", len(v[VarJSON]), v[VarJSON])
	}
	if !slices.Contains(task.AlertSeverities(), v[VarSeverity]) || v[VarAction] != ActionTrigger && v[VarAction] != ActionResolve || len(v[VarKey]) != 16 {
		t.Errorf("severity %q, action %q, key %q", v[VarSeverity], v[VarAction], v[VarKey])
	}
	if got, want := slices.Sorted(maps.Keys(v)), slices.Sorted(slices.Values(variableNames)); !slices.Equal(got, want) {
		t.Errorf("variables %q, want %q", got, want)
	}
}

// hostileTexts are what tasks may write to mislead people or to break a receiver.
var hostileTexts = []string{
	"", "ok", "\r\nBcc: all@example.com\r\n\r\nbody", "@everyone <!channel> <at user_id=\"all\">", "\x1b]8;;https://evil\x07click\x1b]8;;\x07",
	"RESOLVED shop/other: succeeded", "\u202etxt.exe\u202c", "a\u200bb\ufeff", strings.Repeat("é", 5000), strings.Repeat("\"\\", 3000), "\xff\xc0\x80",
	"${secret:slack/url}", "\"},\"x\":{\"", "$(reboot) `reboot`; reboot", strings.Repeat("\u2028", 500), strings.Repeat("x\n", 3000),
}

func TestMessage_HostileTextsAreHarmless(t *testing.T) {
	for _, hostile := range hostileTexts {
		for _, n := range []int{1, 30} {
			for name, m := range hostileMessages(hostile, n) {
				t.Run(fmt.Sprintf("%s, %d, %.20q", name, n, hostile), func(t *testing.T) { checkMessage(t, m.Variables()) })
			}
		}
	}
}

// hostileMessages returns messages about n alerts whose texts are all s.
func hostileMessages(s string, n int) map[string]*Message {
	item := syncTask()
	item.Alert.Task, item.Alert.Run, item.Alert.Text, item.Alert.Code = s, s, s, s
	item.Alert.Labels = map[string]string{"owner": s, "runbook": s, "severity": s}
	item.Alert.Notify = slices.Repeat([]string{s}, 10)
	item.Alert.Acknowledged = &task.AlertMark{By: &task.Actor{Subject: s, Token: s, Certificate: s}}
	item.Task.Description, item.NextWords, item.Next = s, s, task.Time{}
	item.Run.OutputTail, item.Run.Message, item.Run.Node, item.Run.Signal, item.Run.Reason, item.Run.ExitCode = s, s, s, s, s, nil

	gone := item
	gone.Alert.Closed = &task.AlertClose{Why: task.AlertReason(s), By: &task.Actor{Subject: s, Token: s, Certificate: s}, Run: s}
	problem := item
	problem.Alert.Kind = task.AlertCluster

	base := Message{Now: clockAt("02:01").Time, Cluster: s, PublicURL: "https://" + s, Receiver: "ops/" + s, Output: true,
		Open: map[string]int{s: 5, s + "2": 7}, Silenced: 1, SilencedBy: s, SilencedUntil: clockAt("03:00").Time}
	with := func(change func(*Message)) *Message {
		m := base
		change(&m)
		return &m
	}

	return map[string]*Message{
		"opened":   with(func(m *Message) { m.Opened = slices.Repeat([]Item{item}, n) }),
		"closed":   with(func(m *Message) { m.Closed = slices.Repeat([]Item{gone}, n) }),
		"problems": with(func(m *Message) { m.Repeated = slices.Repeat([]Item{problem}, n) }),
		"plain":    with(func(m *Message) { m.Opened, m.Plain = slices.Repeat([]Item{item}, n), true }),
		"test":     with(func(m *Message) { m.Test = true }),
	}
}

func TestMessage_Ends(t *testing.T) {
	resolved := closedSync(task.AlertClose{At: clockAt("02:00"), Why: task.AlertSucceeded})
	for _, c := range []struct {
		name, want string
		m          *Message
	}{
		{"opened", "2026-11-24T05:01:00.000Z", message("02:01", func(m *Message) { m.Opened, m.Repeat = []Item{syncTask()}, time.Hour })},
		{"never sent again", "", message("02:01", func(m *Message) { m.Opened, m.Repeat = []Item{syncTask()}, 0 })},
		{"closed", "2026-11-24T01:01:00.000Z", message("02:01", func(m *Message) { m.Closed, m.Repeat = []Item{resolved}, time.Hour })},
		{"closed, not sent again", "2026-11-24T01:01:00.000Z", message("02:01", func(m *Message) { m.Closed, m.Repeat = []Item{resolved}, 0 })},
		{"a test", "2026-11-24T01:06:00.000Z", message("02:01", func(m *Message) { m.Test, m.Repeat = true, time.Hour })},
	} {
		if got := c.m.Variables()[VarEnds]; got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}

	// 5,000 alerts, ten a minute, need more than eight hours.
	if got := RepeatOf(time.Hour, 5000); got < 500*time.Minute || RepeatOf(time.Hour, 100) != time.Hour || RepeatOf(0, 5000) != 0 {
		t.Errorf("5,000 alerts are sent again after %s", got)
	}
}

func TestMessage_Split(t *testing.T) {
	gone := uint64(0xabc)
	other := syncTask()
	other.Alert.Task = "web"
	m := message("02:01", func(m *Message) {
		m.Opened, m.Unnamed, m.Open = []Item{syncTask(), other}, 1, map[string]int{"shop": 9}
	})
	sync, web := KeyOf(m.Cluster, &m.Opened[0].Alert), KeyOf(m.Cluster, &m.Opened[1].Alert)

	list := m.Split(&task.AlertMessage{Closed: task.AlertKeys{gone}, Opened: sortedKeys([]uint64{sync, web})}, task.AlertKeys{web})
	if len(list) != 3 {
		t.Fatalf("%d messages", len(list))
	}
	if v := list[0].Variables(); v[VarKey] != "0000000000000abc" || v[VarAction] != ActionResolve || v[VarTask] != "" || !strings.HasPrefix(v[VarTitle], "1 CLOSED") {
		t.Errorf("an alert without a record: %q", v)
	}
	for _, one := range list[1:] {
		v := one.Variables()
		isWeb := v[VarKey] == FormatKey(web)
		if !isWeb && v[VarKey] != FormatKey(sync) || v[VarAction] != ActionTrigger || one.Plain != isWeb || v[VarTask] == "" {
			t.Errorf("plain %t: %q", one.Plain, v)
		}
	}
}

func FuzzMessage(f *testing.F) {
	for _, s := range hostileTexts {
		f.Add(s, uint8(1))
		f.Add(s, uint8(25))
	}

	f.Fuzz(func(t *testing.T, s string, n uint8) {
		for _, m := range hostileMessages(s, int(n%40)) {
			checkMessage(t, m.Variables())
		}
	})
}
