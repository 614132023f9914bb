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

// apiListeners are the addresses at which the API listens: the one in the network, and
// the unix socket, if there is one.
type apiListeners struct {
	cfg       Config
	endpoints []*endpoint
	tcp       *endpoint // one of them
	limiters  []*connlimit.Limiter
	announce  wake.Signal // sent when an endpoint listens that did not before
	log       *zap.Logger
}

// newAPIListeners prepares the listeners; httpServer opens them.
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

func (l *apiListeners) addEndpoint(address string, limiter *connlimit.Limiter, opener listenerOpener) *endpoint {
	e := &endpoint{address: address, listener: opener, log: l.log, announce: l.announce}
	l.endpoints, l.limiters = append(l.endpoints, e), append(l.limiters, limiter)
	return e
}

// tcpOpener opens the API's listener in the network.
type tcpOpener struct {
	address string
	env     Environment
	limiter *connlimit.Limiter
	tls     nodeTLS
}

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
	inherited *os.File // nil: the socket is the daemon's own
	admins    unixsocket.Administrators
	limiter   *connlimit.Limiter
}

func (o *socketOpener) openListener() (net.Listener, error) {
	l, err := systemd.ListenInherited(o.inherited, func() (net.Listener, error) { return unixsocket.Listen(o.path, o.admins) })
	if err != nil {
		return nil, err
	}
	return o.limiter.Listener(l), nil
}

// listenError says where the API does not listen, and why; nil if it listens everywhere.
func (l *apiListeners) listenError() error {
	for _, e := range l.endpoints {
		if _, err := e.listeningAddr(); err != nil {
			return fmt.Errorf("the API does not listen on %s: %w", e.address, err)
		}
	}

	return nil
}

// advertisedAddress is where other nodes reach the API.
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

// announcedAddress is where others reach the API; "" while it does not listen there. Peers
// would otherwise take a refused connection for a crash, and reach whoever holds the port.
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

// logListening logs where the API listens.
func (l *apiListeners) logListening() {
	l.log.Info("listening", zap.String("node", l.cfg.Name), zap.String("address", l.announcedAddress()), zap.String("socket", l.cfg.Socket),
		zap.String("version", Version()), zap.NamedError("missing", l.listenError()))
}
