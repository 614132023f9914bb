package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// member is one of etcd's three members: a process, with a link in front of its peer port.
type member struct {
	name    string
	argv    []string
	log     string
	client  string // host:port for clients
	peers   *link  // callers are distinguished by their ids
	process *process
	id      uint64
}

// startEtcd starts three members on their own addresses.
func (w *world) startEtcd(ctx context.Context) error {
	binary, err := kvtest.EtcdPath()
	if err != nil {
		return err
	}

	var all []string
	for i := range 3 {
		all = append(all, fmt.Sprintf("e%d=http://%s:2390", i+1, w.ip(i+1)))
	}

	for i := range 3 {
		name, ip := fmt.Sprintf("e%d", i+1), w.ip(i+1)
		m := &member{name: name, log: filepath.Join(w.logs, name+".log"), client: ip + ":2379"}
		if m.peers, err = openLink(ip+":2390", ip+":2380", "X-Server-From"); err != nil {
			return err
		}

		w.links = append(w.links, m.peers)
		m.argv = []string{binary, "--name", name, "--data-dir", filepath.Join(w.dir, name),
			"--listen-client-urls", "http://" + m.client, "--advertise-client-urls", "http://" + m.client,
			"--listen-peer-urls", "http://" + ip + ":2380", "--initial-advertise-peer-urls", "http://" + ip + ":2390",
			"--initial-cluster", strings.Join(all, ","), "--initial-cluster-token", w.mark,
			"--log-level", "warn", "--quota-backend-bytes", "4294967296"}
		w.members = append(w.members, m)
		if err := w.startMember(m); err != nil {
			return err
		}
	}

	if w.client, err = w.dial(w.members...); err != nil {
		return err
	}

	return w.eventually(2*time.Minute, func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()

		list, err := w.client.MemberList(ctx)
		if err != nil {
			return err
		}

		for _, one := range list.Members {
			for _, m := range w.members {
				if m.name == one.Name {
					m.id = one.ID
				}
			}
		}

		if slices.ContainsFunc(w.members, func(m *member) bool { return m.id == 0 }) {
			return errors.New("a member of etcd is not known to the others yet")
		}

		return nil
	})
}

func (w *world) startMember(m *member) (err error) {
	if m.process.running() {
		return nil
	}
	m.process, err = launch(m.log, w.environ(), m.argv...)
	return err
}

// environ returns the environment of all processes that the world starts.
func (w *world) environ(more ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "ETCD_") || strings.HasPrefix(e, "CARILLON_") || strings.HasPrefix(e, "CHAOS_")
	})
	return append(append(env, markName+"="+w.mark), more...)
}

// dial connects to members directly, without links, so that no fault affects the test itself.
func (w *world) dial(members ...*member) (*kv.Client, error) {
	var endpoints []string
	for _, m := range members {
		endpoints = append(endpoints, "http://"+m.client)
	}

	c, err := kv.Dial(w.ctx, kv.Config{Endpoints: endpoints, CallTimeout: 15 * time.Second})
	if err == nil {
		w.closers = append(w.closers, func() { _ = c.Close() })
	}

	return c, err
}

// ask makes a call to a single member.
func (w *world) ask(m *member, most time.Duration, call func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(w.ctx, most)
	defer cancel()

	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + m.client}, Context: ctx})
	if err != nil {
		return err
	}

	defer c.Close()

	return call(ctx, c)
}

// etcdLeader returns etcd's leader. It waits for one.
func (w *world) etcdLeader() (lead *member, err error) {
	err = w.eventually(w.promised(10*time.Second), func() error {
		for _, m := range w.members {
			if !m.process.running() {
				continue
			}

			err := w.ask(m, time.Second, func(ctx context.Context, c *clientv3.Client) error {
				s, err := c.Status(ctx, "http://"+m.client)
				if err != nil {
					return err
				}

				for _, other := range w.members {
					if s.Leader == other.id {
						lead = other
					}
				}

				return nil
			})

			if err == nil && lead != nil {
				return nil
			}
		}

		return errors.New("etcd has no leader")
	})

	return lead, err
}

// between sets the fault between two members, in both directions, no matter which of them dialed.
func between(a, b *member, w linkFault) {
	a.peers.set(fmt.Sprintf("%x", b.id), w)
	b.peers.set(fmt.Sprintf("%x", a.id), w)
}

// towards blocks the traffic from one member to the other, but not the way back.
func towards(from, to *member) {
	to.peers.set(fmt.Sprintf("%x", from.id), linkCutUp)   // connections that from has dialed
	from.peers.set(fmt.Sprintf("%x", to.id), linkCutDown) // connections that to has dialed: the answers
}

// raise raises the alarm of a full disk at a member, as etcd does.
func (w *world) raise(m *member) error {
	return w.ask(m, 5*time.Second, func(ctx context.Context, c *clientv3.Client) error {
		_, err := pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(ctx,
			&pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: m.id, Alarm: pb.AlarmType_NOSPACE})
		return err
	})
}

func (w *world) disarm() error {
	return w.eventually(10*time.Second, func() error {
		ctx, cancel := context.WithTimeout(w.ctx, 3*time.Second)
		defer cancel()

		_, err := w.client.AlarmDisarm(ctx, &clientv3.AlarmMember{})
		return err
	})
}

// compact compacts what the recorder has seen, except for a few revisions. There is no other compaction in the run.
func (w *world) compact(keep int64) error {
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()

	upTo := w.recorder.Revision() - keep
	if upTo <= w.compacted {
		return nil
	}

	_, err := w.client.Compact(ctx, upTo)
	if err == nil {
		w.compacted = upTo
	}

	return err
}

func (w *world) defragment(m *member) error {
	return w.ask(m, 10*time.Second, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Defragment(ctx, "http://"+m.client)
		return err
	})
}

// signalMembers sends a signal to members. After SIGKILL it waits for their end.
func signalMembers(s syscall.Signal, members ...*member) error {
	var errs []error
	for _, m := range members {
		if s == syscall.SIGKILL {
			errs = append(errs, m.process.end(s, 5*time.Second))
		} else {
			errs = append(errs, m.process.signal(s))
		}
	}

	return errors.Join(errs...)
}
