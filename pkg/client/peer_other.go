//go:build !linux

package client

import "net"

// ownersOfServer knows of nobody: daemons run on Linux, so that what listens on another
// system's loopback interface is a tunnel.
func ownersOfServer(_, _ *net.TCPAddr) ([]int, error) { return nil, nil }

// checkUnix accepts every socket, for the same reason.
func (p peerCheck) checkUnix(net.Conn, string) error { return nil }
