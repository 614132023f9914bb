package process

import (
	"fmt"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

func success(s task.Success) func(*task.Assigned) { return func(a *task.Assigned) { a.Success = s } }

// Verifies: G55
func TestSuccess_IsWhatTheTaskSays(t *testing.T) {
	l := newLauncher(t, spool.Config{})
	codes := func(codes ...int) task.Success { return task.Success{ExitCodes: codes} }
	for name, c := range map[string]struct {
		line    string
		success task.Success
		state   task.State
		reason  string
		message string // a part of the message; "-": none
	}{
		"a code that is success":       {"exit 3", codes(0, 3), task.Succeeded, "", "code 3, which is in success.exit_codes"},
		"0 among others":               {"exit 0", codes(0, 3), task.Succeeded, "", "-"},
		"another code":                 {"exit 4", codes(0, 3), task.Failed, task.ReasonExit, "code 4, which is not in success.exit_codes"},
		"0 is not success":             {"exit 0", codes(3), task.Failed, task.ReasonExit, "code 0, which is not in success.exit_codes"},
		"a signal never is":            {"kill -9 $$", codes(0, 137, 9), task.Failed, task.ReasonSignal, "SIGKILL"},
		"output":                       {"echo a; echo all is done; echo b", task.Success{Output: "is done$"}, task.Succeeded, "", "-"},
		"output, not there":            {"echo done and gone", task.Success{Output: "done$"}, task.Failed, task.ReasonOutput, "no line of its output matches success.output, done$"},
		"no output":                    {":", task.Success{Output: "."}, task.Failed, task.ReasonOutput, "no line"},
		"output on stderr":             {"echo done >&2", task.Success{Output: "^done$"}, task.Succeeded, "", "-"},
		"a last line without an end":   {"printf 'a\ndone'", task.Success{Output: "^done$"}, task.Succeeded, "", "-"},
		"lines of another world":       {`printf 'done\r\n'`, task.Success{Output: "^done$"}, task.Succeeded, "", "-"},
		"not across lines":             {"echo a; echo b", task.Success{Output: `a\sb`}, task.Failed, task.ReasonOutput, "no line"},
		"an empty line":                {"echo; echo x", task.Success{Output: "^$"}, task.Succeeded, "", "-"},
		"no empty line":                {"echo x", task.Success{Output: "^$"}, task.Failed, task.ReasonOutput, "no line"},
		"forbidden":                    {"echo ok; echo 'ERROR: disk full'; echo more", task.Success{NotOutput: "(?i)error"}, task.Failed, task.ReasonOutput, "success.not_output forbids: ERROR: disk full"},
		"forbidden, not there":         {"echo ok", task.Success{NotOutput: "(?i)error"}, task.Succeeded, "", "-"},
		"larger than may be set now":   {"echo ok", task.Success{NotOutput: ".{1000}.{1000}"}, task.Succeeded, "", "-"}, // an earlier version accepted it
		"both, and forbidden wins":     {"echo done; echo error", task.Success{Output: "done", NotOutput: "error"}, task.Failed, task.ReasonOutput, "forbids: error"},
		"the code comes first":         {"echo error; exit 2", task.Success{NotOutput: "error"}, task.Failed, task.ReasonExit, "exited with code 2"},
		"written in pieces":            {"printf do; sleep 0.05; printf 'ne\n'", task.Success{Output: "^done$"}, task.Succeeded, "", "-"},
		"made to end: that counts":     {"echo done; sleep 60", task.Success{Output: "done"}, task.TimedOut, task.ReasonTimeout, "longer than"},
		"bytes that are no UTF-8":      {`printf '\377\376 done\000\n'`, task.Success{Output: `done`}, task.Succeeded, "", "-"},
		"an escape in what is refused": {`printf '\033[31merror\n'`, task.Success{NotOutput: "error"}, task.Failed, task.ReasonOutput, "error"},
	} {
		t.Run(name, func(t *testing.T) {
			change := both(shell(c.line), success(c.success))
			if c.state == task.TimedOut {
				change = both(change, timeout(200_000_000))
			}

			r := l.attempt(t, change)
			if r.State != c.state || r.Reason != c.reason || c.message == "-" && r.Message != "" || c.message != "-" && !strings.Contains(r.Message, c.message) {
				t.Errorf("got %s, %q, %q; want %s, %q, %q", r.State, r.Reason, r.Message, c.state, c.reason, c.message)
			}
		})
	}
}

func TestSuccess_LooksAtOutputOnlyForPatterns(t *testing.T) {
	if newRuleOf(t, task.Success{}).needsOutput() || newRuleOf(t, task.Success{ExitCodes: []int{1}}).needsOutput() {
		t.Error("what has no pattern looks at output")
	}
}

func newRuleOf(t *testing.T, s task.Success) *successRule {
	r, err := newSuccessRule(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestProcess_IsAskedToEndByItsOwnSignal(t *testing.T) {
	for name, code := range map[string]int{"SIGINT": 2, "SIGUSR2": 12, "": 15, "SIGHUP": 1, "SIGUNHEARD": 15} {
		line := ""
		for _, s := range []struct{ name, n string }{{"INT", "2"}, {"USR2", "12"}, {"TERM", "15"}, {"HUP", "1"}} {
			line += fmt.Sprintf("trap 'exit %s' %s; ", s.n, s.name)
		}

		line += "echo ready; while :; do sleep 0.01; done"
		l := newLauncher(t, spool.Config{})

		r := l.attempt(t, both(shell(line), func(a *task.Assigned) { a.KillSignal = name }), Kill{CauseCancel, 60_000_000_000})
		if r.ExitCode == nil || *r.ExitCode != code {
			t.Errorf("%q: %+v", name, r)
		}
	}

	l := newLauncher(t, spool.Config{})
	if r := l.attempt(t, both(shell("trap '' TERM; exec sleep 300"), func(a *task.Assigned) { a.KillSignal = "SIGKILL" }), Kill{CauseCancel, 3600_000_000_000}); r.Signal != "SIGKILL" {
		t.Errorf("SIGKILL: %+v", r)
	}
}
