package connlimit

import (
	"errors"
	"net"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PeerUID returns the user who connected to a unix socket, as recorded by the kernel. It returns false for other
// connections.
func PeerUID(c net.Conn) (uid uint32, ok bool) {
	peer, ok := peerOf(c)
	return peer.Uid, ok
}

// PeerInGroup reports whether the process that connected to a unix socket was in a group of this host, by its
// primary group or another one. The kernel recorded its groups when it connected.
func PeerInGroup(c net.Conn, gid uint32) bool {
	peer, ok := peerOf(c)
	return ok && (peer.Gid == gid || slices.Contains(groupsOf(c), gid))
}

// PeerProcess returns the process that connected to a unix socket. The caller closes its PIDFD. An error means that the
// process is not known, for example because it has ended.
func PeerProcess(c net.Conn) (Process, error) {
	peer, ok := peerOf(c)
	if !ok {
		return Process{PIDFD: -1}, errors.New("not a unix socket")
	}

	p := Process{PID: int(peer.Pid), PIDFD: -1}

	var err error
	withDescriptor(c, func(fd int) { p.PIDFD, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD) })

	switch {
	case err == nil:
		p.Certain = p.PIDFD >= 0
		return p, nil
	case !errors.Is(err, unix.ENOPROTOOPT):
		p.PIDFD = -1
		return p, os.NewSyscallError("getsockopt SO_PEERPIDFD", err)
	case p.PID == 0:
		p.PIDFD = -1
		return p, nil
	}

	// Before Linux 6.5, the kernel reports only the number; before 5.3, it has no pidfds.
	if p.PIDFD, err = unix.PidfdOpen(p.PID, 0); err != nil {
		p.PIDFD = -1
	}
	if errors.Is(err, unix.ENOSYS) {
		err = nil
	}

	return p, os.NewSyscallError("pidfd_open", err)
}

// peerOf returns the credentials of the process that connected to a unix socket.
func peerOf(c net.Conn) (peer unix.Ucred, ok bool) {
	withDescriptor(c, func(fd int) {
		credentials, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			peer, ok = *credentials, true
		}
	})

	return peer, ok
}

// groupsOf returns the supplementary groups of that process, or nil if they are not known: kernels before 4.13 do
// not record them.
func groupsOf(c net.Conn) (groups []uint32) {
	withDescriptor(c, func(fd int) {
		// If the list is too short, the kernel returns the required size.
		list := make([]uint32, 64)
		size, errno := peerGroups(fd, list)
		if errno == unix.ERANGE {
			list = make([]uint32, size)
			size, errno = peerGroups(fd, list)
		}

		if errno == 0 {
			groups = list[:size]
		}
	})

	return groups
}

// peerGroups stores the groups of a socket's peer in list, and returns how many there are. ERANGE means that list
// is too short.
func peerGroups(fd int, list []uint32) (n int, errno syscall.Errno) {
	const entry = uint32(unsafe.Sizeof(list[0]))
	size := uint32(len(list)) * entry

	_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
		uintptr(unsafe.Pointer(unsafe.SliceData(list))), uintptr(unsafe.Pointer(&size)), 0)
	return int(size / entry), errno
}

// withDescriptor calls f with the descriptor of a connection, if it is a unix socket.
func withDescriptor(c net.Conn, f func(fd int)) {
	socket, isUnix := c.(*net.UnixConn)
	if !isUnix {
		return
	}

	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) }) // fails if the connection is closed
	}
}
