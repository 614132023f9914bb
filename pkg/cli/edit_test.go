package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// TestEdit_ChoosesAnEditor: VISUAL takes precedence over EDITOR, both may have arguments, and an editor that
// needs a terminal is started only on one.
func TestEdit_ChoosesAnEditor(t *testing.T) {
	var put task.Spec
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown := client.Task{Task: task.Task{Spec: task.Defaults(), Revision: 17}}
		shown.Name, shown.Schedule, shown.Action.Noop = "a", task.Schedules{"@daily"}, &task.Noop{}
		if r.Method == http.MethodPut {
			b, _ := io.ReadAll(r.Body)
			_ = json.Unmarshal(b, &put)

			if got := r.Header.Get("If-Match"); got != `"17"` {
				t.Errorf("If-Match is %s", got)
			}

			shown.Result = client.Configured
		}

		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(shown)
	}))

	defer s.Close()

	const hourly, weekly = `sed -i -e "s/@daily/@hourly/"`, "sed -i s/@daily/@weekly/"
	for _, c := range []struct {
		env  map[string]string
		tty  bool
		args string
		want string // schedule, or the text of the task
	}{
		{map[string]string{"VISUAL": hourly, "EDITOR": weekly}, true, "", "@hourly"},
		{map[string]string{"EDITOR": weekly}, true, "", "@weekly"},
		{map[string]string{"VISUAL": " "}, true, "", "neither VISUAL nor EDITOR"},
		{map[string]string{"VISUAL": hourly}, false, "", "an editor requires a terminal"},
		{map[string]string{"VISUAL": hourly}, true, "--no-input", "an editor requires a terminal"},
		{map[string]string{"VISUAL": "false"}, false, "--editor=" + weekly, "@weekly"},
	} {
		put = task.Spec{}
		dir := t.TempDir()
		var out, errs bytes.Buffer
		a := factory.New(IO{In: strings.NewReader(""), Out: &out, Err: &errs, Env: func(name string) string {
			if name == "TMPDIR" {
				return dir
			}
			return c.env[name]
		}})

		a.Terminal = func(any) (int, bool) { return 80, c.tty }
		args := []string{"task", "edit", "a", "--server", s.URL, "--color", "never"}
		if c.args != "" {
			args = append(args, c.args)
		}

		code := runCommandLine(t.Context(), a, args)
		if got := strings.Join(put.Schedule, " "); got != c.want && !(code == failure.ExitUsage && strings.Contains(errs.String(), c.want)) {
			t.Errorf("%v: %d, %q, %s%s", c, code, got, out.String(), errs.String())
		}

		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%v: %v is left", c, left)
		}
	}
}
