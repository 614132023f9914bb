package daemon

import (
	"math"
	"net"
	"net/http"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon/unixsocket"
	"github.com/carillonhq/carillon/pkg/internal/connlimit"
)

// Limits on connections to the API. A connection uses about 33 KB of memory, so
// clients without a token can make a node use at most 34 MB.
const (
	maxConnections     = 1024
	maxUserConnections = 256 // on the unix socket, which is limited separately
	maxScrapers        = 32  // at metrics_listen

	readHeaderTimeout = 10 * time.Second
	// requestReadTimeout and answerWriteTimeout apply to whole requests and answers. They
	// are longer than the API takes for a request. Routes that stream remove them.
	requestReadTimeout = 30 * time.Second
	answerWriteTimeout = 30 * time.Second
	idleTimeout        = 2 * time.Minute
	maxHeaderBytes     = 64 << 10
)

// newHTTPServer returns the server of the API, with its timeouts.
func newHTTPServer(users unixsocket.Administrators, servesAPI bool, log *zap.Logger) *http.Server {
	// A node that does not serve the API trusts no user of its host.
	inContext := connlimit.Context
	if servesAPI {
		inContext = users.ConnContext
	}

	return &http.Server{
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       requestReadTimeout,
		WriteTimeout:      answerWriteTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnContext:       inContext,
		ErrorLog:          httpLog(log),
	}
}

// tcpLimits returns the limits on TCP connections. descriptors is the number of file descriptors that the process may
// have open. At most a quarter of them is used for connections, and connections never get the last
// fifth: the embedded etcd ends the process if it gets none for its
// log, and without descriptors no attempt starts.
func tcpLimits(descriptors int, log *zap.Logger) connlimit.Config {
	total := min(maxConnections, max(descriptors/4, 8))
	return connlimit.Config{
		Name: "tcp", Total: total, PerClient: total / 4, MaxDescriptor: descriptors / 5 * 4, Logger: log,
	}
}

// socketLimits returns the limits on connections to the unix socket, whose clients are users of this host.
// Connections of users who need no token are never closed in favor of others.
func socketLimits(descriptors int, users unixsocket.Administrators, log *zap.Logger) connlimit.Config {
	total := min(maxUserConnections, max(descriptors/16, 8))
	return connlimit.Config{
		Name: "unix", Total: total, PerClient: total / 4, MaxDescriptor: descriptors / 5 * 4, Logger: log,
		Trusted: func(c net.Conn) bool { p, _ := users.Peer(c); return p.Trusted },
	}
}

// maxDescriptors returns the number of file descriptors that this process may have open. The Go runtime
// raises the soft limit to the hard one.
func maxDescriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(limit.Cur)
}
