// Package systemd communicates with the service manager that started the daemon. It reports
// the node's state (Type=notify) and takes over sockets that the service manager
// has opened (socket activation).
//
// Without a service manager, both do nothing: a nil *Notifier reports nothing, and with the zero
// Sockets the daemon opens its own. A report that cannot be sent, and
// a socket at another address than the settings name, are logged, and the node continues.
package systemd
