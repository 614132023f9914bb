package daemon_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// manyHealthChecks have answers that no buffer of a connection can hold. They need no token; other answers to clients
// without one are the last on their connection.
var manyHealthChecks = strings.Repeat("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 20_000)

// attacks are what clients without a token do to hold a connection, and to make it expensive, for as long as they
// can.
var attacks = []struct {
	name string
	do   func(c net.Conn) error
}{
	{"send nothing", func(c net.Conn) error {
		return readAll(c)
	}},
	{"send half a header", func(c net.Conn) error {
		fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ")
		return readAll(c)
	}},
	{"send a body slowly", func(c net.Conn) error {
		fmt.Fprint(c, "POST /v1/tasks:batch HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n{")
		return readAll(c)
	}},
	{"read no answer", func(c net.Conn) error {
		fmt.Fprint(c, manyHealthChecks)
		for { // a write fails when the server has closed the connection
			if _, err := c.Write([]byte("G")); err != nil {
				return err
			}
			time.Sleep(500 * time.Millisecond) // the attack itself is slow
		}
	}},
	{"stay idle after an answer", func(c net.Conn) error {
		fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		return readAll(c)
	}},
	{"guess tokens", func(c net.Conn) error {
		id := []byte(strings.Repeat("a", 16))
		for i := range id {
			id[i] += byte(rand.N(26))
		}
		fmt.Fprintf(c, "GET /v1/tasks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer carillon_%s_%s\r\n\r\n", id, strings.Repeat("b", 32))
		return readAll(c)
	}},
}

func readAll(c net.Conn) error {
	_, err := io.Copy(io.Discard, c)
	return err
}

// attack keeps n hostile connections to an address until ctx ends. When the server closes one, it opens another a
// second later.
func attack(ctx context.Context, address string, n int) (opened func() int64, done func()) {
	var count atomic.Int64
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			kind := attacks[i%len(attacks)]
			for ctx.Err() == nil {
				var d net.Dialer
				c, err := d.DialContext(ctx, "tcp", address)
				if err == nil {
					count.Add(1)
					stop := context.AfterFunc(ctx, func() { c.Close() })
					_ = kind.do(c) // the server has closed it
					stop()
					c.Close()
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Second + rand.N(time.Second/10)):
				}
			}
		})
	}
	return count.Load, all.Wait
}

// healthCheck requests /healthz over a new connection, as a probe does.
func healthCheck(address string) error {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}

	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(res.Status)
	}
	return err
}

// healthChecks requests /healthz every 100 ms until ctx ends.
type healthChecks struct {
	took   []time.Duration
	failed int
}

func (h *healthChecks) run(ctx context.Context, address string) {
	for ctx.Err() == nil {
		began := time.Now()
		if err := healthCheck(address); err != nil {
			h.failed++
		} else {
			h.took = append(h.took, time.Since(began))
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (h *healthChecks) String() string {
	if len(h.took) == 0 {
		return fmt.Sprintf("no answer, %d failed", h.failed)
	}
	slices.Sort(h.took)
	return fmt.Sprintf("p50 %s, p99 %s, max %s of %d, %d failed", h.took[len(h.took)/2].Round(time.Microsecond),
		h.took[len(h.took)*99/100].Round(time.Microsecond), h.took[len(h.took)-1].Round(time.Microsecond), len(h.took), h.failed)
}

// Clients without a token hold as many connections as possible, in every way that they can. The node has few file
// descriptors and an embedded etcd, which ends the process if it gets none. Ticks must fire and health checks must
// be answered all the time.
//
// With CARILLON_SOAK, the test uses 10,000 connections for that time, the default limits, and health checks before
// the attack for comparison.
//
// Verifies: G41
func TestHostileConnections_LeaveFiringAndHealthChecksAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	long := os.Getenv("CARILLON_SOAK") != ""
	length, connections := soak(t, 4*time.Second), 600
	if long {
		connections = 10_000
	} else {
		t.Parallel() // mostly waits
	}

	dir := t.TempDir()
	p := &process{t: t, name: "n1", port: freePort(t), dir: filepath.Join(dir, "n1")}
	address := fmt.Sprintf("127.0.0.1:%d", p.port)
	if !long {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		p.exe = filepath.Join(dir, "limited")
		if err := os.WriteFile(p.exe, fmt.Appendf(nil, "#!/bin/sh\nulimit -n 512 && exec %s \"$@\"\n", exe), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c := &cluster{t: t, dir: dir, nodes: map[string]*process{"n1": p}}
	t.Cleanup(c.stopAll)
	p.launch([]string{"agent", "--embedded", "--name", "n1", "--data-dir", p.dir, "--listen", address, "--shards", "8"})
	p.waitReady()
	c.everySecond("n1", 1, func(_ int, s *task.Spec) {
		s.Overlap, s.Missed.Policy = task.OverlapAllow, task.MissedAll // otherwise a slow machine would skip or miss some
	})
	cl := c.client("n1")
	if _, err := cl.Cluster.Status(t.Context()); err != nil { // authenticates the connection
		t.Fatal(err)
	}

	var before healthChecks
	if long {
		calm, stopCalm := context.WithTimeout(t.Context(), min(length, 10*time.Second))
		before.run(calm, address)
		stopCalm()
	}

	began := time.Now()
	hostile, stop := context.WithCancel(t.Context())
	defer stop()
	opened, ended := attack(hostile, address, connections)
	var during healthChecks
	timed, stopTimed := context.WithTimeout(t.Context(), length)
	during.run(timed, address)
	stopTimed()

	// On a busy machine a health check may fail, but not the next one.
	eventually(t, func() error { return healthCheck(address) })
	if n, limit := p.descriptors(), 512*4/5+20; !long && n > limit {
		t.Errorf("%d of 512 descriptors are in use; some are to be kept in reserve", n)
	}
	end := time.Now()
	memory := p.residentMemory()
	stop()
	ended()

	// Every tick of that time has fired.
	lateness := map[time.Time]int64{}
	eventually(t, func() error {
		runs, err := cl.Runs.ListByTask(t.Context(), "default", "t000", client.RunListOptions{Limit: 500})
		if err != nil {
			return err
		}
		for _, r := range runs {
			if r.State == task.Succeeded && r.LatenessMS != nil {
				lateness[r.ScheduledTime.Time] = *r.LatenessMS
			}
		}
		for tick := newest(end.Add(-400*time.Second), began.Add(time.Second)).Truncate(time.Second); tick.Before(end.Add(-time.Second)); tick = tick.Add(time.Second) {
			if _, fired := lateness[tick.UTC()]; !fired {
				return fmt.Errorf("the tick of %s has not fired", tick.UTC().Format(time.TimeOnly))
			}
		}
		return nil
	})

	var late, lateBefore []int64
	for tick, ms := range lateness {
		if tick.After(began) {
			late = append(late, ms)
		} else {
			lateBefore = append(lateBefore, ms)
		}
	}
	slices.Sort(late)
	slices.Sort(lateBefore)
	if most := late[len(late)-1]; most > 30_000 {
		t.Errorf("a tick fired %d ms late", most)
	}
	t.Logf("%d connections for %s, %d opened; resident memory %d MB\n/healthz before: %s\n/healthz during: %s\nlateness before in ms: %v\nlateness during: max %d ms, p50 %d ms of %d ticks",
		connections, length, opened(), memory>>20, &before, &during, lateBefore, late[len(late)-1], late[len(late)/2], len(late))
	t.Logf("%s", p.metricLines("carillon_api_connections"))
	if strings.Contains(p.logs.String(), "too many open files") {
		t.Error("the daemon ran out of descriptors")
	}
}

func newest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// descriptors returns the number of open files of the process.
func (p *process) descriptors() int {
	p.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	return len(entries)
}

// residentMemory returns the resident memory of the process in bytes.
func (p *process) residentMemory() int {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	pages, err := strconv.Atoi(string(bytes.Fields(status)[1]))
	if err != nil {
		p.t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// metricLines returns the metrics of a process whose names begin with prefix.
func (p *process) metricLines(prefix string) string {
	p.t.Helper()
	res, err := http.Get(p.metricsURL())
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	var lines []string
	for s := bufio.NewScanner(res.Body); s.Scan(); {
		if strings.HasPrefix(s.Text(), prefix) {
			lines = append(lines, s.Text())
		}
	}
	return strings.Join(lines, "\n")
}
