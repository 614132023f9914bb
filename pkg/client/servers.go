package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// dialTimeout limits how long a connection to one of several servers may take. A host that is off does not refuse
// connections, so without a limit it would use up the time of the whole call.
const dialTimeout = 5 * time.Second

// server is one address of the API.
type server struct {
	base   string // the address as the user configured it, for messages
	target string // the URL to which paths are appended
	http   *http.Client
}

// servers are the addresses of the nodes of one cluster. Calls go to the one that answered last. It is safe for concurrent
// use.
type servers struct {
	list    []*server
	current atomic.Int32 // the index of the server for the next call
}

// preferred returns the server for the next call.
func (s *servers) preferred() *server { return s.list[s.current.Load()] }

// splitServers returns the addresses in Config.Server.
func splitServers(text string) ([]string, error) {
	var list []string
	for _, address := range strings.Split(text, ",") {
		base, err := parseServer(strings.TrimSpace(address))
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(address) == "" && strings.Contains(text, ",") {
			return nil, task.Invalid(task.CodeBadValue, "server", "%s: an address is empty; write URL,URL", task.Quote(text))
		}

		list = append(list, base)
	}

	return list, nil
}

// try calls send for one server after another, beginning with the preferred one, until one of them answers. A call goes to
// a further server only if that cannot repeat a change: see mayRepeat. Without an answer, the next call begins with the
// next server.
func (s *servers) try(ctx context.Context, k call, send func(ctx context.Context, to *server) error) error {
	if len(s.list) == 1 {
		return send(ctx, s.list[0])
	}

	first := int(s.current.Load())
	var silent []string // what the servers that did not answer have in common with their errors

	for i := range s.list {
		n := (first + i) % len(s.list)
		left := len(s.list) - i
		err := sendWithin(ctx, k, left, func(ctx context.Context) error { return send(ctx, s.list[n]) })

		var e *Error
		if err == nil || !errors.As(err, &e) || !e.isElsewhere() {
			s.current.Store(int32(n))
			return err
		}

		s.current.Store(int32((n + 1) % len(s.list)))
		if e.Status == 0 {
			silent = append(silent, e.Message)
		}

		if left > 1 && ctx.Err() == nil && k.mayRepeat(e) {
			continue
		}
		if len(silent) > 1 && e.Status == 0 {
			e.Message = "no server answers: " + strings.Join(silent, "; ")
		}

		return err
	}

	return nil
}

// sendWithin sends a call to one server. left is how many servers have not been tried, including this one: each gets its
// share of the time that remains, so that a server that is silent leaves time for the others. A stream, a request that waits
// for something, and a change that cannot be repeated get all of the time.
func sendWithin(ctx context.Context, k call, left int, send func(context.Context) error) error {
	end, hasEnd := ctx.Deadline()
	if left == 1 || !hasEnd || k.stream || k.waits() || !k.isRepeatable() {
		return send(ctx)
	}

	ctx, cancel := context.WithTimeout(ctx, time.Until(end)/time.Duration(left))
	defer cancel()

	return send(ctx)
}

// isElsewhere reports whether another server may give a different answer: this one did not answer, or cannot serve now.
func (e *Error) isElsewhere() bool {
	switch e.Status {
	case 0:
		return e.Code == CodeUnavailable || e.Code == CodeUnknown
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}

	return false
}

// isRepeatable reports whether a call does the same if it is sent twice: a read, or a change with an idempotency key.
func (k call) isRepeatable() bool { return !k.mayWrite() || k.header.Get(IdempotencyKeyHeader) != "" }

// mayRepeat reports whether a call that has failed with e may be sent to another server: it does nothing twice, or it
// surely was not sent or not accepted. The body of a batch can be read only once.
func (k call) mayRepeat(e *Error) bool {
	if k.lines != nil {
		return false
	}

	return k.isRepeatable() || e.Status == 0 && e.Code == CodeUnavailable || e.Code == CodeNotReady
}

// waits reports whether the server answers a call only when something has happened.
func (k call) waits() bool { return k.query.Has("wait") }

type serverKey struct{}

// serverOf returns the server that gave an answer.
func (c *connection) serverOf(res *http.Response) *server {
	if res.Request != nil {
		if s, ok := res.Request.Context().Value(serverKey{}).(*server); ok {
			return s
		}
	}

	return c.servers.preferred()
}

// notCarillon is server.notCarillon for the server that gave an answer.
func (c *connection) notCarillon(res *http.Response) *Error { return c.serverOf(res).notCarillon(res) }

// errorWithoutAnswer is server.errorWithoutAnswer for a stream that has begun.
func (c *connection) errorWithoutAnswer(err error, writes bool) *Error {
	return c.servers.preferred().errorWithoutAnswer(err, writes)
}

// Server returns the address of the server to which the next call goes: the one that answered last.
func (c *Client) Server() string { return c.conn.servers.preferred().base }

// Servers returns the addresses of all servers, in the order of Config.Server.
func (c *Client) Servers() []string {
	var list []string
	for _, s := range c.conn.servers.list {
		list = append(list, s.base)
	}

	return list
}

// OnThisHost reports whether the addresses of all servers are unix sockets or loopback addresses.
func (c *Client) OnThisHost() bool {
	for _, s := range c.conn.servers.list {
		if !isOnThisHost(s.base) {
			return false
		}
	}

	return true
}

// isOnThisHost reports whether an address is a unix socket or a loopback address.
func isOnThisHost(base string) bool {
	u, err := url.Parse(base)
	return strings.HasPrefix(base, unixScheme) || err == nil && isLoopback(u.Hostname())
}
