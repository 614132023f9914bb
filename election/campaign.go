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

// errNoKey means that this candidate's leader key is gone, so the campaign must start over with a new
// session.
var errNoKey = errors.New("campaign: the key of this candidate was deleted")

// campaignForTerm waits until this candidate's key is the oldest, confirms that with a write, and returns
// the key's fence and mod revision.
//
// etcd's Campaign does not watch its own session, may return nil without a key, and depends on a watch that
// may stall. So its result is only a hint: a periodic read and the end of the session cover what it misses,
// and confirmLeader decides.
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

	// Read twice in each lease time, in case Campaign's watch stalls.
	look := time.NewTicker(e.cfg.TTL / 2)
	defer look.Stop()

	// seen means that the key existed at an earlier read. A key that was never seen may not have been
	// created yet.
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
			case err != nil:
				// If etcd stays unavailable, the session ends, and the campaign with it.
			case p.first:
				return e.confirmLeader(ctx, s, p.created)
			case p.created == 0 && seen:
				return kv.Fence{}, 0, errNoKey
			}

			seen = seen || p.created > 0
		}
	}
}

// campaignOnce calls Campaign until it succeeds or ctx ends. A lost watch makes Campaign return an error.
// The key, and its place in the order, still exist for the next call.
func (e *Election) campaignOnce(ctx context.Context, el *concurrency.Election) error {
	for {
		err := el.Campaign(ctx, e.cfg.Node)
		if err == nil || ctx.Err() != nil || !sleepAbout(ctx, firstPause) {
			return err
		}
	}
}

// newCandidate returns an etcd election that uses the lease of session s. Only the session renews the
// lease. The client ends with ctx, so that an abandoned Campaign does not delete the key.
func (e *Election) newCandidate(ctx context.Context, s *kv.Session) (*concurrency.Election, error) {
	c := clientv3.NewCtxClient(ctx)
	c.KV, c.Watcher, c.Lease = e.client.KV, e.client.Watcher, unrenewed{e.client.Lease}

	cs, err := concurrency.NewSession(c, concurrency.WithLease(s.Lease()), concurrency.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("campaign: %w", err)
	}

	return concurrency.NewElection(cs, e.cfg.Prefix+"leader"), nil
}

// unrenewed is a Lease that does not renew leases.
type unrenewed struct{ clientv3.Lease }

// KeepAlive returns a channel that delivers nothing and is closed when ctx ends.
func (unrenewed) KeepAlive(ctx context.Context, _ clientv3.LeaseID) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	none := make(chan *clientv3.LeaseKeepAliveResponse)
	context.AfterFunc(ctx, func() { close(none) })
	return none, nil
}

// candidateKey returns the leader key of this candidate, in the format of etcd's elections.
func (e *Election) candidateKey(s *kv.Session) string {
	return fmt.Sprintf("%sleader/%x", e.cfg.Prefix, s.Lease())
}

// place is the position of this candidate's leader key.
type place struct {
	created int64 // create revision; 0: there is no key
	first   bool  // no other candidate's key is older
}

// readPlace reads the position of this candidate's leader key.
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

// confirmLeader writes the leader key, if it still has the create revision rev. Nobody leads without this
// write: it proves that the key exists and belongs to a live lease. It returns the term's fence and the
// key's mod revision, or errNoKey.
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
