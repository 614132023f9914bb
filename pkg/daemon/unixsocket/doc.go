// Package unixsocket opens the API's unix socket, and determines which users of the host need no
// token on it: root, the daemon's user, and the members of the group carillon.
//
// A listener holds a lock file beside the socket, so that two daemons cannot
// replace each other's socket. Listen replaces the socket of a daemon that was killed. It
// fails if another process listens there, if the path is another kind of file, or if other users could
// replace the socket.
package unixsocket
