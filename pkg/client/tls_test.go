package client_test

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/task"
)

// TestClient_SaysWhatIsWrongWithTLS, and that nothing was changed.
func TestClient_SaysWhatIsWrongWithTLS(t *testing.T) {
	dir := t.TempDir()
	authority := func(name string) *certs.Authority {
		ca, pair, err := certs.NewAuthority(certs.Request{Name: name, For: 24 * time.Hour, Now: time.Now()})
		if err == nil {
			err = pair.Write(dir, name)
		}

		if err != nil {
			t.Fatal(err)
		}

		return ca
	}

	files := func(name, ca string) certs.Files {
		f := certs.Files{CA: dir + "/" + ca + ".pem"}
		if name != "" {
			f.Cert, f.Key = certs.Paths(dir, name)
		}
		return f
	}

	source := func(f certs.Files) *certs.Source {
		s, err := certs.Open(f)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}

	ours, theirs := authority("ours"), authority("theirs")
	loopback := []net.IP{net.IPv4(127, 0, 0, 1)}
	for _, c := range []struct {
		by *certs.Authority
		certs.Request
	}{
		{ours, certs.Request{Kind: certs.KindNode, Name: "node", IPs: loopback, For: 24 * time.Hour}},
		{ours, certs.Request{Kind: certs.KindNode, Name: "elsewhere", Hosts: []string{"elsewhere"}, For: 24 * time.Hour}},
		{ours, certs.Request{Kind: certs.KindNode, Name: "ended", IPs: loopback, For: time.Minute}},
		{theirs, certs.Request{Kind: certs.KindClient, Name: "eve", For: 24 * time.Hour}},
	} {
		c.Now = time.Now()
		p, err := c.by.Issue(c.Request)
		if err == nil {
			err = p.Write(dir, c.Name)
		}

		if err != nil {
			t.Fatal(err)
		}
	}

	serve := func(name string, auth certs.ClientAuth) string {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.Listener = tls.NewListener(s.Listener, source(files(name, "ours")).Server(auth))
		s.Start()
		t.Cleanup(s.Close)

		return "https://" + s.Listener.Addr().String()
	}

	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)

	for _, c := range []struct {
		server string
		files  certs.Files
		said   string
		hint   string
	}{
		{serve("node", certs.None), files("", "theirs"), "is not signed by a known CA", "Config.TLS"},
		{serve("elsewhere", certs.None), files("", "ours"), "for another host", "use a name in the certificate"},
		{serve("ended", certs.None), files("", "ours"), "expired on 20", "replace"},
		{serve("node", certs.Require), files("", "ours"), "requires a client certificate", "Config.TLS"},
		{serve("node", certs.Require), files("eve", "ours"), "rejects the client certificate", "Config.TLS"},
		{strings.Replace(plain.URL, "http://", "https://", 1), files("", "ours"), "speaks plain HTTP", "http://"},
		{strings.Replace(serve("node", certs.None), "https://", "http://", 1), files("", "ours"), "speaks TLS", "https://"},
	} {
		cl, err := client.New(client.Config{Server: c.server, TLS: source(c.files).Client()})
		if err != nil {
			t.Fatal(err)
		}

		var e *client.Error

		if err = cl.Tasks.Delete(t.Context(), "default", "x", 0); strings.HasPrefix(c.server, "http://") {
			_, err = cl.Tasks.Get(t.Context(), "default", "x") // Go's servers support no other method with TLS
		}

		if !errors.As(err, &e) || e.Code != client.CodeTLS || !strings.Contains(e.Message, c.said) || !strings.Contains(e.Hint, c.hint) || errors.Is(err, task.ErrUnknown) {
			t.Errorf("%s: %#v", c.said, err)
		}
	}

	cl, err := client.New(client.Config{Server: serve("node", certs.Require), TLS: source(files("node", "ours")).Client()})
	if err != nil {
		t.Fatal(err)
	}

	if err := cl.Tasks.Delete(t.Context(), "default", "x", 0); err != nil {
		t.Errorf("the right certificates: %v", err)
	}
}
