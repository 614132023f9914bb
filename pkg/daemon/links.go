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

// links are how the node reaches other nodes, and they it: the one place that
// knows whether that is by TLS. Addresses say what to speak, so nodes with TLS and
// nodes without understand each other while a cluster changes over.
type links struct {
	dial    certs.Dialer
	secured *certs.Source // nil: other nodes are verified by the system's CAs
	auth    certs.ClientAuth
	serves  bool
}

// config is the one for the next connection to another node.
func (l links) config() *tls.Config {
	if l.secured == nil {
		return &tls.Config{MinVersion: tls.VersionTLS13}
	}
	return l.secured.Client()
}

// dialTLS connects to the https:// address of another node.
func (l links) dialTLS() certs.Dialer { return certs.DialTLS(l.dial, l.config) }

// listener speaks TLS on the API's listener, if the node has a certificate.
func (l links) listener(plain net.Listener) net.Listener {
	if !l.serves {
		return plain
	}
	return tls.NewListener(plain, l.secured.Server(l.auth))
}

// httpLog logs what goes wrong with connections to the API, but not that somebody
// has only looked whether the port is open: monitors do, and peers of this node.
func httpLog(log *zap.Logger) *stdlog.Logger {
	return stdlog.New(knocks{zap.NewStdLog(log.Named("http")).Writer()}, "", 0)
}

type knocks struct{ to io.Writer }

func (k knocks) Write(b []byte) (int, error) {
	if s := strings.TrimSpace(string(b)); strings.Contains(s, "TLS handshake error") &&
		(strings.HasSuffix(s, ": EOF") || strings.HasSuffix(s, "connection reset by peer")) {
		return len(b), nil
	}
	return k.to.Write(b)
}
