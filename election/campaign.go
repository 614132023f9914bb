package election

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/carillonhq/carillon/pkg/kv"
)

var errNoKey = errors.New("campaign: our key is gone")

// campaignForTerm waits until our key is the oldest, and returns its fence and mod revision, confirmed by a write. etcd's
// Campaign does not watch its own session, may return nil without a key, and rests on a watch that can stall: here it
// only tells when to look. A look now and then, and the session's end, cover what it misses.
func (e *Election) campaignForTerm(ctx context.Context, s *kv.Session) (kv.Fence, int64, error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	el, err := e.newCandidate(ctx, s)
	if err != nil {
		cancel()
		return kv.Fence{}, 0, err
	}

	campaigned := make(chan error, 1)
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		campaigned <- e.campaignOnce(ctx, el)
	}()

	defer func() { cancel(); <-joined }()

	look := time.NewTicker(e.cfg.TTL / 2)
	defer look.Stop()

	seen := false
	for {
		select {
		case <-ctx.Done():
			return kv.Fence{}, 0, ctx.Err()
		case <-s.Done():
			return kv.Fence{}, 0, fmt.Errorf("campaign: %w", s.Err())
		case err := <-campaigned:
			if err != nil {
				return kv.Fence{}, 0, fmt.Errorf("campaign: %w", err)
			}
			return e.confirmLeader(ctx, s, el.Rev())
		case <-look.C:
			p, err := e.readPlace(ctx, s)
			switch {
			case err != nil: // the session knows if it is serious
			case p.first:
				return e.confirmLeader(ctx, s, p.created)
			case p.created == 0 && seen:
				return kv.Fence{}, 0, errNoKey
			}

			seen = seen || p.created > 0
		}
	}
}

// campaignOnce campaigns until it is over or ctx ends. A watch that is lost ends etcd's Campaign; our key, and so our place, is
// still there for the next one.
func (e *Election) campaignOnce(ctx context.Context, el *concurrency.Election) error {
	for {
		err := el.Campaign(ctx, e.cfg.Node)
		if err == nil || ctx.Err() != nil || !sleepAbout(ctx, firstPause) {
			return err
		}
	}
}

// newCandidate makes etcd's election ours: on our lease, which only the kv session renews, and with a client that is gone
// as soon as ctx is, so that a campaign given up does not resign in our name.
func (e *Election) newCandidate(ctx context.Context, s *kv.Session) (*concurrency.Election, error) {
	c := clientv3.NewCtxClient(ctx)
	c.KV, c.Watcher, c.Lease = e.client.KV, e.client.Watcher, unrenewed{e.client.Lease}

	cs, err := concurrency.NewSession(c, concurrency.WithLease(s.Lease()), concurrency.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("campaign: %w", err)
	}

	return concurrency.NewElection(cs, e.cfg.Prefix+"leader"), nil
}

// unrenewed is a Lease that leaves renewals to others.
type unrenewed struct{ clientv3.Lease }

func (unrenewed) KeepAlive(ctx context.Context, _ clientv3.LeaseID) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	none := make(chan *clientv3.LeaseKeepAliveResponse)
	context.AfterFunc(ctx, func() { close(none) })
	return none, nil
}

func (e *Election) candidateKey(s *kv.Session) string {
	return fmt.Sprintf("%sleader/%x", e.cfg.Prefix, s.Lease())
}

// place is where our key stands: its create revision, 0 if there is none, and whether it is the oldest.
type place struct {
	created int64
	first   bool
}

func (e *Election) readPlace(ctx context.Context, s *kv.Session) (place, error) {
	resp, err := e.client.Get(ctx, e.cfg.Prefix+"leader/", clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return place{}, err
	}

	for i, k := range resp.Kvs {
		if string(k.Key) == e.candidateKey(s) {
			return place{created: k.CreateRevision, first: i == 0}, nil
		}
	}

	return place{}, nil
}

// confirmLeader writes the leader key if it is the one created at rev. Without this write nobody leads.
func (e *Election) confirmLeader(ctx context.Context, s *kv.Session, rev int64) (kv.Fence, int64, error) {
	fence := kv.CreateFence(e.candidateKey(s), rev)
	res, err := kv.Direct(e.client).Commit(ctx, kv.Txn{
		If:   []clientv3.Cmp{fence.Compare()},
		Then: []clientv3.Op{clientv3.OpPut(fence.Key, e.cfg.Node, clientv3.WithLease(s.Lease()))},
	})
	if err != nil {
		return fence, 0, fmt.Errorf("confirm the leader key: %w", err)
	}
	if !res.Succeeded {
		return fence, 0, errNoKey
	}

	return fence, res.Revision, nil
}
