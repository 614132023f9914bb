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

// Bounds for connections to the API. A connection costs some 33 KB of memory, so the
// most that clients without a token can make a node use is 34 MB.
const (
	maxConnections     = 1024
	maxUserConnections = 256 // on the unix socket, which has its own bounds

	readHeaderTimeout = 10 * time.Second
	// requestReadTimeout and answerWriteTimeout are for whole requests and answers. They
	// are longer than the API works on a request; routes that stream lift them.
	requestReadTimeout = 30 * time.Second
	answerWriteTimeout = 30 * time.Second
	idleTimeout        = 2 * time.Minute
	maxHeaderBytes     = 64 << 10
)

// newHTTPServer makes the server of the API, whose connections end within bounds.
func newHTTPServer(users unixsocket.Administrators, log *zap.Logger) *http.Server {
	return &http.Server{
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       requestReadTimeout,
		WriteTimeout:      answerWriteTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnContext:       users.ConnContext,
		ErrorLog:          httpLog(log),
	}
}

// tcpLimits are the bounds for connections over the network, for a process that may
// have so many descriptors open. A quarter of the descriptors is for connections at
// most, and a fifth is never for them: etcd ends the process if it gets none for its
// log, and without descriptors no task starts.
func tcpLimits(descriptors int, log *zap.Logger) connlimit.Config {
	total := min(maxConnections, max(descriptors/4, 8))
	return connlimit.Config{
		Name: "tcp", Total: total, PerClient: total / 4, MaxDescriptor: descriptors / 5 * 4, Logger: log,
	}
}

// socketLimits are the same for the unix socket, whose clients are users of this host.
// Connections by users who need no token never make room for others.
func socketLimits(descriptors int, users unixsocket.Administrators, log *zap.Logger) connlimit.Config {
	total := min(maxUserConnections, max(descriptors/16, 8))
	return connlimit.Config{
		Name: "unix", Total: total, PerClient: total / 4, MaxDescriptor: descriptors / 5 * 4, Logger: log,
		Trusted: func(c net.Conn) bool { _, ok := users.Peer(c); return ok },
	}
}

// maxDescriptors is how many file descriptors this process may have open. The Go runtime
// has raised the soft limit to the hard one.
func maxDescriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(limit.Cur)
}
