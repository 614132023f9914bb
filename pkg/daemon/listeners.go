package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/filetrust"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/connlimit"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

const (
	// socketGroup is the group whose members administer the node over the socket, if the
	// host has it. They need no token.
	socketGroup = "carillon"
	// maxSocketPath is the longest path that the kernel takes for a socket.
	maxSocketPath = 107
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
func newAPIListeners(cfg Config, env Environment, tls nodeTLS, admins administrators, announce wake.Signal, log *zap.Logger) *apiListeners {
	l := &apiListeners{cfg: cfg, announce: announce, log: log}
	descriptors := maxDescriptors()

	limiter := connlimit.New(tcpLimits(descriptors, log))
	l.tcp = l.add(cfg.Listen, limiter, &tcpOpener{address: cfg.Listen, env: env, limiter: limiter, tls: tls})

	if cfg.Socket != "" {
		limiter := connlimit.New(socketLimits(descriptors, admins, log))
		l.add(cfg.Socket, limiter, &socketOpener{path: cfg.Socket, inherited: env.inherited.unix, admins: admins, limiter: limiter})
	}

	return l
}

func (l *apiListeners) add(address string, limiter *connlimit.Limiter, opener listenerOpener) *endpoint {
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

func (o *tcpOpener) open() (net.Listener, error) {
	l, err := listenInherited(o.env.inherited.tcp, func() (net.Listener, error) { return o.env.Listen("tcp", o.address) })
	if err != nil {
		return nil, err
	}
	return o.tls.listener(o.limiter.Listener(l)), nil
}

// socketOpener opens the API's unix socket.
type socketOpener struct {
	path      string
	inherited *os.File // nil: the socket is the daemon's own
	admins    administrators
	limiter   *connlimit.Limiter
}

func (o *socketOpener) open() (net.Listener, error) {
	l, err := listenInherited(o.inherited, func() (net.Listener, error) { return listenSocket(o.path, o.admins) })
	if err != nil {
		return nil, err
	}
	return o.limiter.Listener(l), nil
}

// listenError says where the API does not listen, and why; nil if it listens everywhere.
func (l *apiListeners) listenError() error {
	for _, e := range l.endpoints {
		if _, err := e.listening(); err != nil {
			return fmt.Errorf("the API does not listen on %s: %w", e.address, err)
		}
	}

	return nil
}

// address is where other nodes reach the API.
func (l *apiListeners) address() string {
	if l.cfg.Advertise != "" {
		return l.cfg.Advertise
	}

	address := l.cfg.Listen
	if addr, _ := l.tcp.listening(); addr != nil {
		address = addr.String()
	}

	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return l.cfg.scheme() + "://" + address
	}

	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			host = name
		}
	}

	return l.cfg.scheme() + "://" + net.JoinHostPort(host, port)
}

// announcedAddress is where others reach the API; "" while it does not listen there. Peers
// would otherwise take a refused connection for a crash, and reach whoever holds the port.
func (l *apiListeners) announcedAddress() string {
	if _, err := l.tcp.listening(); err != nil {
		return ""
	}
	return l.address()
}

// register registers the metrics of all listeners.
func (l *apiListeners) register(r prometheus.Registerer) {
	for _, limiter := range l.limiters {
		limiter.Register(r)
	}
}

// logListening logs where the API listens.
func (l *apiListeners) logListening() {
	l.log.Info("listening", zap.String("node", l.cfg.Name), zap.String("address", l.announcedAddress()), zap.String("socket", l.cfg.Socket),
		zap.String("version", Version()), zap.NamedError("missing", l.listenError()))
}

// administrators are the users of this host who need no token on the unix socket.
type administrators struct {
	gid     uint32 // of socketGroup
	noGroup bool   // the host has none
}

// lookupAdministrators finds the group whose members they are.
func lookupAdministrators(log *zap.Logger) administrators {
	group, err := user.LookupGroup(socketGroup)
	if err != nil {
		var unknown user.UnknownGroupError
		if !errors.As(err, &unknown) {
			log.Warn("cannot look up the group of the unix socket; its members need a token", zap.String("group", socketGroup), zap.Error(err))
		}
		return administrators{noGroup: true}
	}

	gid, err := strconv.ParseUint(group.Gid, 10, 32)
	if err != nil {
		return administrators{noGroup: true}
	}

	return administrators{gid: uint32(gid)}
}

// peer returns the user who has opened a connection to the unix socket, and true if that
// user needs no token: root and the daemon's own user can do everything that the daemon
// can, and the members of the group have been given the same by the host's administrator.
func (a administrators) peer(c net.Conn) (uid uint32, ok bool) {
	uid, ok = connlimit.PeerUID(c)
	if !ok {
		return 0, false
	}

	own := uid == 0 || int(uid) == os.Geteuid()
	return uid, own || !a.noGroup && connlimit.PeerInGroup(c, a.gid)
}

// connContext has requests know their connection, and who has opened it, if that is a
// user of this host who needs no token.
func (a administrators) connContext(ctx context.Context, c net.Conn) context.Context {
	ctx = connlimit.Context(ctx, c)
	if uid, ok := a.peer(connlimit.Inner(c)); ok {
		ctx = api.WithTrustedUser(ctx, uid)
	}
	return ctx
}

// validateSocket checks the path of the unix socket.
func (c *Config) validateSocket() error {
	if c.Socket == "" {
		return nil
	}
	if !filepath.IsAbs(c.Socket) || filepath.Clean(c.Socket) != c.Socket {
		return task.Invalid(task.CodeBadValue, "socket", "%s is not a clean absolute path", task.Quote(c.Socket))
	}
	if len(c.Socket) > maxSocketPath {
		return task.Invalid(task.CodeTooLong, "socket", "the path of a socket has at most %d bytes, this has %d", maxSocketPath, len(c.Socket))
	}

	return nil
}

// socketListener removes its socket when it is closed.
type socketListener struct {
	*net.UnixListener
	path string
	lock *os.File
}

// listenSocket opens the API's unix socket for root, the daemon's user and the members of
// socketGroup. Only root and the daemon's user may be able to put another socket in its
// place. A socket that a daemon left behind that was killed is replaced; one on which
// somebody listens is not.
func listenSocket(path string, users administrators) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}

	opened, err := filetrust.OpenDir(dir, uint32(os.Geteuid()))
	if err != nil {
		return nil, fmt.Errorf("the directory of the socket: %w", err)
	}

	opened.Close()

	// Two daemons that start together must not both find the socket of a third stale.
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("listen unix %s: another daemon listens there", path), lock.Close())
	}

	l, err := replaceSocket(path, users)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}

	return &socketListener{l, path, lock}, nil
}

// replaceSocket listens on a new socket, and puts it in place of one that nobody uses.
func replaceSocket(path string, users administrators) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("listen unix %s: there is a file that is no socket", path)
		}

		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			return nil, fmt.Errorf("listen unix %s: somebody listens there", path)
		}

		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}

	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}

	l.SetUnlinkOnClose(true)

	if err := shareSocket(path, users); err != nil {
		return nil, errors.Join(err, l.Close())
	}

	return l, nil
}

// shareSocket gives the socket to the group, if there is one and the daemon may.
func shareSocket(path string, users administrators) error {
	if !users.noGroup {
		err := os.Chown(path, -1, int(users.gid))
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}

	return os.Chmod(path, 0o660)
}

// Close stops listening, and removes the socket.
func (l *socketListener) Close() error {
	return errors.Join(l.UnixListener.Close(), l.lock.Close())
}
