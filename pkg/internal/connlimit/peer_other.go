//go:build !linux

package connlimit

import (
	"errors"
	"net"
)

// PeerUID always returns false: daemons run on Linux.
func PeerUID(net.Conn) (uid uint32, ok bool) { return 0, false }

// PeerInGroup always returns false.
func PeerInGroup(net.Conn, uint32) bool { return false }

// PeerProcess always fails.
func PeerProcess(net.Conn) (Process, error) {
	return Process{PIDFD: -1}, errors.New("not supported on this operating system")
}
