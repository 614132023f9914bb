package top

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

var update = flag.Bool("update", false, "write the golden screens anew")

// noon is the time of all tests.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) task.Time { return task.At(noon.Add(-d)) }
func in(d time.Duration) task.Time  { return task.At(noon.Add(d)) }

// busy is a board that contains everything.
func busy() task.Board {
	code := 69
	b := task.Board{
		At: task.At(noon), Node: "n1", Version: "v1.2.3", Cluster: "nordpol", Leader: "n1", Span: task.Duration(10 * time.Minute),
		WarningDetails: []task.Warning{{Code: task.WarnEtcdMember, Text: "etcd has used 81 % of its quota"},
			{Code: task.WarnNodeIneligible, Text: "node n2 owns no shards: its clock jumped, or differs from that of other nodes"}},
		Freezes: []task.Freeze{{Namespace: "billing", Since: ago(2 * time.Hour), By: &task.Actor{Subject: "ann", Token: "k3vq7t2m5xw4hzra"}, Reason: "INC-42: the ledger is wrong"}},
		Silent:  []task.Silence{{Node: "n3", Reason: "no answer from 10.0.0.3:7070 within 1s"}}, ShardCount: 256, ShardsOwned: 250,
		BoardCounts: task.BoardCounts{Serving: 170, Tasks: 100_012, Paused: 51, FailingCount: 14, OverdueCount: 2, ActiveCount: 231, AwayCount: 1, WaitingCount: 9, Waiting: map[string]int{
			task.ReasonNoNode: 2, task.ReasonRetry: 7}},
	}
	b.Stuck = []task.BoardShard{{ID: 17, Node: "n2", Since: ago(12 * time.Second)}, {ID: 18, Node: "n2", Since: ago(9 * time.Second), Loading: true}}
	b.Overdue = []task.BoardTick{{Namespace: "default", Task: "nightly-backup", Time: ago(12 * time.Second)}, {Namespace: "billing", Task: "invoice", Time: ago(4 * time.Second)}}
	b.Away = []task.BoardRun{{Namespace: "default", Task: "etl-orders", Run: "20261121T115500.000Z-aaaa", Node: "n4", Since: ago(5 * time.Minute)}}
	b.Waits = []task.BoardWait{{Namespace: "default", Task: "train", Run: "20261121T115600.000Z-bbbb", Reason: task.ReasonNoNode, Since: ago(4 * time.Minute)}}
	b.Failing = []task.BoardFailing{
		{Namespace: "default", Task: "report", Run: "20261121T115900.000Z-cccc", State: task.Failed, Reason: task.ReasonExit, ExitCode: &code, Node: "n2", EndedAt: ago(40 * time.Second), InARow: 8},
		{Namespace: "default", Task: "a-task-with-a-name-that-is-much-longer-than-any-column-of-a-terminal", Run: "20261121T115800.000Z-dddd", State: task.TimedOut,
			Reason: task.ReasonTimeout, Node: "n1", EndedAt: ago(time.Hour), InARow: 1},
		{Namespace: "ops", Task: "probe", Run: "20261121T115700.000Z-eeee", State: task.Lost, Reason: task.ReasonNodeLost, Node: "n4", EndedAt: ago(50 * time.Hour), InARow: 2},
	}
	b.AlertingCount, b.Alerts = 1, map[string]int{"critical": 1, "error": 3}
	b.Alerting = []task.BoardAlerting{{Namespace: "default", Task: "sync", Kinds: []task.AlertKind{task.AlertSuccessWithin}, Severity: "critical", LastSuccess: ago(27 * time.Hour)}}
	for i := range Listed {
		b.Next = append(b.Next, task.BoardTick{Namespace: "default", Task: fmt.Sprintf("sync-%03d", i), Time: in(time.Duration(i) * time.Second)})
	}

	for i := range 30 {
		b.Active = append(b.Active, task.BoardRun{Namespace: "default", Task: fmt.Sprintf("import-%d", i), Run: fmt.Sprintf("20261121T1130%02d.000Z-ffff", i), Node: "n1",
			Since: ago(time.Hour - time.Duration(i)*time.Minute), Ending: i == 1, Paused: i == 2})
	}

	rate := []int64{10, 20, 30, 40, 80, 120, 160, 80, 40, 20, 10, 0}
	b.Recent = task.Recent{Fired: 610, Skipped: 12, Succeeded: 590, Failed: 3, P50MS: 2, P99MS: 38, MaxMS: 1420, Rate: rate}
	both := []string{task.RoleScheduler, task.RoleExecutor}
	node := task.BoardNode{Address: "http://10.0.0.1:7070", Version: "v1.2.3", State: task.NodeReady, Roles: both, Slots: 64, JoinedAt: ago(76 * time.Hour)}

	for i := range 5 {
		n := node
		n.Name, n.Address = fmt.Sprintf("n%d", i+1), fmt.Sprintf("http://10.0.0.%d:7070", i+1)
		n.Running, n.Shards, n.Serving, n.Recent = 12*i, 86, 86, task.Recent{Fired: int64(200 * i), P99MS: int64(30 + i), Rate: rate}

		switch i {
		case 1:
			n.Ineligible, n.Serving = task.IneligibleClock, 84
		case 2:
			n.Silent, n.Serving, n.Recent = true, 0, task.Recent{}
		case 3:
			n.State = task.NodeDraining
		case 4:
			n.Roles, n.Shards, n.Recent = both[1:], 0, task.Recent{}
		}

		b.Nodes = append(b.Nodes, n)
	}

	return b
}

// screen is a Model that has received a board, at a size.
func screen(cfg Config, wide, high int, b task.Board) *Model {
	m := New(cfg)
	m.Update(Clock(noon))
	m.Update(Size{wide, high})
	m.Update(BoardUpdate{Board: b, Server: "http://10.0.0.1:7070"})

	return m
}

func press(m *Model, keys ...string) (all []Command) {
	for _, k := range keys {
		all = append(all, m.Update(Key(k))...)
	}
	return all
}

// golden compares a screen with a file.
func golden(t *testing.T, name string, p Picture) {
	t.Helper()
	got := p.Text()
	file := filepath.Join("testdata", name+".txt")

	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	if got != string(want) {
		t.Errorf("%s has changed. If the new screen is correct, run: go test ./pkg/internal/top -update\n%s", file, got)
	}
}

func TestScreen(t *testing.T) {
	cfg := Config{Namespace: "default"}
	quiet := busy()
	quiet.Silent, quiet.WarningDetails, quiet.Freezes, quiet.BoardLists, quiet.Nodes = nil, nil, nil, task.BoardLists{}, quiet.Nodes[:1]
	quiet.BoardCounts, quiet.ShardsOwned, quiet.Recent = task.BoardCounts{Serving: 256, Tasks: 1}, 256, task.Recent{}
	golden(t, "busy-80", screen(cfg, 80, 24, busy()).View())
	golden(t, "busy-200", screen(cfg, 200, 50, busy()).View())
	golden(t, "busy-40", screen(cfg, 40, 12, busy()).View())
	golden(t, "busy-100-ascii", screen(Config{Namespace: "default", ASCII: true}, 100, 40, busy()).View())
	golden(t, "quiet-80", screen(cfg, 80, 24, quiet).View())
	golden(t, "once", New(cfg).Once(BoardUpdate{Board: busy()}, 0))

	m := screen(cfg, 80, 24, busy())
	press(m, "tab", "tab", "j", "j")
	golden(t, "running-80", m.View())
	press(m, "/", "5", "enter")
	golden(t, "filter-80", m.View())
	press(m, "?")
	golden(t, "help-80", m.View())
}

// problemsOf returns the rows of problems of a kind.
func problemsOf(b task.Board, kind string) (list []string) {
	for _, r := range screen(Config{Namespace: "default"}, 200, 50, b).problemRows() {
		if r.cells[1] == kind {
			list = append(list, strings.Join(r.cells, "|"))
		}
	}
	return list
}

func TestScreen_NamesMissingShards(t *testing.T) {
	b := busy() // six shards have no owner
	b.Missing = []int{1, 2, 3, 4, 5, 6}
	if rows := problemsOf(b, "missing"); len(rows) > 0 {
		t.Errorf("shards without an owner are there twice: %q", rows)
	}

	b.Missing = []int{1, 2, 3, 4, 5, 6, 17, 18, 40, 41, 42, 43}
	want := []string{"!|missing|cluster||12 of 256 shards have not answered (1, 2, 3, 4, 5, 6, 17, 18, 40, 41 and 2 more): their tasks are neither counted nor listed"}
	if rows := problemsOf(b, "missing"); !slices.Equal(rows, want) {
		t.Errorf("the missing shards are not named: %q", rows)
	}
}

// A node that is blocked is among the problems once, although a warning tells the same, and its row says so.
func TestScreen_OfANodeThatIsBlocked(t *testing.T) {
	for fact, words := range map[string]string{
		task.FactDiskFree: "accepts no runs: over its own limit of disk_free", task.BlockedByPolicy: "accepts no runs: its policy cannot be read; see its log",
	} {
		b := busy()
		b.Nodes = b.Nodes[:1]
		b.Nodes[0].Blocked = []string{fact}
		b.WarningDetails = []task.Warning{{Code: task.WarnNodeBlocked, Text: "node n1 accepts no runs: " + task.DescribeBlocked(b.Nodes[0].Blocked)}}

		if rows, want := problemsOf(b, "blocked"), []string{"!|blocked|n1||" + words}; !slices.Equal(rows, want) {
			t.Errorf("the problems are %q, want %q", rows, want)
		}
		text := screen(Config{Namespace: "default"}, 160, 50, b).View().Text()
		if strings.Count(text, "accepts no runs") != 1 || !strings.Contains(text, "n1 *  blocked") {
			t.Errorf("the node must be among the problems once, and in its row:\n%s", text)
		}
	}
}

// Runs that wait for their targets are problems. Ticks that wait because of them are only counted.
func TestScreen_OfTargetsThatAreDown(t *testing.T) {
	b := busy()
	unsent := &task.Unsent{Count: 7, First: ago(110 * time.Second), Message: "connection refused"}
	b.Waits = []task.BoardWait{
		{Namespace: "default", Task: "orders", Run: "20261121T115600.000Z-cccc", Reason: task.ReasonTarget, Since: ago(4 * time.Minute), NotBefore: in(12 * time.Second), Unsent: unsent},
		{Namespace: "default", Task: "orders", Run: "20261121T115700.000Z-cccc", Reason: task.ReasonTarget, Since: ago(3 * time.Minute)},
	}

	if rows, want := problemsOf(b, "target down"), []string{"…|target down|orders|1m 50s|connection refused, 7 attempts, the next at 12:00:12"}; !slices.Equal(rows, want) {
		t.Errorf("the problems are %q, want %q", rows, want)
	}
}

func TestScreen_OfATask(t *testing.T) {
	m := screen(Config{Namespace: "default"}, 80, 24, busy())
	press(m, "/", "r", "e", "p", "o", "r", "t", "enter")

	about := Target{Namespace: "default", Task: "report", Run: "20261121T115900.000Z-cccc"}
	if got := press(m, "enter"); len(got) != 1 || got[0] != (ReadTask{about}) {
		t.Fatalf("enter asks for %+v", got)
	}

	code, late := 69, int64(12)
	told := TaskDetails{About: about, Task: client.Task{Next: in(time.Hour)}, Why: task.Answer{Sentence: "The tick of Sat 21 Nov 2026 11:59 UTC ran on n2 and failed with exit code 69."}}
	told.Task.Schedule, told.Task.Timezone, told.Task.Action = task.Schedules{"0 9 * * MON-FRI"}, "Europe/Berlin", task.Action{Process: &task.Process{Command: []string{"report", "--all"}}}
	told.Task.Description = "Sends the numbers of the day to everybody who wants to have them, and to some who do not"
	for i := range 20 {
		told.Runs = append(told.Runs, task.Run{ScheduledTime: ago(time.Duration(i) * 24 * time.Hour), State: task.Failed, Reason: task.ReasonExit, ExitCode: &code, LatenessMS: &late,
			StartedAt: ago(time.Minute), EndedAt: ago(30 * time.Second), Node: "n2", Message: "exited with code 69"})
	}

	m.Update(told)
	golden(t, "details-80", m.View())
	press(m, "G")
	golden(t, "details-end-80", m.View())

	if got := press(m, "w"); len(got) != 1 || got[0] != (AskWhy{about}) {
		t.Errorf("w asks for %+v", got)
	}

	m.Update(RunExplanation{About: about, Why: task.Answer{Sentence: told.Why.Sentence, Lines: []task.EvidenceLine{{What: "Schedule", Says: "0 9 * * MON-FRI in Europe/Berlin"}}}})
	golden(t, "why-80", m.View())

	if got := press(m, "l"); len(got) != 1 || got[0] != (FollowLogs{about}) {
		t.Errorf("l asks for %+v", got)
	}

	run := task.Run{ID: about.Run, State: task.Running, Node: "n2"}
	m.Update(RunOutput{About: about, Run: run, Text: "first line\npart of"})
	m.Update(RunOutput{About: about, Run: run, Text: " a line\n\x1b[31mred\a\n" + strings.Repeat("long ", 40) + "\n"})
	golden(t, "logs-80", m.View())

	for i := range 100 {
		m.Update(RunOutput{About: about, Run: run, Text: fmt.Sprintln("line", i)})
	}

	if text := m.View().Text(); !strings.Contains(text, "line 99") {
		t.Errorf("it does not follow:\n%s", text)
	}

	press(m, "g")
	m.Update(RunOutput{About: about, Run: run, Text: "more\n"})

	if text := m.View().Text(); !strings.Contains(text, "first line\n part of a line") {
		t.Errorf("it does not stay:\n%s", text)
	}

	if got := press(m, "esc"); len(got) != 1 || got[0] != (StopLogs{}) || m.view == nil || m.view.kind != viewDetails {
		t.Errorf("esc: %+v, %+v", got, m.view)
	}

	press(m, "esc")

	if m.view != nil {
		t.Error("esc does not go back to the panes")
	}
}

// A lists the open alerts, the most severe first. Keys apply to the task under the cursor.
func TestScreen_OfAlerts(t *testing.T) {
	m := screen(Config{Namespace: "default"}, 80, 24, busy())
	if got := press(m, "A"); len(got) != 1 || got[0] != (ReadAlerts{}) {
		t.Fatalf("A asks for %+v", got)
	}

	alert := func(ns, name string, kind task.AlertKind, severity string, receivers ...task.AlertReceiver) task.AlertStatus {
		a := task.AlertStatus{Alert: task.Alert{Namespace: ns, Task: name, Kind: kind, Since: ago(time.Hour), Failures: 2}, Severity: severity, Receivers: receivers}
		a.Name = a.Alert.Name()
		return a
	}
	list := []task.AlertStatus{
		alert("ops", "probe", task.AlertFailures, "error", task.AlertReceiver{Receiver: "ops/slack", State: task.ReceiverWaiting, Blocked: &task.AlertBlock{Why: task.BlockMissing}}),
		alert("default", "sync", task.AlertSuccessWithin, "critical", task.AlertReceiver{Receiver: "ops/slack", State: task.ReceiverNotified}),
		{Alert: task.Alert{Kind: task.AlertCluster, Code: "receivers", Since: ago(time.Minute), Text: "a receiver \x1b[31m gets no messages"}, Name: "cluster:receivers", Severity: "error"},
	}
	list[0].Acknowledged, list[0].Silence = &task.AlertMark{At: ago(time.Minute), By: &task.Actor{Subject: "user:ann", Token: "x"}}, &task.AlertSilence{Until: in(time.Hour)}
	m.Update(AlertList{Alerts: list})
	golden(t, "alerts-80", m.View())

	about := Target{Namespace: "default", Task: "sync"}
	if got := press(m, "a", "n", "a", "y"); len(got) != 1 || got[0] != (Acknowledge{about}) {
		t.Errorf("a and y: %+v", got)
	}
	if got := press(m, "j", "a", "j"); len(got) != 0 || m.ask != nil {
		t.Errorf("an alert about the cluster has no task: %+v", got)
	}
	if got := press(m, "g", "enter"); len(got) != 1 || got[0] != (ReadTask{about}) {
		t.Errorf("enter: %+v", got)
	}
	press(m, "esc")
	if m.view == nil || m.view.kind != alertList {
		t.Error("esc does not go back to the alerts")
	}

	m.Update(Clock(noon.Add(3 * time.Second)))
	m.Update(AlertList{Err: errors.New("connection refused")})
	if text := m.View().Text(); !strings.Contains(text, "connection refused") || !strings.Contains(text, "default/sync") && !strings.Contains(text, "sync:success_within") {
		t.Errorf("with an error:\n%s", text)
	}
	m.Update(AlertList{})
	if text := m.View().Text(); !strings.Contains(text, "no open alerts") {
		t.Errorf("without alerts:\n%s", text)
	}
	press(m, "esc")
	if m.view != nil {
		t.Error("esc does not go back to the panes")
	}
}

func TestModel_ChangesNothingWithoutAYes(t *testing.T) {
	m := screen(Config{Namespace: "default"}, 80, 24, busy())
	press(m, "/", "r", "e", "p", "o", "r", "t", "enter")
	about := Target{Namespace: "default", Task: "report", Run: "20261121T115900.000Z-cccc"}

	if got := press(m, "t", "n", "t", "esc", "t", "enter"); len(got) != 0 {
		t.Errorf("without a yes: %+v", got)
	}

	if got := press(m, "t", "y"); len(got) != 1 || got[0] != (Trigger{about}) {
		t.Errorf("trigger: %+v", got)
	}

	for _, paused := range []bool{false, true} {
		want := Command(Pause{about})
		if paused {
			want = Resume{about}
		}

		if got := press(m, "p", "y"); len(got) != 1 || got[0] != (ReadTask{about}) {
			t.Errorf("before it is known whether the task is paused: %+v", got)
		}

		told := TaskDetails{About: about}
		told.Task.Paused = paused
		m.Update(told)

		if got := press(m, "y"); len(got) != 1 || got[0] != want {
			t.Errorf("paused %t: %+v", paused, got)
		}
	}

	if got := m.Update(ActionResult{Words: "could not pause report", Err: errors.New("conflict")}); len(got) != 1 || got[0] != (Refresh{}) {
		t.Errorf("after a change: %+v", got)
	}

	if text := m.View().Text(); !strings.Contains(text, "could not pause report: conflict") {
		t.Errorf("the result is not shown:\n%s", text)
	}
}

func TestModel_KeepsTheLastPictureWhileTheServerIsAway(t *testing.T) {
	m := New(Config{})
	m.Update(Clock(noon))
	m.Update(BoardUpdate{Err: errors.New("cannot reach it"), Server: "http://a"})

	if text := m.View().Text(); !strings.Contains(text, "cannot reach it") {
		t.Errorf("before the first board:\n%s", text)
	}

	m = screen(Config{Namespace: "default"}, 80, 24, busy())
	m.Update(Clock(noon.Add(time.Second)))
	m.Update(BoardUpdate{Err: errors.New("cannot reach http://10.0.0.1:7070"), Server: "http://a"})
	m.Update(Clock(noon.Add(31 * time.Second)))
	golden(t, "away-80", m.View())
	m.Update(BoardUpdate{Board: busy(), Server: "http://b"})

	if text := m.View().Text(); strings.Contains(text, "this is how it was") {
		t.Errorf("it is back:\n%s", text)
	}
}

func TestModel_MissesNodesThatLeft(t *testing.T) {
	m := screen(Config{}, 120, 40, busy())
	b := busy()
	b.Nodes = b.Nodes[:3]
	m.Update(Clock(noon.Add(time.Second)))
	m.Update(BoardUpdate{Board: b})
	m.Update(Clock(noon.Add(13 * time.Second)))

	if text := m.View().Text(); strings.Count(text, " left 12s ago ") != 2 {
		t.Errorf("nodes left:\n%s", text)
	}

	m.Update(BoardUpdate{Board: busy()})

	if text := m.View().Text(); strings.Contains(text, " left ") {
		t.Errorf("they are back:\n%s", text)
	}

	// After some time, they are forgotten.
	m.Update(BoardUpdate{Board: b})
	m.Update(Clock(noon.Add(11 * time.Minute)))

	if text := m.View().Text(); strings.Contains(text, " left ") {
		t.Errorf("they left long ago:\n%s", text)
	}
}

func TestModel_TheCursorStaysOnItsRow(t *testing.T) {
	m := screen(Config{Namespace: "default"}, 80, 40, busy())
	press(m, "2", "j", "j", "j")

	if got := m.selectedTarget().Task; got != "sync-003" {
		t.Fatalf("it is on %s", got)
	}

	b := busy()
	b.Next = b.Next[2:]
	m.Update(BoardUpdate{Board: b})

	if got := m.selectedTarget().Task; got != "sync-003" {
		t.Errorf("it went to %s", got)
	}

	press(m, "g")
	b.Next = b.Next[1:]
	m.Update(BoardUpdate{Board: b})

	if got := m.selectedTarget().Task; got != b.Next[0].Task {
		t.Errorf("at the top it went to %s", got)
	}

	b.Next = nil
	m.Update(BoardUpdate{Board: b})

	if got := press(m, "enter", "t", "p", "l", "w"); len(got) != 0 {
		t.Errorf("on nothing: %+v", got)
	}
}

// The cluster can have several warnings, and a task several waiting runs. The cursor stays on its row among them, and enter
// says what to do about a row that is neither a task nor a node.
func TestModel_TheCursorStaysAmongProblemsOfOneSubject(t *testing.T) {
	b := busy()
	b.WarningDetails = []task.Warning{{Text: "first"}, {Text: "second"}}
	b.Waits = append(b.Waits, b.Waits[0])
	b.Waits[1].Run = "20261121T115700.000Z-gggg"
	m := screen(Config{Namespace: "default"}, 120, 50, b)

	for i, r := range m.panes[paneProblems].rows {
		press(m, "g")
		for range i {
			press(m, "j")
		}
		m.Update(BoardUpdate{Board: b})
		if got := m.panes[paneProblems].selectedRow(); !slices.Equal(got.cells, r.cells) || got.target != r.target {
			t.Errorf("from %q it went to %q", r.cells, got.cells)
		}
	}

	press(m, "/", "o", "w", "n", "e", "r", "enter", "enter")
	if text := m.View().Text(); !strings.Contains(text, "carillon node list") {
		t.Errorf("it does not say what to do about shards without an owner:\n%s", text)
	}
}

// At any size and after any key, as many lines are drawn as the screen has, and none is too wide.
func TestModel_FitsEverySize(t *testing.T) {
	keys := []string{"tab", "j", "G", "enter", "w", "l", "esc", "?", "x", "/", "z", "backspace", "esc", "t", "n", "p", "backtab", "pgdn", "g", "4", "enter", "esc", "f", "right"}

	for _, wide := range []int{1, 2, 12, 40, 50, 80, 139, 140, 200} {
		for _, high := range []int{1, 2, 4, 12, 18, 50} {
			for _, ascii := range []bool{false, true}[:1+high%4/2] {
				m := New(Config{ASCII: ascii})
				m.Update(Size{wide, high})
				check := func(when string) {
					t.Helper()
					p := m.View()
					if len(p) != high {
						t.Fatalf("%d×%d %s: %d lines", wide, high, when, len(p))
					}

					for _, l := range p {
						if w := l.displayWidth(); w != wide {
							t.Fatalf("%d×%d %s: a line of %d columns: %q", wide, high, when, w, l.plainText())
						}

						for _, r := range l.plainText() {
							if ascii && r > '~' {
								t.Fatalf("%s: %q is not ASCII in %q", when, r, l.plainText())
							}
						}
					}
				}

				check("at first")
				m.Update(Clock(noon))
				m.Update(BoardUpdate{Board: busy()})
				check("with a board")

				for _, k := range keys {
					press(m, k)
					check("after " + k)

					if v := m.view; v != nil {
						m.Update(TaskDetails{About: v.about, Runs: []task.Run{{State: task.Succeeded}}})
						m.Update(RunExplanation{About: v.about, Why: task.Answer{Sentence: "It ran – at once."}})
						m.Update(RunOutput{About: v.about, Text: "wide: 漢字漢字漢字\n"})

						if !ascii {
							check("answered after " + k)
						}
					}
				}

				m.Update(BoardUpdate{Err: errors.New("away")})
				check("away")
			}
		}
	}
}

func TestPicture_HasColoursOnlyWhereTheyAreWanted(t *testing.T) {
	p := screen(Config{Namespace: "default"}, 80, 24, busy()).View()
	if strings.Contains(p.Text(), "\x1b") || !strings.Contains(p.ANSI(), "\x1b[31m") {
		t.Error("the text has codes, or the other has none")
	}

	if got := (Picture{{{"a", Red | Bold}, {" ", Red}, {"b", Plain}}}).ANSI(); got != "\x1b[1;31ma\x1b[0m b\n" {
		t.Errorf("%q", got)
	}
}
