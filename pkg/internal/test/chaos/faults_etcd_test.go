package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
)

var etcdFaults = []*fault{
	{name: "etcd-leader-killed", group: "etcd", quick: true, what: "kill -9 of etcd's leader, started again later", hold: lasting(3, 6), inject: etcdLeader(syscall.SIGKILL)},
	{name: "etcd-leader-paused", group: "etcd", what: "SIGSTOP of etcd's leader", hold: lasting(3, 6), inject: etcdLeader(syscall.SIGSTOP)},
	{name: "etcd-leader-moved", group: "etcd", what: "etcd's leader moved on, time and again", hold: lasting(0, 0), inject: moveLeader},
	{name: "etcd-follower-killed", group: "etcd", what: "kill -9 of a follower", hold: lasting(2, 6), inject: etcdFollower},
	{name: "etcd-all-killed", group: "etcd", what: "kill -9 of all members, started again later", hold: lasting(1, 4), alone: true, inject: etcdDown(3, syscall.SIGKILL)},
	{name: "quorum-lost", group: "etcd", what: "two of three members killed for a while", hold: lasting(5, 10), alone: true, inject: etcdDown(2, syscall.SIGKILL)},
	{name: "quorum-frozen", group: "etcd", what: "two of three members frozen for longer than a lease", hold: lasting(5, 8), alone: true, inject: etcdDown(2, syscall.SIGSTOP)},
	{name: "etcd-leader-cut-off", group: "etcd", what: "etcd's leader cut off from the other members", hold: lasting(4, 7), inject: isolate(true)},
	{name: "etcd-leader-unheard", group: "etcd", what: "etcd's leader cut off one way: it receives messages of the others, and they receive none of its", hold: lasting(4, 7), inject: isolate(false)},
	{name: "no-space", group: "etcd", what: "the alarm of a full disk, NOSPACE", hold: lasting(3, 6), alone: true, inject: noSpace},
	{name: "compaction", group: "etcd", what: "compaction of all that the recorder has seen, and defragmentation, all the time", hold: lasting(0, 0), inject: compaction},
	{name: "lease-revoked", group: "etcd", what: "the lease of a node's session revoked from outside", hold: lasting(1, 2),
		inject: onNode(func(w *world, _ *injection, n *node) error { return w.revoke(w.keys.Node(n.name)) }, nothing)},
	{name: "all-leases-revoked", group: "etcd", what: "all leases revoked at once, as a stalled leader of etcd may do", hold: lasting(1, 2), alone: true, inject: revokeAll},
	{name: "election-revoked", group: "etcd", what: "the lease of the leader's election revoked", hold: lasting(1, 2), inject: revokeElection},
	{name: "node-key-deleted", group: "etcd", what: "a node's key deleted by hand", hold: lasting(1, 2),
		inject: onNode(func(w *world, _ *injection, n *node) error { return w.delete(w.keys.Node(n.name)) }, nothing)},
	{name: "owner-deleted", group: "etcd", what: "an owner key deleted by hand", hold: lasting(1, 2), inject: func(w *world, in *injection) (func() error, error) {
		shard := in.rnd.IntN(w.shards)
		in.note = fmt.Sprintf("shard %d", shard)
		return func() error { return nil }, w.delete(w.keys.Owner(shard))
	}},
	{name: "owner-overwritten", group: "etcd", what: "an owner key overwritten by hand, with another node", hold: lasting(1, 2), inject: overwriteOwner},
}

func nothing(*world, *node) error { return nil }

func etcdLeader(s syscall.Signal) func(*world, *injection) (func() error, error) {
	return func(w *world, in *injection) (func() error, error) {
		m, err := w.etcdLeader()
		if err != nil {
			return nil, err
		}

		in.note = m.name

		return w.mend(m), signalMembers(s, m)
	}
}

// mend lets members run again, whatever the fault was.
func (w *world) mend(members ...*member) func() error {
	return func() error {
		errs := []error{signalMembers(syscall.SIGCONT, members...)}
		for _, m := range members {
			errs = append(errs, w.startMember(m))
		}
		return errors.Join(errs...)
	}
}

func etcdFollower(w *world, in *injection) (func() error, error) {
	lead, err := w.etcdLeader()
	if err != nil {
		return nil, err
	}

	m := w.members[in.rnd.IntN(3)]
	for m == lead {
		m = w.members[in.rnd.IntN(3)]
	}

	in.note = m.name

	return w.mend(m), signalMembers(syscall.SIGKILL, m)
}

func etcdDown(many int, s syscall.Signal) func(*world, *injection) (func() error, error) {
	return func(w *world, in *injection) (func() error, error) {
		all := append([]*member(nil), w.members...)
		in.rnd.Shuffle(3, func(i, j int) { all[i], all[j] = all[j], all[i] })

		for _, m := range all[:many] {
			in.note += m.name + " "
		}

		return w.mend(all[:many]...), signalMembers(s, all[:many]...)
	}
}

func moveLeader(w *world, in *injection) (func() error, error) {
	for range 4 {
		lead, err := w.etcdLeader()
		if err != nil {
			return nil, err
		}

		to := w.members[in.rnd.IntN(3)]
		err = w.ask(lead, 3*time.Second, func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.MoveLeader(ctx, to.id)
			return err
		})

		if err == nil {
			in.note += to.name + " "
		}

		time.Sleep(time.Second)
	}

	if in.note == "" {
		return nil, errors.New("the leader did not move")
	}

	return func() error { return nil }, nil
}

// isolate cuts the leader off from the other members in both directions, or only them from it.
func isolate(both bool) func(*world, *injection) (func() error, error) {
	return func(w *world, in *injection) (func() error, error) {
		lead, err := w.etcdLeader()
		if err != nil {
			return nil, err
		}

		in.note = lead.name

		for _, m := range w.members {
			if m != lead && both {
				between(lead, m, linkCut)
			} else if m != lead {
				towards(lead, m)
			}
		}

		return func() error {
			for _, m := range w.members {
				if m != lead {
					between(lead, m, linkFault{})
				}
			}

			return nil
		}, nil
	}
}

func noSpace(w *world, in *injection) (func() error, error) {
	m := w.members[in.rnd.IntN(3)]
	in.note, w.wasFull = m.name, true
	return w.disarm, w.raise(m)
}

func compaction(w *world, in *injection) (func() error, error) {
	for i := range 6 {
		if err := errors.Join(w.compact(int64(in.rnd.IntN(20))), w.defragment(w.members[i%3])); err != nil {
			return nil, err
		}
		time.Sleep(300 * time.Millisecond)
	}

	in.note = fmt.Sprintf("up to revision %d", w.compacted)

	return func() error { return nil }, nil
}

// revoke revokes the lease of a key.
func (w *world) revoke(key string) error {
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()

	res, err := w.client.Get(ctx, key)
	if err != nil {
		return err
	}
	if len(res.Kvs) == 0 || res.Kvs[0].Lease == 0 {
		return fmt.Errorf("%s has no lease", key)
	}

	_, err = w.client.Revoke(ctx, clientv3.LeaseID(res.Kvs[0].Lease))

	return err
}

func revokeAll(w *world, in *injection) (func() error, error) {
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()

	res, err := w.client.Leases(ctx)
	if err != nil {
		return nil, err
	}

	for _, l := range res.Leases {
		_, e := w.client.Revoke(ctx, l.ID)
		err = errors.Join(err, e)
	}

	in.note = fmt.Sprintf("%d leases", len(res.Leases))

	return func() error { return nil }, err
}

func revokeElection(w *world, in *injection) (func() error, error) {
	key, node, err := w.election()
	in.note = node
	if err != nil {
		return nil, err
	}

	return func() error { return nil }, w.revoke(key)
}

func (w *world) delete(key string) error {
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()

	_, err := w.client.Delete(ctx, key)
	return err
}

func overwriteOwner(w *world, in *injection) (func() error, error) {
	_, owners, _, err := w.fleet()
	if err != nil {
		return nil, err
	}

	shard := in.rnd.IntN(w.shards)
	up := w.up()
	to := up[in.rnd.IntN(len(up))].name
	in.note = fmt.Sprintf("shard %d of %s, to %s", shard, owners[shard], to)
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()

	_, err = w.client.Put(ctx, w.keys.Owner(shard), `{"node":`+strconv.Quote(to)+`}`)

	return func() error { return nil }, err
}

// election returns the leader's key in the election, and the leader.
func (w *world) election() (key, node string, err error) {
	err = w.eventually(10*time.Second, func() error {
		ctx, cancel := context.WithTimeout(w.ctx, 2*time.Second)
		defer cancel()

		from, to := kv.Prefix(w.keys.Leader())

		res, err := w.client.Get(ctx, from, append(clientv3.WithFirstCreate(), clientv3.WithRange(to))...)
		if err != nil {
			return err
		}
		if len(res.Kvs) == 0 {
			return errors.New("the cluster has no leader")
		}

		key, node = string(res.Kvs[0].Key), strings.Trim(string(res.Kvs[0].Value), `"`)

		return nil
	})

	return key, node, err
}

// leader returns the leader's node.
func (w *world) leader() (*node, error) {
	_, name, err := w.election()
	if err != nil {
		return nil, err
	}

	for _, n := range w.up() {
		if n.name == name {
			return n, nil
		}
	}

	return nil, fmt.Errorf("the leader %q is not one of the running nodes", name)
}
