package httpaction

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// Errors of writes that the gate refused.
var (
	errOtherConn   = errors.New("the connection broke before a complete response arrived")
	errPastDue     = errors.New("the deadline had passed")
	errStaleConn   = errors.New("the target had closed the connection")
	errNoRequest   = errors.New("no request belongs to this write")
	errAttemptOver = errors.New("the attempt has ended")
)

// gate decides about each write of one attempt. It is below TLS and net/http, whose own rules about repeating requests
// differ between releases of Go.
//
//	Write allowed  ⇔  the attempt has not been killed and has not ended,
//	                  its deadline on CLOCK_BOOTTIME has not passed, its session still allows it, and
//	                  its hop has not been written to another connection
//
// Its fields above mu do not change.
type gate struct {
	boot        func() time.Duration
	deadline    time.Duration      // on the clock of boot
	mayStart    func() error       // called directly before the first write of the attempt
	mayContinue func() error       // called directly before each write; nil: nothing to ask
	onStarted   func(at time.Time) // called once when the first write was allowed; nil: none
	calledOff   <-chan struct{}    // closed by the first kill
	refused     *prometheus.CounterVec

	reported sync.Once // the call of onStarted

	mu        sync.Mutex
	closed    error     // why nothing may be written any more; nil: it may
	notBegun  error     // the error of mayStart or mayContinue that refused the first write
	startedAt time.Time // when the first write was allowed; zero: none was
}

// closeFor makes all further writes of the attempt fail with an error. The first call decides which.
func (g *gate) closeFor(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.closed == nil {
		g.closed = err
	}
}

// closedFor returns why nothing may be written any more, or nil.
func (g *gate) closedFor() error {
	g.mu.Lock()
	defer g.mu.Unlock()

	return g.closed
}

// began returns when the first write was allowed; the zero time if none was. Without one, nothing of the attempt has
// left this host.
func (g *gate) began() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()

	return g.startedAt
}

// refusedStart returns the error with which the executor refused the first write, or nil.
func (g *gate) refusedStart() error {
	g.mu.Lock()
	defer g.mu.Unlock()

	return g.notBegun
}

// hopGate is the part of the gate that belongs to one hop: the request itself, or one that follows a redirect.
type hopGate struct {
	*gate
	// These are guarded by gate.mu.
	conn   *gatedConn // the connection to which the hop was written; nil: none
	reused bool       // the last connection that was chosen had been used before

	trace httptrace.ClientTrace // by which net/http tells the connection that it has chosen
}

// mayTryAgain reports whether the hop failed only because the target had closed a connection that had been used before:
// nothing of the hop was written, and nothing forbids to write.
func (h *hopGate) mayTryAgain() bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	return h.closed == nil && h.conn == nil && h.reused
}

// admit decides about one write of the hop to a connection. After nil the caller writes at once. It calls the executor
// while it holds mu, so that a write that a kill has forbidden cannot be the first one. The deadline is checked again as
// the last step: what happens between this check and the system call is what a freeze can still delay.
func (h *hopGate) admit(c *gatedConn) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	// A kill counts from the moment it is ordered, even if the attempt's goroutine has not received it yet.
	select {
	case <-h.calledOff:
		if h.closed == nil {
			h.closed = errKilled
		}
	default:
	}

	switch {
	case h.closed != nil:
		return h.closed
	case h.conn != nil && h.conn != c:
		h.refused.WithLabelValues("second_connection").Inc()
		return errOtherConn
	case h.boot() >= h.deadline:
		h.refused.WithLabelValues("deadline").Inc()
		h.closed = errPastDue
		return h.closed
	case h.conn == nil && c.isStale():
		h.refused.WithLabelValues("closed_connection").Inc()
		return errStaleConn
	}

	first := h.startedAt.IsZero()
	if err := h.askExecutor(first); err != nil {
		h.closed = err
		if first {
			h.notBegun = err
		}
		return err
	}

	if h.boot() >= h.deadline {
		h.refused.WithLabelValues("deadline").Inc()
		h.closed = errPastDue
		return h.closed
	}

	h.conn = c
	if first {
		h.startedAt = time.Now()
	}

	return nil
}

// reportStart calls onStarted if something was written. Only the first call does, and the others wait for it.
func (g *gate) reportStart() {
	at := g.began()
	if at.IsZero() || g.onStarted == nil {
		return
	}

	g.reported.Do(func() { g.onStarted(at) })
}

// askExecutor asks whether the attempt may start, or continue.
func (h *hopGate) askExecutor(first bool) error {
	if h.mayContinue != nil {
		if err := h.mayContinue(); err != nil {
			return err
		}
	}

	if first && h.mayStart != nil {
		return h.mayStart()
	}

	return nil
}

// gatedConn is a connection whose writes the gate of the current hop decides about. It embeds the interface, not
// *net.TCPConn, so that net/http cannot bypass Write with ReadFrom.
type gatedConn struct {
	net.Conn
	raw syscall.RawConn
	hop atomic.Pointer[hopGate] // the current hop; settledHop: its response has arrived; nil: there was none yet
	// isOpen is set when the connection may carry requests. Before that, writes belong to the TLS handshake.
	isOpen atomic.Bool

	// These belong to the goroutine that sends the current hop.
	wasUsed     bool          // it has carried a request before
	userTimeout time.Duration // the value of TCP_USER_TIMEOUT
	poll        func(uintptr) // c.pollReadable; allocated once
	readable    bool          // the result of poll
}

// settledHop takes the place of a hop whose response has arrived completely. Nothing is in progress then, and an idle connection
// keeps nothing of the attempt, which may contain secrets.
var settledHop = &hopGate{}

// newGatedConn returns a connection over which nothing was sent yet.
func newGatedConn(conn *net.TCPConn) (*gatedConn, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}

	c := &gatedConn{Conn: conn, raw: raw, userTimeout: maxUserTimeout}
	c.poll = c.pollReadable

	return c, nil
}

// Write writes if the gate admits it. Otherwise it closes the connection: nobody may write what net/http still has in
// its buffers.
func (c *gatedConn) Write(b []byte) (int, error) {
	err := errNoRequest
	h := c.hop.Load()
	switch {
	case h == nil && !c.isOpen.Load():
		err = nil
	case h != nil && h != settledHop:
		err = h.admit(c)
	}

	if err != nil {
		c.Close()
		return 0, err
	}

	n, err := c.Conn.Write(b)
	if h != nil {
		h.reportStart() // after the write, which must follow the check at once
	}

	return n, err
}

// Close closes the connection. If nothing is in progress, the target sees the usual end of a connection. Otherwise what
// was not delivered is discarded, and the target sees a reset, by which it can tell that nobody waits for the response.
func (c *gatedConn) Close() error {
	if c.hop.Load() == settledHop {
		_ = c.raw.Control(func(fd uintptr) { // the connection may be closed already
			if unsent, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err == nil && unsent == 0 {
				_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
			}
		})
	}

	return c.Conn.Close()
}

// settle notes that the response to the hop has arrived completely.
func (h *hopGate) settle() {
	h.mu.Lock()
	c := h.conn
	h.mu.Unlock()

	// The connection may belong to another hop already.
	if c != nil {
		c.hop.CompareAndSwap(h, settledHop)
	}
}

// bindHop makes a connection that net/http has chosen belong to a hop. limit is the value for TCP_USER_TIMEOUT.
func bindHop(conn net.Conn, h *hopGate, reused bool, limit time.Duration) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}

	c, ok := conn.(*gatedConn)
	if !ok {
		conn.Close() // cannot be, because all connections come from dialer
		return
	}

	h.mu.Lock()
	h.reused = reused
	h.mu.Unlock()

	c.wasUsed = reused
	c.setUserTimeout(limit)
	c.hop.Store(h)
}

// setUserTimeout limits how long the kernel sends data again that the target does not acknowledge.
func (c *gatedConn) setUserTimeout(limit time.Duration) {
	if limit <= 0 || limit == c.userTimeout {
		return
	}

	c.userTimeout = limit
	_ = c.raw.Control(func(fd uintptr) { _ = setUserTimeout(int(fd), limit) }) // a closed connection fails at the next write
}

// isStale reports whether the target has closed a connection that was used before, or has sent something that nobody has
// asked for, such as an error before it closes. net/http learns that a moment later than the kernel; a request that is
// written in between is lost, or would receive the wrong response.
func (c *gatedConn) isStale() bool {
	if !c.wasUsed {
		return false
	}

	err := c.raw.Control(c.poll)

	return err != nil || c.readable
}

// pollReadable sets readable: something has arrived, or the connection has ended in any way.
func (c *gatedConn) pollReadable(fd uintptr) {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], 0)
	c.readable = n > 0 || err != nil && !errors.Is(err, unix.EINTR)
}
