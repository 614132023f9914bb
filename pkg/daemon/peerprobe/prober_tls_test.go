package peerprobe

import (
	"crypto/tls"
	"net"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/certs"
)

// tlsProbeFixture is a probeFixture whose server uses TLS and requires a certificate.
type tlsProbeFixture struct {
	*probeFixture
	pki    string
	trust  atomic.Pointer[tls.Config] // the configuration of the probing node
	hangUp atomic.Bool                // the server closes connections directly after accepting them
}

func newTLSProbeFixture(t *testing.T) *tlsProbeFixture {
	a := &tlsProbeFixture{probeFixture: newProbeFixture(t), pki: t.TempDir()}
	a.reissue()
	cert, key := certs.Paths(a.pki, "n")
	ca, _ := certs.Paths(a.pki, "ca")
	files, err := certs.Open(certs.Files{Cert: cert, Key: key, CA: ca})
	if err != nil {
		t.Fatal(err)
	}
	trust, err := certs.Client(ca, cert, key)
	if err != nil {
		t.Fatal(err)
	}
	a.trust.Store(trust)
	a.Prober.cfg.TLS = a.trust.Load

	server := httptest.NewUnstartedServer(a.server.Config.Handler)
	server.Listener = tls.NewListener(&hangUpListener{server.Listener, &a.hangUp}, files.Server(certs.Require))
	server.Start()
	t.Cleanup(server.Close)
	a.server = server
	a.record.Address = "https://" + server.Listener.Addr().String()
	return a
}

type hangUpListener struct {
	net.Listener
	hangUp *atomic.Bool
}

func (h *hangUpListener) Accept() (net.Conn, error) {
	c, err := h.Listener.Accept()
	if err == nil && h.hangUp.Load() {
		_ = c.Close()
	}
	return c, err
}

// reissue gives the server another certificate from another CA.
func (t *tlsProbeFixture) reissue() {
	t.t.Helper()
	now := time.Now()
	ca, pair, err := certs.NewAuthority(certs.Request{Name: "CA", For: 24 * time.Hour, Now: now})
	if err == nil {
		err = pair.Write(t.pki, "ca")
	}
	if err != nil {
		t.t.Fatal(err)
	}
	node, err := ca.Issue(certs.Request{Kind: certs.KindNode, Name: "n", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, For: 24 * time.Hour, Now: now})
	if err == nil {
		err = node.Write(t.pki, "n")
	}
	if err != nil {
		t.t.Fatal(err)
	}
}

// Verifies: G48
func TestPeers_NoticeACrashBehindTLS(t *testing.T) {
	a := newTLSProbeFixture(t)
	a.watched()
	a.wait("it is reached", a.isReached)
	a.crash(errRefused)
	a.wait("its leases are revoked", func() bool { return len(a.accusations()) == 1 })
}

// If a peer was reached and TLS fails from then on, for whatever reason, it still listens, so it is not accused.
//
// Verifies: G48
func TestPeers_AccuseNobodyForItsTLS(t *testing.T) {
	for name, fail := range map[string]func(a *tlsProbeFixture){
		"it shows the certificate of another CA": func(a *tlsProbeFixture) { a.reissue() },
		"it wants a certificate":                 func(a *tlsProbeFixture) { a.trust.Store(&tls.Config{RootCAs: a.trust.Load().RootCAs}) },
		"it hangs up":                            func(a *tlsProbeFixture) { a.hangUp.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newTLSProbeFixture(t)
			a.watched()
			a.wait("it is reached", a.isReached)
			fail(a)
			a.server.CloseClientConnections() // a probe may have used an open connection meanwhile
			answered, dials := a.answered.Load(), a.dials.Load()
			// Each round probes the peer, and then dials to check whether a process listens.
			a.wait("it is dialled again and again", func() bool { return a.dials.Load() >= dials+6 })
			if got := a.accusations(); len(got) != 0 || a.answered.Load() != answered {
				t.Errorf("revoked: %v; answered %d times since", got, a.answered.Load()-answered)
			}
		})
	}
}
