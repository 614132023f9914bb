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
// socket activation), and on which the API listens instead of opening its own. The service
// manager keeps them open, too, while the daemon does not run. Connections
// then wait for the next daemon, and no other program can listen there.
type Sockets struct {
	Unix *os.File // listens at Addresses.Socket; nil: the daemon opens the socket
	TCP  *os.File // listens at Addresses.Listen; nil: the daemon opens the socket
}

// Addresses holds the settings for the addresses of the API.
type Addresses struct {
	Socket string // path of the unix socket; "": not set
	Listen string // host:port
}

// InheritSockets takes over the sockets that the service manager has passed to this process, and
// removes the variables that describe them from the environment. Processes that are
// started later inherit neither. If settings.Socket is empty, it is set to the path of the
// inherited unix socket.
//
// Sockets at other addresses are closed, so that clients find a closed port rather
// than one that never answers.
func InheritSockets(settings *Addresses, log *zap.Logger) Sockets {
	files := activation.Files(true)
	_ = os.Unsetenv("LISTEN_PIDFDID") // set by systemd 259 and later; the library does not remove it yet

	return matchSockets(files, settings, log.Named("inherited"))
}

// matchSockets returns the sockets at the addresses of the settings, and closes the others.
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

// keepSocket stores a socket if its address is one of the settings.
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
		// Nodes detect the crash of another node because its port refuses connections. It
		// would not refuse them if the service manager held the port.
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

// keepSocket stores a socket in place if its address equals the value of the setting.
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

// listeningAddress returns the address at which a socket accepts connections.
func listeningAddress(f *os.File) (net.Addr, error) {
	if err := checkListening(f); err != nil {
		return nil, err
	}

	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}

	return l.Addr(), l.Close() // closes a copy of the descriptor
}

// checkListening returns an error if the file is not a socket or does not listen.
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

// discardSocket shuts a socket down and closes it. Closing alone is not enough: the service
// manager has a copy, so clients could still connect and would wait for an answer forever.
func discardSocket(f *os.File) {
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }) // fails if it is not a socket
	}
	_ = f.Close() // nothing was written
}

// ListenInherited returns a listener on the inherited socket f, or the result of open if f is nil. It may be called
// several times, because the inherited socket stays open.
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

// Close closes this process's copies of the sockets. The service manager has its own.
func (s Sockets) Close() {
	for _, f := range []*os.File{s.Unix, s.TCP} {
		if f != nil {
			_ = f.Close() // nothing was written
		}
	}
}
