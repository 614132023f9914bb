package daemon

import (
	"fmt"
	"net"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon/systemd"
	"github.com/carillonhq/carillon/pkg/daemon/unixsocket"
	"github.com/carillonhq/carillon/pkg/internal/connlimit"
	"github.com/carillonhq/carillon/pkg/wake"
)

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
		zap.String("version", Version()), zap.NamedError("missing", l.listenError()))
}
