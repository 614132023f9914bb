// Package login implements "carillon login", "carillon logout" and "carillon ui": it saves a token in a context of the
// user's configuration, removes it again, and opens the Web UI with a login link.
//
// A token is saved only after the server has accepted it, and only in the configuration, which no other user can read. The
// secret of a login link is never an argument of another program, because all users of the host can read those.
package login
