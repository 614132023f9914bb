package daemon_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// With TLS everywhere and an etcd with users, whose tokens expire all the time, every certificate, the CA and the
// password are replaced under load. Nothing is interrupted, and every tick has its run.
//
// Verifies: G51
func TestDaemon_NothingIsInterruptedWhenCertificatesAreReplaced(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	c, etcd := newSecuredCluster(t, "--shards", "8") // with the default lease, because a node that is absent for a moment serves no logs
	names := []string{"n1", "n2", "n3"}
	for _, n := range names {
		c.startSecured(etcd, n)
	}
	c.everySecond("n1", 12, func(i int, s *task.Spec) {
		s.Overlap, s.Missed.Grace = task.OverlapAllow, task.Duration(time.Minute) // otherwise a slow machine would skip or miss some
		if i%4 == 0 {
			s.Action = task.Action{Process: &task.Process{Shell: "echo $CARILLON_NODE"}}
		}
	})
	load := c.beginLoad(names)
	before := c.serials(names)

	load.through(t)
	etcd.replaceAPI(names, load) // tokens expire meanwhile
	etcd.reissue(names)
	etcd.changePassword("second")
	time.Sleep(6 * time.Second) // tokens expire again
	load.through(t)
	load.end()

	for i, serial := range c.serials(names) {
		if serial == before[i] {
			t.Errorf("%s still shows its former certificate", names[i])
		}
	}
	c.quiet("n2")
	r := c.judge(check.Options{})
	if s := r.Summary; len(s.Missed)+len(s.Skipped) > 0 || s.Undecided > 0 || s.Ended[task.Succeeded] != s.Runs || s.Runs < 36 {
		t.Errorf("not every tick has a run that succeeded: %s", s)
	}

	// etcd reads its CA only when it starts, so it is restarted with the new one, which the agents trust already.
	etcd.stop()
	etcd.pki.setCA(etcd.pki.newCA())
	etcd.reissue(names)
	etcd.start()
	for _, n := range names {
		c.unlessAway(func() error { _, err := c.client(n).Tasks.Get(t.Context(), "default", "t000"); return err })
		c.nodes[n].waitReady()
	}
	run := c.trigger("n1", "t000")
	c.until("n3", "t000", run.ID, task.Succeeded)
}

// load is the load of the callers: they read events, logs through another node, and tasks.
type load struct {
	cancel context.CancelFunc
	all    sync.WaitGroup
	told   []atomic.Int64 // number of events that each follower has received
	rounds []atomic.Int64 // number of rounds that each other caller has begun, with a new connection
}

func (c *cluster) beginLoad(names []string) *load {
	ctx, cancel := context.WithCancel(c.t.Context())
	l := &load{cancel: cancel, told: make([]atomic.Int64, len(names)), rounds: make([]atomic.Int64, len(names))}
	for i, n := range names {
		l.all.Go(func() {
			for _, err := range c.client(n).Events.Follow(ctx, client.EventOptions{Lost: func(err error) {
				if ctx.Err() == nil {
					c.t.Errorf("the events of %s were interrupted: %v", n, err)
				}
			}}) {
				if err == nil {
					l.told[i].Add(1)
				} else if ctx.Err() == nil {
					c.t.Errorf("the events of %s end: %v", n, err)
				}
			}
		})
		l.all.Go(func() {
			cl := c.client(n)
			for calls := 0; ctx.Err() == nil; calls++ {
				// Connections end now and then, as with real callers.
				if calls%5 == 0 {
					l.rounds[i].Add(1)
					cl = c.client(n)
				}
				err := c.useOnce(ctx, cl, fmt.Sprintf("t%03d", 4*i))
				if err != nil && ctx.Err() == nil {
					c.t.Errorf("%s: %v", n, err)
					return
				}
				clock.Sleep(ctx, 20*time.Millisecond) // callers do not call all the time
			}
		})
	}
	return l
}

// useOnce reads a task, its runs, and the output of the last run, on whichever node that is.
func (c *cluster) useOnce(ctx context.Context, cl *client.Client, name string) error {
	if _, err := cl.Tasks.Get(ctx, "default", name); err != nil {
		return err
	}
	runs, err := cl.Runs.ListByTask(ctx, "default", name, client.RunListOptions{Limit: 5})
	if err != nil {
		return err
	}
	for _, r := range runs {
		if r.State != task.Succeeded {
			continue
		}
		log, err := cl.Logs.Open(ctx, "default", name, r.ID, client.LogOptions{})
		if err != nil {
			return err
		}
		b, err := io.ReadAll(log)
		if err = errors.Join(err, log.Close()); err == nil && string(b) != r.Node+"\n" {
			err = fmt.Errorf("run %s wrote %q on %s", r.ID, b, r.Node)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// through waits until all operations in progress have ended: each caller has begun another round and completed its
// calls, and each follower has received further events.
func (l *load) through(t *testing.T) {
	t.Helper()
	var before []int64
	for i := range l.rounds {
		before = append(before, l.rounds[i].Load())
	}
	eventually(t, func() error {
		for i := range l.rounds {
			if l.rounds[i].Load() < before[i]+2 {
				return fmt.Errorf("caller %d is in the middle of its calls", i)
			}
			if l.told[i].Load() == 0 {
				return fmt.Errorf("follower %d received no events", i)
			}
		}
		return nil
	})
}

func (l *load) end() {
	l.cancel()
	l.all.Wait()
}

// serials returns the serial numbers of the nodes' current certificates.
func (c *cluster) serials(names []string) (list []string) {
	c.t.Helper()
	for _, n := range names {
		conn, err := certs.DialTLS((&net.Dialer{}).DialContext, c.caller.Client)(c.t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", c.nodes[n].port))
		if err != nil {
			c.t.Fatal(err)
		}
		list = append(list, conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String())
		_ = conn.Close()
	}
	return list
}

// replaceAPI replaces the CA as documented: first both are trusted, then all certificates are replaced, then only
// the new CA is trusted.
func (s *securedEtcd) replaceAPI(nodes []string, l *load) {
	s.t.Helper()
	after := s.api.newCA()
	s.api.setCA(append(s.api.caPEM(), after...))
	time.Sleep(time.Second)
	l.through(s.t) // callers that began to connect earlier do not trust both
	for _, n := range nodes {
		s.api.node(n)
	}
	s.api.client("caller")
	time.Sleep(time.Second)
	l.through(s.t) // so do callers that began to connect with a former certificate
	s.api.setCA(after)
}

// reissue replaces the certificates of etcd and of its clients.
func (s *securedEtcd) reissue(nodes []string) {
	s.t.Helper()
	s.pki.node("etcd")
	for _, n := range nodes {
		s.pki.client(n)
	}
}

// changePassword changes the password in etcd, which invalidates all tokens, and then in the file.
func (s *securedEtcd) changePassword(password string) {
	s.t.Helper()
	root := s.dial(kv.Config{Username: "root", Password: "root's"})
	if _, err := root.UserChangePassword(s.t.Context(), etcdUser, password); err != nil {
		s.t.Fatal(err)
	}
	s.setPassword(password)
}
