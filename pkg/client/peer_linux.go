package client

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// The states of a TCP socket in /proc/net/tcp.
const (
	tcpEstablished = "01"
	tcpListen      = "0A"
)

// ownersOfServer returns the users who can read what is sent over a connection to a server on this host: the
// owners of the sockets that listen on its address, and the owner of the accepted connection.
//
// The listening sockets are read first. A connection that has not been accepted yet has no owner; the kernel
// lists it with uid 0. It belongs to the listening socket, and is reset when that is closed. So if the
// connection is not accepted when it is read afterwards, it belongs to the listener that was read before. If it
// was accepted, the kernel lists the user who accepted it, even if another program listens by then. A socket
// that a service manager has created and passed on belongs to the service manager's user until a connection is
// accepted.
//
// The kernel returns the list of sockets over several reads, and can omit a socket while others come and go. So
// the lists are read several times before ownersOfServer returns errServerGone.
func ownersOfServer(local, remote *net.TCPAddr) (uids []int, err error) {
	const tries = 5

	for range tries {
		if uids, err = listOwnersOfServer(local, remote); !errors.Is(err, errServerGone) {
			break
		}
	}

	return uids, err
}

// listOwnersOfServer is one attempt of ownersOfServer.
func listOwnersOfServer(local, remote *net.TCPAddr) ([]int, error) {
	var uids []int
	listening, err := socketsOf(func(s socketRow) bool {
		return s.state == tcpListen && s.local.Port == remote.Port && (s.local.IP.IsUnspecified() || s.local.IP.Equal(remote.IP))
	})

	if err != nil {
		return nil, err
	}
	if len(listening) == 0 {
		return nil, fmt.Errorf("no program listens there: %w", errServerGone)
	}

	accepted, err := socketsOf(func(s socketRow) bool {
		return s.state == tcpEstablished && s.local.Port == remote.Port && s.local.IP.Equal(remote.IP) &&
			s.remote.Port == local.Port && s.remote.IP.Equal(local.IP)
	})

	if err != nil {
		return nil, err
	}
	if len(accepted) == 0 {
		return nil, fmt.Errorf("the connection has ended: %w", errServerGone)
	}

	for _, s := range slices.Concat(listening, accepted) {
		uids = append(uids, s.uid)
	}

	return uids, nil
}

// socketRow is one line of /proc/net/tcp.
type socketRow struct {
	local, remote net.TCPAddr
	state         string
	uid           int
}

// socketsOf returns the matching TCP sockets of this network namespace.
func socketsOf(match func(socketRow) bool) (list []socketRow, err error) {
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) && path == "/proc/net/tcp6" {
			continue // the kernel has no IPv6
		}
		if err != nil {
			return nil, err
		}

		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if s, ok := parseSocketRow(lines.Text()); ok && match(s) {
				list = append(list, s)
			}
		}

		err = errors.Join(lines.Err(), f.Close())
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
	}

	return list, nil
}

// parseSocketRow parses a line of /proc/net/tcp: number, local and remote address, state, two pairs of numbers,
// a counter, and the uid.
func parseSocketRow(line string) (s socketRow, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 8 {
		return s, false
	}

	var ok1, ok2 bool
	s.local, ok1 = parseSocketAddress(fields[1])
	s.remote, ok2 = parseSocketAddress(fields[2])
	uid, err := strconv.Atoi(fields[7])
	s.state, s.uid = fields[3], uid

	return s, ok1 && ok2 && err == nil
}

// parseSocketAddress parses an address such as 0100007F:1F90: the IP address as 32-bit words in the machine's
// byte order, and the port.
func parseSocketAddress(text string) (a net.TCPAddr, ok bool) {
	address, port, _ := strings.Cut(text, ":")
	p, err := strconv.ParseUint(port, 16, 16)
	b, err2 := hex.DecodeString(address)
	if err != nil || err2 != nil || len(b) != net.IPv4len && len(b) != net.IPv6len {
		return a, false
	}

	for i := 0; i < len(b); i += 4 {
		word := hostOrder(b[i : i+4])
		copy(b[i:], word[:])
	}

	return net.TCPAddr{IP: net.IP(b), Port: int(p)}, true
}

// checkUnix checks who listens on a socket. It accepts a trusted user, and any user if only root can create
// files in the socket's directory, because root then has permitted the socket.
func (p peerCheck) checkUnix(c net.Conn, path string) error {
	if p.insecure {
		return nil
	}

	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return err
	}

	var peer *syscall.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		peer, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})

	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("determine which user listens at %s: %w", path, err)
	}
	if p.trustsUser(int(peer.Uid)) || onlyRootWrites(filepath.Dir(path)) {
		return nil
	}

	return &untrusted{
		why:  fmt.Sprintf("the program that listens at %s belongs to user %d, in a directory that users other than root can write to", path, peer.Uid),
		hint: riskHint}
}

// onlyRootWrites reports whether a directory and all its parents belong to root and only root can write to
// them.
func onlyRootWrites(dir string) bool {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}

	for {
		info, err := os.Lstat(dir)
		if err != nil || info.Mode().Perm()&0o022 != 0 {
			return false
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 0 {
			return false
		}

		up := filepath.Dir(dir)
		if up == dir {
			return true
		}

		dir = up
	}
}

// hostOrder converts a word that was printed as a number to the bytes in memory, which are in network order.
func hostOrder(b []byte) (word [4]byte) {
	binary.NativeEndian.PutUint32(word[:], binary.BigEndian.Uint32(b))
	return word
}
