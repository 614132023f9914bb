package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/daemon/systemd"
	"github.com/carillonhq/carillon/pkg/daemon/unixsocket"
	"github.com/carillonhq/carillon/pkg/internal/connlimit"
	"github.com/carillonhq/carillon/pkg/internal/version"
	"github.com/carillonhq/carillon/pkg/wake"
)

const (
	// listenRetry is the pause after a failure to listen. It is short, because a port may be
	// free only for a moment, while the program that holds it restarts.
	listenRetry = time.Second
	// listenLogInterval is the minimum time between two log lines about such failures.
	listenLogInterval = time.Minute
)

// listenerOpener opens the listener of one address. The listener limits the number of connections
// and uses TLS if that is configured.
type listenerOpener interface {
	openListener() (net.Listener, error)
}

// endpoint is an address at which the node listens or tries to listen.
type endpoint struct {
	address  string // for logs
	serves   string // what it serves, for logs: the API or metrics
	listener listenerOpener
	log      *zap.Logger
	announce wake.Signal // sent when the endpoint begins to listen

	mu     sync.Mutex
	addr   net.Addr  // the address at which it listens; nil: it does not listen
	err    error     // why it does not listen
	logged time.Time // when a failure was last logged
}

// listenOnce tries once to open the listener, and stores the result.
func (e *endpoint) listenOnce() (net.Listener, error) {
	l, err := e.listener.openListener()

	e.mu.Lock()
	defer e.mu.Unlock()

	if err != nil {
		e.err = err
		if time.Since(e.logged) >= listenLogInterval {
			e.logged = time.Now()
			e.log.Error("cannot listen; retrying", zap.String("serves", e.serves), zap.String("address", e.address), zap.Error(err))
		}

		return nil, err
	}

	if e.err != nil {
		e.log.Info("listening again", zap.String("serves", e.serves), zap.String("address", e.address))
	}

	e.addr, e.err = l.Addr(), nil
	e.announce.Send()

	return l, nil
}

// listeningAddr returns the address at which the endpoint listens, or nil and the reason if it does not.
func (e *endpoint) listeningAddr() (net.Addr, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.addr, e.err
}

// startupReporter receives what a starting node waits for.
type startupReporter interface {
	SetStartupStatus(why string)
}

// httpServer serves the listeners of the API, or those of the metrics, from the moment that they are open. Until
// its handler exists, it only answers that the process is alive and what the node waits for. If
// it cannot listen, for example because the port is taken, it tries again, and the rest of the node continues
// meanwhile.
type httpServer struct {
	http     *http.Server
	handler  atomic.Pointer[http.Handler] // the API or the metrics; nil: it does not exist yet
	startup  atomic.Pointer[string]       // what the node waits for while there is no handler
	reporter startupReporter
	header   http.Header   // of /healthz, while there is no handler
	closing  chan struct{} // closed when no request is accepted any more, so that streams end

	stopOnce sync.Once
	stopped  chan struct{} // closed to stop further tries to listen
	serving  sync.WaitGroup
	failed   chan error // one slot: the error of a listener that has failed
}

// startHTTP listens at the endpoints and begins to serve. It tries each endpoint once before it returns; endpoints that
// fail are retried in the background. header is sent with /healthz until there is a handler.
func startHTTP(server *http.Server, reporter startupReporter, header http.Header, endpoints ...*endpoint) *httpServer {
	s := &httpServer{
		http: server, reporter: reporter, header: header,
		closing: make(chan struct{}), stopped: make(chan struct{}), failed: make(chan error, 1),
	}
	server.Handler = s
	server.RegisterOnShutdown(sync.OnceFunc(func() { close(s.closing) }))

	for _, e := range endpoints {
		l, err := e.listenOnce() // now, so that callers find the result
		s.serving.Go(func() { s.keepServing(e, l, err) })
	}

	return s
}

// stopListening stops further tries to listen.
func (s *httpServer) stopListening() {
	s.stopOnce.Do(func() { close(s.stopped) })
}

// keepServing listens at an endpoint until that succeeds, and then serves it until the server is closed. l and err are
// the result of the first try.
func (s *httpServer) keepServing(e *endpoint, l net.Listener, err error) {
	for err != nil {
		select {
		case <-s.stopped:
			return
		case <-time.After(listenRetry):
		}

		l, err = e.listenOnce()
	}

	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		select {
		case s.failed <- fmt.Errorf("serve the API: %w", err):
		default:
		}
	}
}

// ServeHTTP passes requests to the handler. While there is none, it answers /healthz with 200 and all other
// requests with 503 and the startup status.
func (s *httpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := s.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}

	if r.URL.Path == "/healthz" {
		maps.Copy(w.Header(), s.header)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "ok")
		return
	}

	why := "the node is starting"
	if v := s.startup.Load(); v != nil {
		why = *v
	}

	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).Encode(map[string]any{ // an error means that the client has gone
		"type": client.ProblemType(client.CodeNotReady), "title": http.StatusText(http.StatusServiceUnavailable), "status": http.StatusServiceUnavailable,
		"code": client.CodeNotReady, "detail": "not ready: " + why,
	})
}

// waitForMembers sets the startup status while the embedded etcd starts. missing lists the members that it waits for. An
// empty list means that they do not agree yet, and nil that the wait is over.
func (s *httpServer) waitForMembers(missing []string) {
	why := "the node is starting"

	switch {
	case len(missing) > 0:
		// Everybody can read the status over HTTP, before anybody can be authenticated. The names are in the log.
		status := fmt.Sprintf("etcd is waiting for its other members, %d of which are missing; see the node's log", len(missing))
		s.startup.Store(&status)
		s.reporter.SetStartupStatus("etcd is waiting for its other members: " + strings.Join(missing, ", "))

		return
	case missing != nil:
		why = "etcd waits until its members agree"
	}

	s.setStartupStatus(why)
}

// setStartupStatus sets what a starting node waits for, for clients and for the service manager.
func (s *httpServer) setStartupStatus(why string) {
	s.startup.Store(&why)
	s.reporter.SetStartupStatus(why)
}

// setHandler makes h answer all further requests.
func (s *httpServer) setHandler(h http.Handler) { s.handler.Store(&h) }

// run waits until ctx ends or a listener fails. When ctx ends, it lets requests finish for up to three seconds and then
// closes their connections.
func (s *httpServer) run(ctx context.Context) error {
	select {
	case err := <-s.failed:
		return err
	case <-ctx.Done():
	}

	s.stopListening()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()

	if s.http.Shutdown(ctx) != nil { // some requests did not finish in time
		s.http.Close()
	}

	s.serving.Wait()

	return nil
}

// close closes all listeners and connections at once.
func (s *httpServer) close() {
	s.stopListening()
	s.http.Close()
	s.serving.Wait()
}

// apiListeners holds the addresses at which the API listens: the TCP address, and
// the unix socket if one is configured.
type apiListeners struct {
	cfg       Config
	endpoints []*endpoint
	tcp       *endpoint            // the endpoint of the TCP address
	limiters  []*connlimit.Limiter // one for each endpoint
	announce  wake.Signal          // sent when an endpoint begins to listen
	log       *zap.Logger
}

// newAPIListeners prepares the endpoints. It opens none; startHTTP does.
func newAPIListeners(cfg Config, env Environment, tls nodeTLS, admins unixsocket.Administrators, announce wake.Signal, log *zap.Logger) *apiListeners {
	l := &apiListeners{cfg: cfg, announce: announce, log: log}
	descriptors := maxDescriptors()

	limiter := connlimit.New(tcpLimits(descriptors, log))
	l.tcp = l.addEndpoint(cfg.Listen, limiter, &tcpOpener{address: cfg.Listen, env: env, limiter: limiter, tls: tls})

	if cfg.Socket != "" {
		limiter := connlimit.New(socketLimits(descriptors, admins, log))
		l.addEndpoint(cfg.Socket, limiter, &socketOpener{path: cfg.Socket, inherited: env.inherited.Unix, admins: admins, limiter: limiter})
	}

	return l
}

// addEndpoint adds an endpoint with its limiter.
func (l *apiListeners) addEndpoint(address string, limiter *connlimit.Limiter, opener listenerOpener) *endpoint {
	e := &endpoint{address: address, serves: "the API", listener: opener, log: l.log, announce: l.announce}
	l.endpoints, l.limiters = append(l.endpoints, e), append(l.limiters, limiter)
	return e
}

// tcpOpener opens the API's TCP listener.
type tcpOpener struct {
	address string
	env     Environment
	limiter *connlimit.Limiter
	tls     nodeTLS
}

// openListener listens on the inherited socket, if there is one, or at the address. Connections are limited before the
// TLS handshake.
func (o *tcpOpener) openListener() (net.Listener, error) {
	l, err := systemd.ListenInherited(o.env.inherited.TCP, func() (net.Listener, error) { return o.env.Listen("tcp", o.address) })
	if err != nil {
		return nil, err
	}
	return o.tls.wrapListener(o.limiter.Listener(l)), nil
}

// socketOpener opens the API's unix socket.
type socketOpener struct {
	path      string
	inherited *os.File // the socket from the service manager; nil: the daemon opens it
	admins    unixsocket.Administrators
	limiter   *connlimit.Limiter
}

// openListener listens on the inherited socket, if there is one, or creates the socket.
func (o *socketOpener) openListener() (net.Listener, error) {
	l, err := systemd.ListenInherited(o.inherited, func() (net.Listener, error) { return unixsocket.Listen(o.path, o.admins) })
	if err != nil {
		return nil, err
	}
	return o.limiter.Listener(l), nil
}

// listenError returns an error if the API does not listen at one of its addresses.
func (l *apiListeners) listenError() error {
	for _, e := range l.endpoints {
		if _, err := e.listeningAddr(); err != nil {
			return fmt.Errorf("the API does not listen on %s: %w", e.address, err)
		}
	}

	return nil
}

// advertisedAddress returns the URL at which other nodes reach the API: the setting advertise, or the address at which
// it listens, with the host's name in place of an unspecified address.
func (l *apiListeners) advertisedAddress() string {
	if l.cfg.Advertise != "" {
		return l.cfg.Advertise
	}

	address := l.cfg.Listen
	if addr, _ := l.tcp.listeningAddr(); addr != nil {
		address = addr.String()
	}

	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return l.cfg.urlScheme() + "://" + address
	}

	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			host = name
		}
	}

	return l.cfg.urlScheme() + "://" + net.JoinHostPort(host, port)
}

// announcedAddress returns the advertised address, or "" while the API does not listen there. Peers
// would otherwise take a refused connection for a crash, or reach another program that holds the port.
func (l *apiListeners) announcedAddress() string {
	if _, err := l.tcp.listeningAddr(); err != nil {
		return ""
	}
	return l.advertisedAddress()
}

// registerMetrics registers the metrics of all listeners.
func (l *apiListeners) registerMetrics(r prometheus.Registerer) {
	for _, limiter := range l.limiters {
		limiter.Register(r)
	}
}

// logListening logs the addresses at which the API listens.
func (l *apiListeners) logListening() {
	l.log.Info("listening", zap.String("node", l.cfg.Name), zap.String("address", l.announcedAddress()), zap.String("socket", l.cfg.Socket),
		zap.String("version", version.Get()), zap.NamedError("missing", l.listenError()))
}

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
