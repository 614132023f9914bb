// Package unixsocket opens the API's unix socket, and says which users of the host need no
// token on it: root, the daemon's own user, and the members of the group carillon.
//
// Listen holds a lock beside the socket while it listens, so that two daemons never
// replace each other's socket. It replaces the socket of a daemon that was killed, and
// fails if somebody listens there, if the path is a file, or if other users could put
// another socket in its place.
package unixsocket
