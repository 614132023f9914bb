package factory_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestReport_ChoosesTheExitCode(t *testing.T) {
	cases := []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), failure.ExitFailure},
		{failure.Usage("x"), failure.ExitUsage},
		{task.Invalid(task.CodeBadName, "name", "x"), failure.ExitUsage},
		{fmt.Errorf("within: %w", task.Invalid(task.CodeBadName, "name", "x")), failure.ExitUsage},
		{&manifest.Error{File: "f", Line: 1, Column: 1, Err: task.Invalid(task.CodeBadName, "name", "x")}, failure.ExitUsage},
		{&manifest.Error{File: "f", Line: 1, Column: 1, Err: remote(422, task.CodeBadSchedule)}, failure.ExitUsage},
		{&manifest.Error{File: "f", Line: 1, Column: 1, Err: remote(503, client.CodeUnavailable)}, failure.ExitUnavailable},
		{remote(400, client.CodeBadParameter), failure.ExitUsage},
		{remote(401, client.CodeUnauthorized), failure.ExitAuth},
		{remote(403, client.CodeForbidden), failure.ExitAuth},
		{remote(404, client.CodeNotFound), failure.ExitNotFound},
		{remote(409, client.CodeExists), failure.ExitConflict},
		{remote(409, client.CodeAmbiguous), failure.ExitConflict},
		{remote(412, client.CodeStale), failure.ExitConflict},
		{remote(422, task.CodeBadSchedule), failure.ExitUsage},
		{remote(500, client.CodeInternal), failure.ExitFailure},
		{remote(503, client.CodeUnavailable), failure.ExitUnavailable},
		{remote(504, client.CodeUnknown), failure.ExitUnavailable},
		{remote(507, client.CodeNoSpace), failure.ExitUnavailable},
		{remote(0, client.CodeUnavailable), failure.ExitUnavailable},
		{context.DeadlineExceeded, failure.ExitUnavailable},
		{failure.Interrupted(context.Canceled), failure.ExitInterrupted},
		{exitCode(77), 77},
	}
	for _, c := range cases {
		d := factorytest.New("")
		if got := d.Report(c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}

		if c.err != nil && !strings.HasPrefix(d.Errs.String(), "error: ") {
			t.Errorf("%v: reported as %q", c.err, d.Errs.String())
		}

		if d.Out.Len() > 0 {
			t.Errorf("%v: %q on the standard output", c.err, d.Out.String())
		}
	}
}

type exitCode int

func TestReport_IsOneJSONObject(t *testing.T) {
	for _, args := range [][]string{{"x", "-o", "json"}, {"x", "-ojson"}, {"-o=jsonl", "x"}, {"--output=json"}, {"--output", "json", "--", "-o", "table"}} {
		d := factorytest.New("")
		d.Words = args
		d.Report(&manifest.Error{File: "f.yaml", Line: 3, Column: 5, Err: task.Invalid(task.CodeBadName, "name", "\x1b[1m <&>")})

		var p map[string]string
		if err := json.Unmarshal(d.Errs.Bytes(), &p); err != nil || strings.Count(d.Errs.String(), "\n") != 1 {
			t.Fatalf("%v: %v in %q", args, err, d.Errs.String())
		}

		if p["code"] != task.CodeBadName || p["field"] != "name" || p["message"] != "f.yaml:3:5: \x1b[1m <&>" {
			t.Errorf("%v: %v", args, p)
		}
	}

	d := factorytest.New("")
	d.Words = []string{"task", "create", "x", "--", "prog", "-o", "json"}
	d.Report(errors.New("x\x1b[2J"))

	if got := d.Errs.String(); got != "error: x\uFFFD[2J\n" {
		t.Errorf("reported as %q", got)
	}
}

func remote(status int, code string) error {
	return &client.Error{Status: status, Code: code, Message: "m"}
}

// The hint for a server on which nobody listens fits the host: on one with the package, carillon dev would start a second
// cluster.
func TestReport_TellsHowToReachTheDaemonOfThisHost(t *testing.T) {
	dir := t.TempDir()
	socket, units := filepath.Join(dir, "api.sock"), filepath.Join(dir, "units")
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(units, 0o700); err != nil {
		t.Fatal(err)
	}

	// Connecting to a socket that does not exist, or that nobody listens on.
	unreachable := func(path string) error {
		c, err := client.New(client.Config{Server: "unix://" + path})
		if err == nil {
			_, err = c.Tasks.Get(t.Context(), "default", "a")
		}
		return err
	}
	hint := func(server string) string {
		d := factorytest.New("")
		d.Vars["CARILLON_SERVER"], d.HostSocketPath, d.UnitDirs = server, socket, []string{filepath.Join(dir, "none"), units}
		return d.Explain(unreachable(cmp.Or(strings.TrimPrefix(server, "unix://"), socket))).Hint
	}

	const dev, of = "is the daemon running? start one with: carillon dev", "is the daemon running? the server is set by CARILLON_SERVER"
	if got := hint(""); got != dev {
		t.Errorf("without the service: %s", got)
	}

	write(filepath.Join(units, "carillon.service"))
	if got, want := hint(""), "the socket "+socket+" does not exist: is the service running? see: systemctl status carillon"; got != want {
		t.Errorf("without the socket: %s", got)
	}
	if got := hint("unix://" + filepath.Join(dir, "other.sock")); got != of {
		t.Errorf("with a server of its own: %s", got)
	}

	// A socket that was left behind. To this test, a socket that its user may not open looks like a file in its place.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if got := hint(""); got != "is the service running? see: systemctl status carillon" {
		t.Errorf("with a socket that nobody listens on: %s", got)
	}

	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	write(socket)
	if got, want := hint(""), "you may not open the socket "+socket+": become a member of its group, or use sudo"; got != want {
		t.Errorf("with a socket of others: %s", got)
	}
}

func TestReport_TellsAHintOnce(t *testing.T) {
	d := factorytest.New("")

	for range 3 {
		d.Report(&client.Error{Status: 507, Code: client.CodeNoSpace, Message: "m", Hint: "make space"})
	}

	d.Report(remote(401, client.CodeUnauthorized))

	if n, hints := strings.Count(d.Errs.String(), "error:"), strings.Count(d.Errs.String(), "hint:"); n != 4 || hints != 2 {
		t.Errorf("%d errors, %d hints:\n%s", n, hints, d.Errs.String())
	}
}

func (e exitCode) Error() string { return "a daemon's" }
func (e exitCode) ExitCode() int { return int(e) }

func TestReport_TellsNothingThatATerminalObeys(t *testing.T) {
	for _, evil := range factorytest.Hostile {
		for _, format := range []string{output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML} {
			d := factorytest.New("")
			d.Format, d.Terminal = format, func(any) (int, bool) { return 80, true }

			d.Report(&client.Error{Status: 404, Code: "c", Message: evil, Hint: evil})

			if what := factorytest.Obeyed(d.Errs.String()); what != "" {
				t.Errorf("%q, -o %s: the output contains %q", evil, format, what)
			}
		}
	}
}

// The package client knows no flags, so the hints of the command line are here.
func TestReport_HintsAtFlagsForErrorsOfTheConnection(t *testing.T) {
	d := factorytest.New("")

	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	c, err := client.New(client.Config{Server: s.URL})
	if err == nil {
		_, err = c.Tasks.Get(t.Context(), "default", "a")
	}

	for _, c := range []struct {
		err  error
		want string
	}{
		{err, "--ca-file"},
		{&client.Error{Code: client.CodeUntrusted, Message: "m", Hint: "set Config.Insecure"}, "--insecure"},
		{&client.Error{Status: 200, Code: client.CodeNotCarillon, Message: "m"}, "--server"},
		{&client.Error{Code: client.CodeUnavailable, Message: "m"}, "CARILLON_SERVER"},
		{&task.Error{Code: client.CodeClearText, Field: "server", Message: "m"}, "--insecure"},
	} {
		if got := d.Explain(c.err).Hint; !strings.Contains(got, c.want) || strings.Contains(got, "Config.") {
			t.Errorf("%v: the hint is %q, want %s", c.err, got, c.want)
		}
	}
}

// A flag of namespace update replaces its list, so the hints for several tasks become one.
func TestReport_JoinsWhatNamespacesMustAllow(t *testing.T) {
	d := factorytest.New("")
	for _, flags := range []string{"a --run-as root --shell", "a --run-as nobody --shell", "b --groups '*,docker'", "a --run-as root,ann --env-files /etc/x", "b --shell"} {
		d.Report(&client.Error{Status: 422, Code: task.CodeNotAllowed, Message: "m", Hint: "an administrator can allow it: carillon namespace update " + flags})
	}
	if strings.Contains(d.Errs.String(), "hint") {
		t.Errorf("before the end: %s", d.Errs.String())
	}

	d.PrintHeldHints()
	const begin = "hint: an administrator can allow it: carillon namespace update "
	if got, want := d.Errs.String(), begin+"a --env-files /etc/x --run-as root,nobody,ann --shell\n"+begin+"b --groups '*,docker' --shell\n"; !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
