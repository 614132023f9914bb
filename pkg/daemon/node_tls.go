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

// nodeTLS is how the node reaches other nodes, and they it: the one place that
// knows whether that is by TLS. Addresses say what to speak, so nodes with TLS and
// nodes without understand each other while a cluster changes over.
type nodeTLS struct {
	dial    certs.Dialer
	secured *certs.Source // nil: other nodes are verified by the system's CAs
	auth    certs.ClientAuth
	serves  bool
}

// serverConfig is the one for the next connection to another node.
func (t nodeTLS) serverConfig() *tls.Config {
	if t.secured == nil {
		return &tls.Config{MinVersion: tls.VersionTLS13}
	}
	return t.secured.Client()
}

// dialTLS connects to the https:// address of another node.
func (t nodeTLS) dialTLS() certs.Dialer { return certs.DialTLS(t.dial, t.serverConfig) }

// wrapListener speaks TLS on the API's listener, if the node has a certificate.
func (t nodeTLS) wrapListener(plain net.Listener) net.Listener {
	if !t.serves {
		return plain
	}
	return tls.NewListener(plain, t.secured.Server(t.auth))
}

// httpLog logs what goes wrong with connections to the API, but not that somebody
// has only looked whether the port is open: monitors do, and peers of this node.
func httpLog(log *zap.Logger) *stdlog.Logger {
	return stdlog.New(quietProbeLog{zap.NewStdLog(log.Named("http")).Writer()}, "", 0)
}

// quietProbeLog leaves out connections that only probe the port.
type quietProbeLog struct{ to io.Writer }

func (l quietProbeLog) Write(b []byte) (int, error) {
	if s := strings.TrimSpace(string(b)); strings.Contains(s, "TLS handshake error") &&
		(strings.HasSuffix(s, ": EOF") || strings.HasSuffix(s, "connection reset by peer")) {
		return len(b), nil
	}
	return l.to.Write(b)
}
