package cli

import (
	"bytes"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/failure"
)

// TestContexts_HaveCAsOfTheirOwn: a context trusts its own server, and other contexts do not.
func TestContexts_HaveCAsOfTheirOwn(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"items": []}`))
	}))

	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()

	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), ca, 0o600); err != nil {
		t.Fatal(err)
	}

	config := "contexts:\n  good: {server: \"" + s.URL + "\", ca_file: ca.pem}\n  bad: {server: \"" + s.URL + "\"}\n"
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}

	env := map[string]string{"CARILLON_CONFIG": filepath.Join(dir, "config.yaml")}

	for name, want := range map[string]int{"good": 0, "bad": failure.ExitUnavailable} {
		var out, errs bytes.Buffer
		code := Main(t.Context(), []string{"task", "list", "--context", name, "-o", "json"}, IO{In: strings.NewReader(""), Out: &out, Err: &errs, Env: func(k string) string { return env[k] }})
		if code != want {
			t.Errorf("%s: %d, %s%s", name, code, out.String(), errs.String())
		}
	}

	var out, errs bytes.Buffer
	if code := Main(t.Context(), []string{"task", "list", "--cert-file", "x"}, IO{In: strings.NewReader(""), Out: &out, Err: &errs, Env: func(k string) string { return env[k] }}); code != failure.ExitUsage {
		t.Errorf("half a certificate: %d, %s", code, errs.String())
	}
}
