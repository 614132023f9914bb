package daemon

import (
	"crypto/tls"
	"io"
	stdlog "log"
	"net"
	"strings"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/certs"
)

// nodeTLS creates the connections between this node and others. It is the only place that
// distinguishes TLS from plain connections. The scheme of an address decides, so nodes with TLS and
// nodes without reach each other while a cluster migrates.
type nodeTLS struct {
	dial    certs.Dialer
	secured *certs.Source    // nil: other nodes are verified with the system's CAs
	auth    certs.ClientAuth // what the API requires of clients
	serves  bool             // the API uses TLS
}

// serverConfig returns the TLS configuration for the next connection to another node, with the current certificates.
func (t nodeTLS) serverConfig() *tls.Config {
	if t.secured == nil {
		return &tls.Config{MinVersion: tls.VersionTLS13}
	}
	return t.secured.Client()
}

// dialTLS returns a dialer for https:// addresses of other nodes.
func (t nodeTLS) dialTLS() certs.Dialer { return certs.DialTLS(t.dial, t.serverConfig) }

// wrapListener adds TLS to the API's listener if the node has a certificate.
func (t nodeTLS) wrapListener(plain net.Listener) net.Listener {
	if !t.serves {
		return plain
	}
	return tls.NewListener(plain, t.secured.Server(t.auth))
}

// httpLog returns a logger for errors of connections to the API. It leaves out connections
// that only check whether the port is open, as monitors and other nodes do.
func httpLog(log *zap.Logger) *stdlog.Logger {
	return stdlog.New(quietProbeLog{zap.NewStdLog(log.Named("http")).Writer()}, "", 0)
}

// quietProbeLog drops lines about TLS handshakes that the client has not begun.
type quietProbeLog struct{ to io.Writer }

func (l quietProbeLog) Write(b []byte) (int, error) {
	if s := strings.TrimSpace(string(b)); strings.Contains(s, "TLS handshake error") &&
		(strings.HasSuffix(s, ": EOF") || strings.HasSuffix(s, "connection reset by peer")) {
		return len(b), nil
	}
	return l.to.Write(b)
}
