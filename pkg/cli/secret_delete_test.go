package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/client"
)

// A role can allow to delete secrets, and not to read them. On a terminal, secret delete asks nevertheless.
func TestSecretDelete_AsksWithoutReadingSecrets(t *testing.T) {
	var deleted int
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Query().Get("verb") == "read":
			_ = json.NewEncoder(w).Encode(client.Decision{})
		case r.Method == http.MethodDelete:
			deleted++
			w.WriteHeader(http.StatusNoContent)
		default: // secrets and tasks
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"code": "forbidden", "detail": "the role does not allow it"}`)
		}
	}))
	defer s.Close()

	for answer, want := range map[string]int{"y\n": 1, "n\n": 0} {
		deleted = 0
		var out, errs bytes.Buffer
		a := factory.New(IO{In: strings.NewReader(answer), Out: &out, Err: &errs, Env: func(string) string { return "" }})
		a.Terminal = func(any) (int, bool) { return 80, true }

		code := runCommandLine(t.Context(), a, []string{"secret", "delete", "db", "--server", s.URL, "--color", "never"})
		if deleted != want || !strings.Contains(errs.String(), "delete secret db? Nobody can bring the values back.") {
			t.Errorf("%q: exit code %d, %d deleted, %s%s", answer, code, deleted, out.String(), errs.String())
		}
	}
}
