// Package systemd is the daemon's side of the service manager that started it: it reports
// the node's state (Type=notify) and takes over the sockets that the service manager
// opened (socket activation).
//
// Without a service manager both do nothing: a nil *Notifier reports nothing, and the zero
// Sockets has the daemon open its own. A service manager that does not receive a report,
// and a socket at another address than the settings name, are logged; the node runs on.
package systemd
