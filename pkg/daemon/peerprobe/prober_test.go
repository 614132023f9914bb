package peerprobe

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/task"
)

// probeFixture is a node that probes another one, which is a server of this test.
type probeFixture struct {
	*Prober
	t        *testing.T
	registry *prometheus.Registry
	server   *httptest.Server
	instance atomic.Value // the instance that the server reports
	refuse   atomic.Pointer[error]
	refused  atomic.Int64 // number of refused dials
	answered atomic.Int64 // number of answers of the server
	dials    atomic.Int64

	mu      sync.Mutex
	record  task.Node
	absent  bool
	revoked [][]string
}

func newProbeFixture(t *testing.T) *probeFixture {
	s := &probeFixture{t: t, registry: prometheus.NewRegistry()}
	s.instance.Store("i1")
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(api.InstanceHeader, s.instance.Load().(string))
		s.answered.Add(1)
	}))
	t.Cleanup(s.server.Close)
	s.record = task.Node{Name: "b", Instance: "i1", Revision: 7, Address: s.server.URL, Host: "here", Leases: []string{"1", "2"}}
	s.Prober = New(Config{Node: "a", Host: "here", Logger: zap.NewNop(), Registerer: s.registry, Cluster: s,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			s.dials.Add(1)
			if err := s.refuse.Load(); err != nil {
				s.refused.Add(1)
				return nil, *err
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	})
	return s
}

// Node returns the record of the other node in etcd.
func (p *probeFixture) Node(context.Context, string) (task.Node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.absent {
		return task.Node{}, task.ErrNotFound
	}
	return p.record, nil
}

// RevokeLeases records the leases that are revoked.
func (p *probeFixture) RevokeLeases(_ context.Context, leases []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.revoked = append(p.revoked, leases)
	return nil
}

var errRefused error = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}

// watched runs the Prober with the current record until stop or the end of the test.
func (p *probeFixture) watched() (stop func()) {
	n := p.record
	ctx, cancel := context.WithCancel(p.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { p.watchPeer(ctx, n) })
	stop = func() { cancel(); wg.Wait() }
	p.t.Cleanup(stop)
	return stop
}

func (p *probeFixture) isReached() bool {
	families, err := p.registry.Gather()
	if err != nil {
		p.t.Error(err)
	}
	for _, f := range families {
		if f.GetName() == "carillon_peers_reached" {
			return f.GetMetric()[0].GetGauge().GetValue() == 1
		}
	}
	return false
}

func (p *probeFixture) wait(what string, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(90 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("never: %s", what)
		}
	}
}

func (p *probeFixture) accusations() [][]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.revoked)
}

// crash closes all connections, and makes further dials fail with err.
func (p *probeFixture) crash(err error) {
	p.refuse.Store(&err)
	p.server.CloseClientConnections()
}

func TestPeers_RevokeWhatAKilledInstanceHeld(t *testing.T) {
	s := newProbeFixture(t)
	stop := s.watched()
	s.wait("it is reached", s.isReached)
	s.mu.Lock()
	s.record.Leases = []string{"1", "3"} // it has become the leader since
	s.mu.Unlock()
	s.crash(errRefused)
	s.wait("its leases are revoked", func() bool { return len(s.accusations()) > 0 })
	if got := s.accusations(); len(got) != 1 || !slices.Equal(got[0], []string{"1", "3"}) {
		t.Errorf("revoked: %v", got)
	}
	// It was alive and has joined again as the same instance, so it is not accused again.
	stop()
	s.refuse.Store(nil)
	s.mu.Lock()
	s.record.Revision = 9
	s.mu.Unlock()
	s.watched()
	s.wait("it is reached again", s.isReached)
	before := s.refused.Load()
	s.crash(errRefused)
	s.wait("it is refused again, twice", func() bool { return s.refused.Load() >= before+3 })
	if got := s.accusations(); len(got) != 1 {
		t.Errorf("one instance was accused twice: %v", got)
	}
}

func TestPeers_AccuseNobodyWithoutProof(t *testing.T) {
	for name, c := range map[string]struct {
		stranger bool // it is never reached
		before   func(s *probeFixture)
		crash    func(s *probeFixture)
	}{
		"a timeout":           {crash: func(s *probeFixture) { s.crash(os.ErrDeadlineExceeded) }},
		"no route":            {crash: func(s *probeFixture) { s.crash(&net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}) }},
		"never reached":       {stranger: true, before: func(s *probeFixture) { s.crash(errRefused) }},
		"another process":     {stranger: true, before: func(s *probeFixture) { s.instance.Store("i2") }, crash: func(s *probeFixture) { s.crash(errRefused) }},
		"it has left":         {crash: func(s *probeFixture) { s.absent = true; s.crash(errRefused) }},
		"another instance":    {crash: func(s *probeFixture) { s.record.Instance = "i2"; s.crash(errRefused) }},
		"another session":     {crash: func(s *probeFixture) { s.record.Revision = 8; s.crash(errRefused) }},
		"loopback elsewhere":  {before: func(s *probeFixture) { s.record.Host = "elsewhere" }, crash: func(s *probeFixture) { s.crash(errRefused) }},
		"a host that is mute": {before: func(s *probeFixture) { s.record.Host = "" }, crash: func(s *probeFixture) { s.crash(errRefused) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newProbeFixture(t)
			if c.before != nil {
				c.before(s)
			}
			stop := s.watched()
			if c.stranger {
				s.wait("what it answered is known", func() bool { return s.refused.Load() > 0 || s.answered.Load() > 1 })
			} else {
				s.wait("it is reached", s.isReached)
			}
			if c.crash != nil {
				s.mu.Lock()
				c.crash(s)
				s.mu.Unlock()
			}
			s.wait("it is dialled again and again", func() bool { return s.refused.Load() >= 3 })
			stop()
			if got := s.accusations(); len(got) != 0 {
				t.Errorf("revoked: %v", got)
			}
		})
	}
}

// A node that all others seem to refuse is probably cut off itself. It accuses one node and then pauses.
func TestPeers_RestAfterAnAccusation(t *testing.T) {
	p := New(Config{Registerer: prometheus.NewRegistry()})
	now := time.Now()
	if _, may := p.mayRevoke("i1", now); !may {
		t.Error("the first is not accused")
	}
	again, may := p.mayRevoke("i2", now.Add(firstRevokePause/2))
	if may || again != firstRevokePause/2 {
		t.Errorf("the second at once: %s, %v", again, may)
	}
	if _, may := p.mayRevoke("i2", now.Add(firstRevokePause)); !may {
		t.Error("the second is never accused")
	}
	if _, may := p.mayRevoke("i3", now.Add(2*firstRevokePause)); may {
		t.Error("the rest does not grow")
	}
	if _, may := p.mayRevoke("i1", now.Add(30*time.Minute)); may {
		t.Error("an instance is accused twice")
	}
}

func TestPeers_WatchThoseThatComeNext(t *testing.T) {
	var nodes []task.Node
	for _, n := range []string{"d", "b", "a", "c", "e"} {
		nodes = append(nodes, task.Node{Name: n})
	}
	watchers := map[string]int{}
	for _, n := range nodes {
		next := nodesAfter(nodes, n.Name, 3)
		for _, o := range next {
			watchers[o.Name]++
		}
		if slices.ContainsFunc(next, func(o task.Node) bool { return o.Name == n.Name }) {
			t.Errorf("%s watches itself", n.Name)
		}
	}
	for n, count := range watchers {
		if count != 3 {
			t.Errorf("%s is watched by %d", n, count)
		}
	}
	if got := nodeNamesOf(nodesAfter(nodes, "d", 3)); !slices.Equal(got, []string{"e", "a", "b"}) {
		t.Errorf("after d come %v", got)
	}
}

func nodeNamesOf(nodes []task.Node) (names []string) {
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return names
}

func TestPeers_KnowTheirHost(t *testing.T) {
	if a, b := ThisHost(), ThisHost(); a != b || a == "" {
		t.Errorf("%q, %q", a, b)
	}
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true, "0.0.0.0:1": true, "10.0.0.1:1": false, "db-1:1": false, "": false,
	} {
		if isOwnAddress(address) != want {
			t.Errorf("%s is the host's own: %v", address, !want)
		}
	}
}
