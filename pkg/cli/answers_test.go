package cli

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
)

// answeringServer answers requests as testdata/tables/answers.txtar describes.
func answeringServer(t *testing.T) *httptest.Server {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/tables/answers.txtar")
	if err != nil {
		t.Fatal(err)
	}

	answers := map[string][]byte{}
	for _, f := range archive.Files {
		answers[f.Name] = f.Data
	}

	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request := r.URL.Path
		if r.Method != http.MethodGet {
			request = r.Method + " " + request
		}

		body, ok := answers[request]
		w.Header().Set("Content-Type", "application/json")
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			body = []byte(`{"code": "not_found", "detail": "no answer for ` + request + `"}`)
		}
		_, _ = w.Write(body)
	}))
	t.Cleanup(s.Close)

	return s
}

// printed runs a command in a terminal of some width (0: no terminal), in a time zone, and returns what it prints to both streams.
func printed(t *testing.T, server string, width int, zone string, words ...string) (out, errs string) {
	t.Helper()
	location, err := schedule.Location(zone)
	if err != nil {
		t.Fatal(err)
	}

	var stdout, stderr bytes.Buffer
	env := map[string]string{"CARILLON_SERVER": server, "CARILLON_TOKEN": "carillon_x", "NO_COLOR": "1", "TZ": zone, "HOME": t.TempDir()}
	f := factory.New(IO{In: strings.NewReader(""), Out: &stdout, Err: &stderr, Env: func(name string) string { return env[name] }})
	f.Terminal = func(stream any) (int, bool) { return width, width > 0 && stream == f.Out }
	f.Now = func() time.Time { return time.Date(2026, 11, 20, 22, 12, 0, 0, time.UTC) }
	f.Local = location

	if code := runCommandLine(t.Context(), f, words); code != 0 {
		t.Errorf("carillon %s: exit code %d: %s", strings.Join(words, " "), code, &stderr)
	}

	return stdout.String(), stderr.String()
}

// tableCommands print the tables of all commands, as far as they have a server.
var tableCommands = []string{
	"task list", "task list -A", "task history nightly", "task history nightly --versions", "task next nightly", "task deleted", "next",
	"run list", "run list --dead", "events", "audit log", "alert list", "alert silences", "alert rule list", "node list", "secret list",
	"task graph", "task graph report", "task history report",
	"namespace list", "token list", "access list", "access subjects", "role list", "shard list", "load", "cluster members",
}

// Who resumes a dependent learns what does not come again.
func TestResume_SaysWhatThePauseHasDropped(t *testing.T) {
	out, _ := printed(t, answeringServer(t).URL, 0, "UTC", "task", "resume", "report")
	if want := "resumed report · runs after etl · the pause dropped 2 ended runs of its sources\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
}
