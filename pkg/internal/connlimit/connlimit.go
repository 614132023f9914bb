// Package connlimit limits the connections that a server has open, so that clients without a token cannot exhaust
// its memory and its file descriptors.
//
// A connection starts as unauthenticated. When a limit is reached, the oldest unauthenticated connection is closed
// to make room for the new one. The new one is not refused, so idle connections cannot lock out a health check, or
// a client that is about to send its token. Connections on which the server has accepted a token (Authenticated)
// are never closed for others.
//
//	accepted ──► unauthenticated ──Authenticated──► authenticated ──► closed
//	                   └── a newer connection needs its place ──────────▲
//
// There are three limits:
//
//   - Config.PerClient, the unauthenticated connections of one client. The client's oldest connection is closed,
//     so no other client is affected.
//   - Config.Total, all connections. The client with the most unauthenticated connections loses its oldest one.
//   - Config.MaxDescriptor, the file descriptors of the whole process, to reserve the rest of them for other
//     parts. Again the client with the most unauthenticated connections loses its oldest one.
//
// If no unauthenticated connection exists that could make room, the new connection is closed at once. An eighth of
// Total can never become authenticated, so that a health check gets a connection even when clients with tokens have
// taken all others.
package connlimit

import (
	"container/list"
	"context"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Config configures a Limiter. All limits must be set.
type Config struct {
	// Name distinguishes this limiter from others in metrics and logs.
	Name string
	// Total is how many connections may be open at once.
	Total int
	// PerClient is how many unauthenticated connections one client may have.
	PerClient int
	// MaxDescriptor is the number from which on a connection's file descriptor is too high. The kernel always
	// assigns the lowest free number, so the number of a new descriptor is an upper limit of how many are open, and
	// costs nothing to determine.
	MaxDescriptor int
	// Trusted, if set, reports whether a connection needs no token. Such a connection counts as authenticated from
	// the start.
	Trusted func(net.Conn) bool
	Logger  *zap.Logger
}

// The reasons for closing a connection, as values of a label.
const (
	reasonTotal       = "total"
	reasonClient      = "client"
	reasonDescriptors = "descriptors"
)

// logInterval is the minimum time between two log messages about closed connections.
const logInterval = 10 * time.Second

// Limiter limits the connections of all listeners that it wraps.
type Limiter struct {
	cfg    Config
	log    *zap.Logger
	closed *prometheus.CounterVec

	// mu guards the fields below, and the mutable fields of every conn.
	mu            sync.Mutex
	open          int // all connections
	authenticated int // those that are never closed for others
	// unauthenticated holds the connections of each client in the order in which they
	// were accepted. A client without any has no entry.
	unauthenticated map[string]*list.List

	lastLog    time.Time
	unreported int // connections closed since lastLog
}

// New returns a limiter without connections.
func New(cfg Config) *Limiter {
	return &Limiter{
		cfg: cfg, log: cfg.Logger.Named("connlimit"), unauthenticated: map[string]*list.List{},
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name:        "carillon_api_connections_closed_total",
			Help:        "Unauthenticated connections that were closed to stay within a limit, by limit: client, total, descriptors.",
			ConstLabels: prometheus.Labels{"listener": cfg.Name},
		}, []string{"limit"}),
	}
}

// Register registers the limiter's metrics.
func (l *Limiter) Register(r prometheus.Registerer) {
	for _, reason := range []string{reasonTotal, reasonClient, reasonDescriptors} {
		l.closed.WithLabelValues(reason)
	}

	r.MustRegister(l.closed, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "carillon_api_connections", Help: "Open connections to the API.",
		ConstLabels: prometheus.Labels{"listener": l.cfg.Name},
	}, func() float64 {
		l.mu.Lock()
		defer l.mu.Unlock()
		return float64(l.open)
	}))
}

// Listener returns a listener that accepts connections of inner within the limits. A TLS listener must wrap it, not
// the other way around.
func (l *Limiter) Listener(inner net.Listener) net.Listener { return &listener{inner, l} }

type listener struct {
	net.Listener
	limiter *Limiter
}

// Accept returns the next connection that is within the limits. It closes the others.
func (l *listener) Accept() (net.Conn, error) {
	for {
		inner, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}

		if c := l.limiter.admitConn(inner); c != nil {
			return c, nil
		}
	}
}

// conn is a connection that a limiter has admitted.
type conn struct {
	net.Conn
	limiter *Limiter
	client  string // as Client returns it

	// Guarded by limiter.mu.
	element       *list.Element // in limiter.unauthenticated[client]; nil if it is not there
	authenticated bool
	removed       bool // its place was freed already
}

// Close closes the connection and frees its place.
func (c *conn) Close() error {
	c.limiter.mu.Lock()
	c.limiter.removeConn(c)
	c.limiter.mu.Unlock()

	return c.Conn.Close()
}

// CloseWrite allows net/http to close its half first, so that a client can read an answer that was sent before all
// of its request was read.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// abortConn closes a connection and discards what was not sent yet. Otherwise the kernel would keep that for a
// client that does not read.
func abortConn(c net.Conn) {
	if tcp, ok := c.(interface{ SetLinger(int) error }); ok {
		_ = tcp.SetLinger(0) // the connection is closed in any case
	}
	_ = c.Close()
}

// admitConn admits a connection, and closes another one if a limit is reached. If no other one can be closed, it
// closes the new one and returns nil.
func (l *Limiter) admitConn(inner net.Conn) *conn {
	c := &conn{Conn: inner, limiter: l, client: Client(inner)}
	trusted := l.cfg.Trusted != nil && l.cfg.Trusted(inner)
	number := descriptorOf(inner)

	// Decide under the lock, and close connections after it is released, because that may take time.
	l.mu.Lock()

	victim, reason := l.makeRoom(c.client, trusted, number)
	switch {
	case victim != nil:
		l.removeConn(victim)
	case reason != "":
		l.mu.Unlock()

		abortConn(inner)
		l.reportClosed(reason, c.client)

		return nil
	}

	l.open++
	c.element = l.clientList(c.client).PushBack(c)

	if trusted {
		l.markAuthenticated(c)
	}
	l.mu.Unlock()

	if victim != nil {
		abortConn(victim.Conn)
		l.reportClosed(reason, victim.client)
	}

	return c
}

// makeRoom returns the connection that must be closed before a new one is admitted, and the reason. A reason
// without a connection means that the new one must be closed. mu is held.
func (l *Limiter) makeRoom(client string, trusted bool, number int) (victim *conn, reason string) {
	switch own := l.unauthenticated[client]; {
	case !trusted && own != nil && own.Len() >= l.cfg.PerClient:
		return own.Front().Value.(*conn), reasonClient
	case l.open >= l.cfg.Total:
		reason = reasonTotal
	case number >= l.cfg.MaxDescriptor:
		reason = reasonDescriptors
	default:
		return nil, ""
	}

	// Choose the client with the most connections. A client that opens many to exhaust the total loses its own
	// first.
	var most *list.List
	for _, connections := range l.unauthenticated {
		if most == nil || connections.Len() > most.Len() {
			most = connections
		}
	}

	if most == nil {
		return nil, reason
	}

	return most.Front().Value.(*conn), reason
}

// clientList returns the unauthenticated connections of a client. mu is held.
func (l *Limiter) clientList(client string) *list.List {
	if l.unauthenticated[client] == nil {
		l.unauthenticated[client] = list.New()
	}
	return l.unauthenticated[client]
}

// markAuthenticated removes a connection from those that may be closed for others. mu is held.
func (l *Limiter) markAuthenticated(c *conn) {
	if c.removed || c.authenticated || l.authenticated >= l.cfg.Total-l.cfg.Total/8 {
		return
	}

	c.authenticated = true
	l.authenticated++
	l.takeFromList(c)
}

// removeConn frees the place of a connection. mu is held.
func (l *Limiter) removeConn(c *conn) {
	if c.removed {
		return
	}

	c.removed = true
	l.open--
	if c.authenticated {
		l.authenticated--
	}

	l.takeFromList(c)
}

// takeFromList removes a connection from the list of its client, if it is there. mu is held.
func (l *Limiter) takeFromList(c *conn) {
	if c.element == nil {
		return
	}

	connections := l.unauthenticated[c.client]
	connections.Remove(c.element)
	c.element = nil

	if connections.Len() == 0 {
		delete(l.unauthenticated, c.client)
	}
}

// reportClosed counts a closed connection, and logs at most once in logInterval.
func (l *Limiter) reportClosed(reason, client string) {
	l.closed.WithLabelValues(reason).Inc()

	l.mu.Lock()
	l.unreported++
	closed := l.unreported

	due := time.Since(l.lastLog) >= logInterval
	if due {
		l.lastLog, l.unreported = time.Now(), 0
	}
	l.mu.Unlock()

	if due {
		l.log.Warn("closed connections without a token to stay within a limit", zap.String("listener", l.cfg.Name),
			zap.String("limit", reason), zap.String("client", client), zap.Int("closed", closed))
	}
}

type contextKey struct{}

// Context returns a context that contains the connection, for http.Server.ConnContext.
func Context(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(interface{ NetConn() net.Conn }); ok { // *tls.Conn
		c = secured.NetConn()
	}

	if limited, ok := c.(*conn); ok {
		return context.WithValue(ctx, contextKey{}, limited)
	}

	return ctx
}

// Authenticated records that the connection in ctx, if there is one, has sent a valid token.
func Authenticated(ctx context.Context) {
	c, ok := ctx.Value(contextKey{}).(*conn)
	if !ok {
		return
	}

	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()

	c.limiter.markAuthenticated(c)
}

// ClientFrom returns the client of the connection in ctx, as Client does.
func ClientFrom(ctx context.Context) (name string, ok bool) {
	c, ok := ctx.Value(contextKey{}).(*conn)
	if !ok {
		return "", false
	}
	return c.client, true
}

// Inner returns the connection that the server accepted, without the layers of TLS and limits.
func Inner(c net.Conn) net.Conn {
	if secured, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secured.NetConn()
	}

	if limited, ok := c.(*conn); ok {
		c = limited.Conn
	}

	return c
}

// Client returns the name of the client whose connections are counted together: on a unix socket a user of this
// host, otherwise an address.
func Client(c net.Conn) string {
	if uid, ok := PeerUID(c); ok {
		return "uid=" + strconv.FormatUint(uint64(uid), 10)
	}
	if c.RemoteAddr() == nil {
		return "unknown"
	}

	return ClientOf(c.RemoteAddr().String())
}

// ClientOf returns the name of the client with a remote address host:port. One client can use all addresses of the
// loopback network, and all of its IPv6 /64, so these count as one.
func ClientOf(remote string) string {
	parsed, err := netip.ParseAddrPort(remote)
	if err != nil {
		return "unknown"
	}

	switch ip := parsed.Addr().Unmap().WithZone(""); {
	case ip.IsLoopback():
		return "loopback"
	case ip.Is4():
		return ip.String()
	default:
		prefix, _ := ip.Prefix(64) // cannot fail: the address has more than 64 bits
		return prefix.String()
	}
}

// descriptorOf returns the number of a connection's file descriptor, or -1.
func descriptorOf(c net.Conn) int {
	number := -1
	if withDescriptor, ok := c.(syscall.Conn); ok {
		if raw, err := withDescriptor.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { number = int(fd) })
		}
	}

	return number
}
