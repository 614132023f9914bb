package cli

import (
	"bytes"
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/internal/certs"
)

// TestMain_SpeaksTLSByTheFilesGiven: the files that carillon cert creates are sufficient for a server that
// requires certificates, and for its client.
func TestMain_SpeaksTLSByTheFilesGiven(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := func(args ...string) (int, string) {
		var out, errs bytes.Buffer
		code := Main(t.Context(), args, IO{In: strings.NewReader(""), Out: &out, Err: &errs, Env: func(string) string { return "" }})
		return code, out.String() + errs.String()
	}

	for _, args := range [][]string{{"ca"}, {"node", "n1"}, {"client", "ann"}} {
		if code, said := run(append(append([]string{"cert"}, args...), "--dir", dir)...); code != 0 {
			t.Fatal(said)
		}
	}

	cert, key := certs.Paths(dir, "n1")
	ca, _ := certs.Paths(dir, "ca")

	files, err := certs.Open(certs.Files{Cert: cert, Key: key, CA: ca})
	if err != nil {
		t.Fatal(err)
	}

	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"items": []}`)
	}))

	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Listener = tls.NewListener(s.Listener, files.Server(certs.Require))
	s.Start()
	defer s.Close()

	list := []string{"node", "list", "-o", "json", "--server", "https://" + s.Listener.Addr().String()}

	ann, annKey := certs.Paths(dir, "ann")
	for _, c := range []struct {
		flags []string
		code  int
		said  string
	}{
		{[]string{"--ca-file", ca, "--cert-file", ann, "--key-file", annKey}, 0, "[]"},
		{[]string{"--ca-file", ca}, failure.ExitUnavailable, "requires a client certificate"},
		{nil, failure.ExitUnavailable, "--ca-file"},
		{[]string{"--ca-file", annKey}, failure.ExitUsage, `"field":"ca_file"`},
		{[]string{"--ca-file", ca, "--cert-file", ann, "--key-file", key}, failure.ExitUsage, `"field":"key_file"`},
	} {
		if code, said := run(append(append([]string{}, list...), c.flags...)...); code != c.code || !strings.Contains(said, c.said) {
			t.Errorf("%v: %d, %q", c.flags, code, said)
		}
	}
}
