package chaos_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// linkFault is what a link does to the bytes on it. Up is the direction from the side that dialed, Down the way back.
type linkFault struct {
	CutUp, CutDown bool          // bytes wait until this ends, as in a network that drops packets
	Delay          time.Duration // of every byte, in each direction
	Loss           int           // percentage of pieces that are late and delay those behind them, as packet loss does in TCP
	Reset          bool          // connections are reset after a moment, old and new ones
}

var (
	linkCut          = linkFault{CutUp: true, CutDown: true}
	linkCutDown      = linkFault{CutDown: true}
	linkCutUp        = linkFault{CutUp: true}
	linkSlow         = linkFault{Delay: 250 * time.Millisecond}
	linkLossy        = linkFault{Loss: 30}
	linkResetting    = linkFault{Reset: true}
	retransmitDelays = []time.Duration{200, 400, 800} // in ms, as a kernel retransmits
)

// link is a TCP proxy in front of one server. It identifies callers by a header of their first request, if header
// is set.
type link struct {
	target string
	header string // "": all traffic belongs to one caller, named ""
	l      net.Listener
	wg     sync.WaitGroup

	mu      sync.Mutex
	faults  map[string]linkFault // by caller
	changed chan struct{}
	conns   map[net.Conn]string // and who dialled
	closed  bool
}

func openLink(listen, target, header string) (*link, error) {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}

	k := &link{target: target, header: header, l: l, faults: map[string]linkFault{}, changed: make(chan struct{}), conns: map[net.Conn]string{}}
	k.wg.Go(k.accept)

	return k, nil
}

// set changes the fault for a caller.
func (l *link) set(caller string, w linkFault) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.faults[caller] = w
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *link) faultFor(caller string) (linkFault, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.faults[caller], l.changed
}

func (l *link) close() {
	l.mu.Lock()
	l.closed = true
	for c := range l.conns {
		c.Close()
	}

	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()

	l.l.Close()
	l.wg.Wait()
}

func (l *link) accept() {
	for {
		c, err := l.l.Accept()
		if err != nil {
			return
		}
		l.wg.Go(func() { l.serve(c.(*net.TCPConn)) })
	}
}

func (l *link) serve(client *net.TCPConn) {
	defer client.Close()

	if !l.enter(client, "") {
		return
	}

	defer l.leave(client)

	caller, head := "", []byte(nil)
	if l.header != "" {
		if caller, head = firstHeader(client, l.header); !l.enter(client, caller) {
			return
		}
	}

	server, err := net.DialTimeout("tcp", l.target, 5*time.Second)
	if err != nil {
		client.SetLinger(0) // reset the connection, as a host does for a port without a listener
		return
	}

	defer server.Close()

	if !l.enter(server, caller) {
		return
	}

	defer l.leave(server)

	done := make(chan struct{})
	both := sync.OnceFunc(func() { close(done); client.Close(); server.Close() })
	var pipes sync.WaitGroup
	pipes.Go(func() {
		defer both()
		l.pipe(server, io.MultiReader(bytes.NewReader(head), client), caller, true, done)
	})

	pipes.Go(func() { defer both(); l.pipe(client, server, caller, false, done) })
	pipes.Go(func() { defer both(); l.resetting(client, caller, done) })
	pipes.Wait()
}

func (l *link) enter(c net.Conn, caller string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.closed {
		return false
	}

	l.conns[c] = caller

	return true
}

func (l *link) leave(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// piece is some bytes and the time at which they are due.
type piece struct {
	b   []byte
	due time.Time
}

func (l *link) pipe(to io.Writer, from io.Reader, caller string, up bool, done <-chan struct{}) {
	pieces := make(chan piece, 64)
	go func() {
		defer close(pieces)
		for buf := make([]byte, 32<<10); ; {
			n, err := from.Read(buf)
			if n > 0 {
				w, _ := l.faultFor(caller)
				p := piece{bytes.Clone(buf[:n]), time.Now().Add(w.Delay)}
				if rand.IntN(100) < w.Loss {
					p.due = p.due.Add(retransmitDelays[rand.IntN(len(retransmitDelays))] * time.Millisecond)
				}

				select {
				case pieces <- p:
				case <-done:
					return
				}
			}

			if err != nil {
				return
			}
		}
	}()

	for p := range pieces {
		if !l.pass(caller, up, p.due, done) {
			return
		}
		if _, err := to.Write(p.b); err != nil {
			return
		}
	}
}

// pass waits until bytes that are due at a time may continue. It returns false when the connection ends.
func (l *link) pass(caller string, up bool, due time.Time, done <-chan struct{}) bool {
	if wait := time.Until(due); wait > 0 {
		select {
		case <-time.After(wait):
		case <-done:
			return false
		}
	}

	for {
		w, changed := l.faultFor(caller)
		if blocked := up && w.CutUp || !up && w.CutDown; !blocked {
			return true
		}

		select {
		case <-changed:
		case <-done:
			return false
		}
	}
}

// resetting ends the connection with a reset, a moment after the fault requires that.
func (l *link) resetting(client *net.TCPConn, caller string, done <-chan struct{}) {
	for {
		w, changed := l.faultFor(caller)
		var moment <-chan time.Time
		if w.Reset {
			moment = time.After(rand.N(time.Second))
		}

		select {
		case <-moment:
			client.SetLinger(0)
			return
		case <-changed:
		case <-done:
			return
		}
	}
}

// firstHeader reads up to the end of the first request's headers. It returns the value of one of them, and
// everything that it has read.
func firstHeader(c net.Conn, name string) (value string, head []byte) {
	c.SetReadDeadline(time.Now().Add(2 * time.Second))
	defer c.SetReadDeadline(time.Time{})

	for buf := make([]byte, 4096); len(head) < 64<<10 && !bytes.Contains(head, []byte("\r\n\r\n")); {
		n, err := c.Read(buf)
		head = append(head, buf[:n]...)
		if err != nil {
			break
		}
	}

	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		if key, v, ok := bytes.Cut(line, []byte(":")); ok && bytes.EqualFold(key, []byte(name)) {
			return string(bytes.TrimSpace(v)), head
		}
	}

	return "", head
}
