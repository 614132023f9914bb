package systemd

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/coreos/go-systemd/v22/activation"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/daemon/unixsocket"
)

// Sockets are sockets that a service manager opened for this process (systemd's
// socket activation) and on which the API listens instead of opening its own. The service
// manager has them open, too, and may keep them so while the daemon is away: connections
// wait until it is back then, and nobody else can listen there.
type Sockets struct {
	Unix *os.File // at Addresses.Socket; nil: the daemon opens it itself
	TCP  *os.File // at Addresses.Listen; likewise
}

// Addresses are the settings that say where the API listens.
type Addresses struct {
	Socket string // path of the unix socket; "" is no setting
	Listen string // host:port
}

// InheritSockets takes over the sockets that the service manager has passed on, and
// removes the variables that tell of them from the environment. No process that is
// started later inherits either. Without a setting for the unix socket, the path of the
// inherited one is taken.
//
// What the API does not listen on is closed, so that clients find a closed port rather
// than one that never answers.
func InheritSockets(settings *Addresses, log *zap.Logger) Sockets {
	files := activation.Files(true)
	_ = os.Unsetenv("LISTEN_PIDFDID") // of systemd 259 and later, which the library does not know yet

	return matchSockets(files, settings, log.Named("inherited"))
}

// matchSockets finds the sockets at the addresses of the settings.
func matchSockets(files []*os.File, settings *Addresses, log *zap.Logger) (s Sockets) {
	for _, f := range files {
		address, err := listeningAddress(f)
		if err == nil {
			err = s.keepSocket(f, address, settings)
		}

		if err != nil {
			log.Error("ignoring a socket from the service manager", zap.String("socket", f.Name()), zap.Error(err))
			discardSocket(f)
			continue
		}

		log.Info("listening on a socket of the service manager", zap.String("socket", f.Name()), zap.Stringer("address", address))
	}

	return s
}

// keepSocket keeps a socket if the settings have its address.
func (s *Sockets) keepSocket(f *os.File, address net.Addr, settings *Addresses) error {
	switch a := address.(type) {
	case *net.UnixAddr:
		if settings.Socket == "" {
			if err := unixsocket.ValidatePath(a.Name); err != nil {
				return err
			}
			settings.Socket = a.Name
		}

		return keepSocket(&s.Unix, f, a.Name, "socket", settings.Socket)

	case *net.TCPAddr:
		// Nodes notice that another one has crashed when its port refuses connections. It
		// would not if the service manager held the port.
		if !a.IP.IsLoopback() {
			return fmt.Errorf("%s can be reached from other hosts: only the daemon itself may listen there, or other nodes do not notice when it ends", a)
		}

		listen, err := netip.ParseAddrPort(settings.Listen)
		if err != nil {
			return fmt.Errorf("it listens on %s, and listen is %q", a, settings.Listen)
		}

		return keepSocket(&s.TCP, f, a.AddrPort().String(), "listen", listen.String())
	}

	return fmt.Errorf("%s is not an address of the API", address)
}

// keepSocket keeps a socket in its place if its address is that of the setting.
func keepSocket(place **os.File, f *os.File, address, setting, value string) error {
	if address != value {
		return fmt.Errorf("it listens on %q, and %s is %q", address, setting, value)
	}
	if *place != nil {
		return f.Close() // another descriptor of the same socket
	}

	*place = f

	return nil
}

// listeningAddress is where a socket accepts connections.
func listeningAddress(f *os.File) (net.Addr, error) {
	if err := checkListening(f); err != nil {
		return nil, err
	}

	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}

	return l.Addr(), l.Close() // of a copy
}

// checkListening fails for what is no socket, and for a socket that does not listen.
func checkListening(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}

	var listening int
	var failed error
	err = raw.Control(func(fd uintptr) {
		listening, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	})

	if err := errors.Join(err, os.NewSyscallError("getsockopt", failed)); err != nil {
		return err
	}
	if listening == 0 {
		return errors.New("it accepts no connections: set Accept=no and ListenStream= in the unit")
	}

	return nil
}

// discardSocket stops a socket from accepting connections, and closes it. The service
// manager still has a copy, on which clients would wait for an answer that never comes.
func discardSocket(f *os.File) {
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }) // it may be no socket
	}
	_ = f.Close() // nothing was written
}

// ListenInherited returns a listener on an inherited socket, or else the one that open
// opens. A process may do so more than once: the inherited socket stays open.
func ListenInherited(f *os.File, open func() (net.Listener, error)) (net.Listener, error) {
	if f == nil {
		return open()
	}

	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listen on the service manager's socket: %w", err)
	}

	return l, nil
}

// Close gives the sockets back: the service manager has its own copies.
func (s Sockets) Close() {
	for _, f := range []*os.File{s.Unix, s.TCP} {
		if f != nil {
			_ = f.Close() // nothing was written
		}
	}
}
