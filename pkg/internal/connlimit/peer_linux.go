package connlimit

import (
	"net"
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
