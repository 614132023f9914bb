// Package connlimit limits the connections that a server has open, so that clients without a token cannot exhaust
// its memory and its file descriptors.
//
// A connection starts as unauthenticated. When a limit is reached, the oldest unauthenticated connection is closed
// to make room for the new one. The new one is not refused, so idle connections cannot lock out a health check, or
// a client that is about to send its token. A connection on which the server has accepted a token (Authenticated)
// becomes protected, which means that it is never closed for others.
//
//	accepted ──► unprotected ──Authenticated──► protected ──► closed
//	               │   ▲─── its subject has the most, ─┘         ▲
//	               │        and another one needs the place      │
//	               └── a newer connection needs its place ───────┘
//
// The protected connections of one subject are limited, so that nobody can take all places:
//
//   - A subject has at most a quarter of the places for protected connections. Further ones stay unprotected.
//   - If all these places are taken, a subject with fewer connections gets a place of the subject with the most, whose
//     newest connection becomes unprotected. It stays open until a limit is reached. So each of n subjects can keep an
//     n-th of the places, whatever the others do.
//
// There are three limits:
//
//   - Config.PerClient, the unprotected connections of one client. The client's oldest connection is closed,
//     so no other client is affected.
//   - Config.Total, all connections. The client with the most unprotected connections loses its oldest one.
//   - Config.MaxDescriptor, the file descriptors of the whole process, to reserve the rest of them for other
//     parts. Again the client with the most unprotected connections loses its oldest one.
//
// If there is no unprotected connection to close, the new connection is closed at once. An eighth of
// Total can never become protected, so that a health check gets a connection even when clients with tokens have
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
	// PerClient is how many unprotected connections one client may have.
	PerClient int
	// MaxDescriptor is the first number at which a connection's file descriptor is too high. The kernel always
	// assigns the lowest free number, so the number of a new descriptor is an upper limit of how many are open, and
	// costs nothing to determine.
	MaxDescriptor int
	// Trusted, if set, reports whether a connection needs no token. Such a connection is protected from the start, within
	// the limit of its client, which is its subject.
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
	mu   sync.Mutex
	open int // all connections
	// unprotected holds the connections of each client in the order in which they were accepted, except that one that has
	// lost its protection is the last. A client without any has no entry.
	unprotected map[string]*list.List
	// protected holds the connections of each subject that are never closed for others, in the order in which they became
	// protected. A subject without any has no entry. places is the number of all of them.
	protected map[string]*list.List
	places    int

	lastLog    time.Time
	unreported int // connections closed since lastLog
}

// New returns a limiter without connections.
func New(cfg Config) *Limiter {
	return &Limiter{
		cfg: cfg, log: cfg.Logger.Named("connlimit"), unprotected: map[string]*list.List{}, protected: map[string]*list.List{},
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name:        "carillon_api_connections_closed_total",
			Help:        "Unprotected connections that were closed to stay within a limit, by limit: client, total, descriptors.",
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
	element *list.Element // in limiter.protected[subject], or in limiter.unprotected[client] without a subject
	subject string        // "" if it is not protected
	removed bool          // its place was freed already
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
	c.element = pushBack(l.unprotected, c.client, c)

	if trusted {
		l.protect(c, c.client)
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
	switch own := l.unprotected[client]; {
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
	most := longest(l.unprotected)
	if most == nil {
		return nil, reason
	}

	return most.Front().Value.(*conn), reason
}

// longest returns the longest of some lists, or nil if there is none.
func longest(lists map[string]*list.List) (most *list.List) {
	for _, connections := range lists {
		if most == nil || connections.Len() > most.Len() {
			most = connections
		}
	}

	return most
}

// pushBack appends a connection to the list with a name.
func pushBack(lists map[string]*list.List, name string, c *conn) *list.Element {
	if lists[name] == nil {
		lists[name] = list.New()
	}
	return lists[name].PushBack(c)
}

// subjectShare is the part of the places for protected connections that one subject can have: one in subjectShare.
const subjectShare = 4

// protect gives a connection of a subject a protected place, if the subject can have one more. mu is held.
func (l *Limiter) protect(c *conn, subject string) {
	if c.removed || c.subject != "" {
		return
	}

	places, own := l.cfg.Total-l.cfg.Total/8, 0
	if connections := l.protected[subject]; connections != nil {
		own = connections.Len()
	}
	if own >= max(places/subjectShare, 1) {
		return
	}

	if l.places >= places {
		most := longest(l.protected)
		if most == nil || most.Len() <= own+1 {
			return
		}
		l.unprotect(most.Back().Value.(*conn))
	}

	l.takeFromList(c)
	c.subject, c.element = subject, pushBack(l.protected, subject, c)
	l.places++
}

// unprotect frees the protected place of a connection. The connection stays open. mu is held.
func (l *Limiter) unprotect(c *conn) {
	l.takeFromList(c)
	c.element = pushBack(l.unprotected, c.client, c)
}

// removeConn frees the place of a connection. mu is held.
func (l *Limiter) removeConn(c *conn) {
	if c.removed {
		return
	}

	c.removed = true
	l.open--
	l.takeFromList(c)
}

// takeFromList removes a connection from its list, and frees its protected place if it has one. mu is held.
func (l *Limiter) takeFromList(c *conn) {
	lists, name := l.unprotected, c.client
	if c.subject != "" {
		lists, name = l.protected, c.subject
		c.subject = ""
		l.places--
	}

	connections := lists[name]
	connections.Remove(c.element)
	c.element = nil

	if connections.Len() == 0 {
		delete(lists, name)
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
		l.log.Warn("closed unprotected connections to stay within a limit", zap.String("listener", l.cfg.Name),
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

// Authenticated records that the connection in ctx, if there is one, has sent a valid token of a subject. The first subject
// that gets a place for the connection keeps it.
func Authenticated(ctx context.Context, subject string) {
	c, ok := ctx.Value(contextKey{}).(*conn)
	if !ok {
		return
	}

	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()

	c.limiter.protect(c, subject)
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

// Process is a process of this host that has connected to a unix socket.
type Process struct {
	// PID is its number. 0: this process cannot see it, because it is in another PID namespace.
	PID int
	// PIDFD refers to the process. -1: the kernel has no pidfds.
	PIDFD int
	// Certain reports that the kernel has recorded the process itself, and not only its number. Otherwise the process may
	// have ended since it connected, and the number and PIDFD may belong to a later one.
	Certain bool
}
