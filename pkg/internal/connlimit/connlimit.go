// Package connlimit bounds the connections that a server has open, so that clients
// without a token cannot use up its memory and its file descriptors.
//
// A connection starts as unauthenticated. When a bound is reached, the oldest
// unauthenticated connection is closed to make room for the new one, instead of
// refusing the new one: connections that are held open cannot lock out a health check
// or a client that is about to send its token. Connections on which the server has
// accepted a token (Authenticated) are never closed for others.
//
//	accepted ──► unauthenticated ──Authenticated──► authenticated ──► closed
//	                   └── a newer connection needs its place ──────────▲
//
// There are three bounds:
//
//   - Config.PerClient, unauthenticated connections of one client. The client's oldest
//     connection makes room, so nobody else notices.
//   - Config.Total, all connections. The client with the most unauthenticated
//     connections loses its oldest one.
//   - Config.MaxDescriptor, file descriptors of the whole process, to keep the rest of
//     them for other parts of it. The same client pays.
//
// If there is no unauthenticated connection that could make room, the new connection is
// closed at once. An eighth of Total can never become authenticated, so that a health
// check finds a place even when holders of tokens have taken all others.
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

// Config configures a Limiter. All its bounds have to be set.
type Config struct {
	// Name tells this limiter from others in metrics and logs.
	Name string
	// Total is how many connections may be open at once.
	Total int
	// PerClient is how many unauthenticated connections one client may have.
	PerClient int
	// MaxDescriptor is the number from which on a connection's file descriptor is too
	// high. The kernel always assigns the lowest free number, so the number of a new
	// descriptor is a bound on how many are open, and costs nothing to ask for.
	MaxDescriptor int
	// Trusted, if set, reports that a connection needs no token: it counts as
	// authenticated from the start.
	Trusted func(net.Conn) bool
	Logger  *zap.Logger
}

// Reasons to close a connection, as values of a label.
const (
	reasonTotal       = "total"
	reasonClient      = "client"
	reasonDescriptors = "descriptors"
)

// logInterval is how often closed connections are logged at most.
const logInterval = 10 * time.Second

// Limiter bounds the connections of all listeners that it wraps.
type Limiter struct {
	cfg    Config
	log    *zap.Logger
	closed *prometheus.CounterVec

	mu            sync.Mutex
	open          int
	authenticated int
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

// Listener returns a listener that accepts connections of inner within the bounds.
// A TLS listener belongs around it, not below it.
func (l *Limiter) Listener(inner net.Listener) net.Listener { return &listener{inner, l} }

type listener struct {
	net.Listener
	limiter *Limiter
}

// Accept returns the next connection that is within the bounds.
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
	client  string

	// Guarded by limiter.mu.
	element       *list.Element // in limiter.unauthenticated[client]; nil if it is not there
	authenticated bool
	removed       bool
}

// Close closes the connection and gives its place back.
func (c *conn) Close() error {
	c.limiter.mu.Lock()
	c.limiter.removeConn(c)
	c.limiter.mu.Unlock()

	return c.Conn.Close()
}

// CloseWrite lets net/http close its half first, so that a client can read an answer
// that was sent before all of its request was read.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// abortConn closes a connection and discards what it has not sent: the kernel would
// otherwise keep that for a client that does not read.
func abortConn(c net.Conn) {
	if tcp, ok := c.(interface{ SetLinger(int) error }); ok {
		_ = tcp.SetLinger(0) // it is closed either way
	}
	_ = c.Close()
}

// admitConn takes a connection in, at the expense of another one if a bound is reached.
// It returns nil if there is no place for it: then it is closed.
func (l *Limiter) admitConn(inner net.Conn) *conn {
	c := &conn{Conn: inner, limiter: l, client: Client(inner)}
	trusted := l.cfg.Trusted != nil && l.cfg.Trusted(inner)
	number := descriptorOf(inner)

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

// makeRoom says which connection has to go before a new one may come, and for what
// reason. A reason without a victim means that the new one has to go.
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

	// Clients with fewer connections are spared: one that opens many to use up the
	// total loses its own first.
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

func (l *Limiter) clientList(client string) *list.List {
	if l.unauthenticated[client] == nil {
		l.unauthenticated[client] = list.New()
	}
	return l.unauthenticated[client]
}

// markAuthenticated takes a connection out of those that may be closed for others.
func (l *Limiter) markAuthenticated(c *conn) {
	if c.removed || c.authenticated || l.authenticated >= l.cfg.Total-l.cfg.Total/8 {
		return
	}

	c.authenticated = true
	l.authenticated++
	l.takeFromList(c)
}

// removeConn gives the place of a connection back.
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

// reportClosed counts a closed connection, and logs now and then.
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

// Context returns a context that knows the connection. It is for http.Server.ConnContext.
func Context(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(interface{ NetConn() net.Conn }); ok { // *tls.Conn
		c = secured.NetConn()
	}

	if limited, ok := c.(*conn); ok {
		return context.WithValue(ctx, contextKey{}, limited)
	}

	return ctx
}

// Authenticated notes that the connection that ctx knows, if any, has sent a valid token.
func Authenticated(ctx context.Context) {
	c, ok := ctx.Value(contextKey{}).(*conn)
	if !ok {
		return
	}

	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()

	c.limiter.markAuthenticated(c)
}

// ClientFrom names the client of the connection that ctx knows, as Client does.
func ClientFrom(ctx context.Context) (name string, ok bool) {
	c, ok := ctx.Value(contextKey{}).(*conn)
	if !ok {
		return "", false
	}
	return c.client, true
}

// Inner returns the connection that the server accepted, below TLS and limits.
func Inner(c net.Conn) net.Conn {
	if secured, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secured.NetConn()
	}

	if limited, ok := c.(*conn); ok {
		c = limited.Conn
	}

	return c
}

// Client names the client whose connections are counted together: a user of this host
// on a unix socket, else an address.
func Client(c net.Conn) string {
	if uid, ok := PeerUID(c); ok {
		return "uid=" + strconv.FormatUint(uint64(uid), 10)
	}
	if c.RemoteAddr() == nil {
		return "unknown"
	}

	return ClientOf(c.RemoteAddr().String())
}

// ClientOf names the client with a remote address host:port. One client may choose
// among all addresses of its loopback network, and of its IPv6 /64: these count as one.
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
		prefix, _ := ip.Prefix(64) // 64 bits there are
		return prefix.String()
	}
}

// descriptorOf is the number of a connection's file descriptor, or -1.
func descriptorOf(c net.Conn) int {
	number := -1
	if withDescriptor, ok := c.(syscall.Conn); ok {
		if raw, err := withDescriptor.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { number = int(fd) })
		}
	}

	return number
}
