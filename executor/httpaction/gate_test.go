package httpaction

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/task"
)

// newTracedRunner returns a runner that calls gotConn between the moment at which net/http has chosen a connection and
// the write. boot is its clock.
func newTracedRunner(t *testing.T, boot func() time.Duration, gotConn func(reused bool)) *Runner {
	t.Helper()

	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { gotConn(i.Reused) }})
	r, err := New(ctx, Config{Rules: func() (Rules, error) { return Rules{HTTP: loopback}, nil }, Boot: boot})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(r.Close)

	return r
}

// The context of a request that is canceled at this moment races with the goroutine of net/http that writes.
func TestGate_KilledWhenAConnectionWasChosenWritesNothing(t *testing.T) {
	p := newProbe(t)
	var onConn func()
	reusedConns := 0
	r := newTracedRunner(t, nil, func(reused bool) {
		if reused {
			reusedConns++
		}
		if onConn != nil {
			onConn()
		}
	})

	for i := range 1000 {
		if i%2 == 0 {
			// The kill closes the connection, so each attempt needs one that another request has opened.
			onConn = nil
			if res := run(r, task.HTTP{URL: p.url + "/ok"}); res.State != task.Succeeded {
				t.Fatalf("%+v", res)
			}
		}

		a, seen := newAttempt(task.HTTP{Method: []string{http.MethodGet, http.MethodPost}[i/2%2], URL: p.url + "/ok"})
		o := process.NewOrders()
		onConn = func() { o.Kill(process.Kill{Cause: process.CauseCancel}) }

		res := r.RunAttempt(a, o)
		if n := len(p.arrivalsOf(a.Token)); n != 0 || !res.NotStarted || seen.asked != 0 {
			t.Fatalf("%d arrivals, MayStart was called %d times, %+v", n, seen.asked, res)
		}
	}

	if reusedConns < 400 {
		t.Errorf("only %d connections were reused", reusedConns)
	}
}

func TestGate_FrozenPastTheDeadlineWritesNothing(t *testing.T) {
	p := newProbe(t)
	var now atomic.Int64
	var frozen time.Duration
	r := newTracedRunner(t, func() time.Duration { return time.Duration(now.Load()) }, func(bool) { now.Add(int64(frozen)) })

	for i := range 200 {
		frozen = 0
		if i%2 == 0 {
			run(r, task.HTTP{URL: p.url + "/ok"})
		}

		a, seen := newAttempt(task.HTTP{Method: http.MethodPost, URL: p.url + "/ok", Body: "x"})
		frozen = a.Timeout.Std() // the host sleeps for as long as the attempt may take

		res := r.RunAttempt(a, process.NewOrders())
		if n := len(p.arrivalsOf(a.Token)); n != 0 || !res.Unsent || res.Reason != task.ReasonUnsent || seen.asked != 0 {
			t.Fatalf("%d arrivals, %+v", n, res)
		}
	}

	frozen -= 1
	a, _ := newAttempt(task.HTTP{Method: http.MethodPost, URL: p.url + "/ok", Body: "x"})
	a.Timeout = task.Duration(frozen + 1)
	if res := r.RunAttempt(a, process.NewOrders()); res.State != task.Succeeded {
		t.Errorf("frozen for less than the timeout: %+v", res)
	}
}

// A request is written in parts. Those that would follow a freeze are not written.
func TestGate_FrozenWhileItWritesStops(t *testing.T) {
	p := newProbe(t)
	var now atomic.Int64
	r := newTracedRunner(t, func() time.Duration { return time.Duration(now.Load()) }, func(bool) {})

	for _, method := range []string{http.MethodPost, http.MethodPut} {
		a, _ := newAttempt(task.HTTP{Method: method, URL: p.url + "/ok", Body: strings.Repeat("x", 1<<20)})
		a.OnStarted = func(time.Time) { now.Add(int64(a.Timeout)) }

		res := r.RunAttempt(a, process.NewOrders())
		want := map[string]task.State{http.MethodPost: task.Lost, http.MethodPut: task.TimedOut}[method]
		if res.State != want || res.Reason != task.ReasonUnanswered || res.Unsent {
			t.Errorf("%s: %+v", method, res)
		}
	}
}

// The session of an attempt may end while it runs.
func TestGate_AsksTheExecutorBeforeEachWrite(t *testing.T) {
	p := newProbe(t)
	r := newRunner(t, nil)

	asked := 0
	a, _ := newAttempt(task.HTTP{Method: http.MethodPost, URL: p.url + "/ok", Body: strings.Repeat("x", 1<<20)})
	a.MayContinue = func() error {
		if asked++; asked > 1 {
			return process.ErrTooLate
		}
		return nil
	}

	if res := r.RunAttempt(a, process.NewOrders()); res.State != task.Lost || res.Reason != task.ReasonUnanswered {
		t.Errorf("%+v", res)
	}

	a, seen := newAttempt(task.HTTP{Method: http.MethodPost, URL: p.url + "/ok"})
	a.MayContinue = func() error { return process.ErrTooLate }
	if res := r.RunAttempt(a, process.NewOrders()); !res.NotStarted || seen.asked != 0 || len(p.arrivalsOf(a.Token)) != 0 {
		t.Errorf("%+v", res)
	}
}

// A server that closes an idle connection at the moment at which it is used again does not make the attempt lost.
func TestGate_ClosedIdleConnectionsAreReplaced(t *testing.T) {
	p := newProbe(t)
	r := newTracedRunner(t, nil, func(reused bool) {
		if !reused {
			return
		}

		// The server closes all connections now. net/http may not know that yet when it writes.
		p.mu.Lock()
		for c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
	})

	lost := 0
	for range 200 {
		a, _ := newAttempt(task.HTTP{Method: http.MethodPost, URL: p.url + "/ok", Body: "x"})
		res := r.RunAttempt(a, process.NewOrders())
		switch n := len(p.arrivalsOf(a.Token)); {
		case res.State == task.Lost && n == 0:
			lost++ // the kernel of a busy machine delivers the end of the connection after the check
		case res.State != task.Succeeded || n != 1:
			t.Errorf("%d arrivals, %+v", n, res)
		}
	}

	// Without the check, more than 80 are.
	if lost > 10 {
		t.Errorf("%d of 200 attempts were lost", lost)
	}
}

// With these options, neither the kernel nor a closed connection delivers the rest of a request later.
func TestDial_SetsOptions(t *testing.T) {
	p := newProbe(t)
	var conn net.Conn
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { conn = i.Conn }})
	r, err := New(ctx, Config{Rules: func() (Rules, error) { return Rules{HTTP: loopback}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()

	for _, tt := range []struct{ lostAfter, want time.Duration }{{0, maxUserTimeout}, {20 * time.Second, 5 * time.Second}, {time.Hour, maxUserTimeout}} {
		a, _ := newAttempt(task.HTTP{URL: p.url + "/ok"})
		a.LostAfter = task.Duration(tt.lostAfter)
		want := min(tt.want, a.EffectiveLostAfter().Std()/4)
		if res := r.RunAttempt(a, process.NewOrders()); res.State != task.Succeeded {
			t.Fatalf("%+v", res)
		}

		err := conn.(*gatedConn).raw.Control(func(fd uintptr) {
			linger, err := unix.GetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER)
			if err != nil || linger.Onoff != 1 || linger.Linger != 0 {
				t.Errorf("SO_LINGER %+v, %v", linger, err)
			}

			limit, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
			if err != nil || limit != int(want.Milliseconds()) {
				t.Errorf("lost_after %s: TCP_USER_TIMEOUT %d ms, want %s; %v", tt.lostAfter, limit, want, err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Targets should not see errors in their logs whenever an idle connection ends.
func TestGatedConn_EndsIdleConnectionsNormally(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()

	// The target answers the first request of each connection, and notes how the connection ended.
	ended := make(chan error, 1)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}

			b := make([]byte, 64<<10)
			n, _ := c.Read(b)
			if strings.HasPrefix(string(b[:n]), "GET /ok") {
				respond(c, "200 OK", "", "hello")
			}
			_, err = c.Read(b)
			ended <- err
			c.Close()
		}
	}()

	r := newRunner(t, nil)
	if res := run(r, task.HTTP{URL: "http://" + ln.Addr().String() + "/ok"}); res.State != task.Succeeded {
		t.Fatalf("%+v", res)
	}
	r.CloseIdle()
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("an idle connection ended with %v", err)
	}

	a, _ := newAttempt(task.HTTP{URL: "http://" + ln.Addr().String() + "/silent"})
	o := process.NewOrders()
	a.OnStarted = func(time.Time) {
		time.AfterFunc(20*time.Millisecond, func() { o.Kill(process.Kill{Cause: process.CauseCancel}) })
	}
	r.RunAttempt(a, o)
	if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection of a killed attempt ended with %v", err)
	}
}

// An attempt has secrets in memory. A connection that outlives it must not keep it.
func TestHopGate_SettledConnectionsForgetTheHop(t *testing.T) {
	c := &gatedConn{}
	first, second := &hopGate{gate: &gate{}, conn: c}, &hopGate{gate: &gate{}}

	c.hop.Store(first)
	first.settle()
	if c.hop.Load() == first {
		t.Error("an idle connection keeps its last hop")
	}

	c.hop.Store(second)
	first.settle()
	if c.hop.Load() != second {
		t.Error("a connection has lost its current hop")
	}
}

// What arrives on a connection between two requests belongs to neither: it would be taken for the response to the next one.
func TestGatedConn_IsStale(t *testing.T) {
	for _, c := range []struct {
		name  string
		does  func(target net.Conn)
		used  bool
		stale bool
	}{
		{"new", func(net.Conn) {}, false, false},
		{"idle", func(net.Conn) {}, true, false},
		{"closed", func(target net.Conn) { target.Close() }, true, true},
		{"received something", func(target net.Conn) { _, _ = io.WriteString(target, "HTTP/1.1 408 Request Timeout\r\n\r\n") }, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()

			conn, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()

			target, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer target.Close()

			g, err := newGatedConn(conn.(*net.TCPConn))
			if err != nil {
				t.Fatal(err)
			}

			g.wasUsed = c.used
			c.does(target) // on the loopback interface, it has arrived afterwards

			if got := g.isStale(); got != c.stale {
				t.Errorf("isStale() = %v, want %v", got, c.stale)
			}
		})
	}
}
