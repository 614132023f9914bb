package recorder

import (
	"context"
	"errors"
	"maps"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/kv"
)

// verifiedPrefix is the part of a recording that was compared with the keys in etcd.
type verifiedPrefix struct {
	revision int64            // the comparison was made at this revision
	events   int              // how many events of the recording are up to that revision
	live     map[string]int64 // the keys that existed then, with their mod revisions
}

// liveAfter returns the keys that exist after events up to a revision, starting from the keys in before.
func liveAfter(before map[string]int64, events []check.Event, revision int64) map[string]int64 {
	live := maps.Clone(before)
	if live == nil {
		live = map[string]int64{}
	}

	for _, ev := range events {
		switch {
		case ev.Revision > revision:
			return live
		case ev.Deleted:
			delete(live, ev.Key)
		default:
			live[ev.Key] = ev.ModRevision
		}
	}

	return live
}

// verifyAt compares the recording up to a revision with the keys that existed then. If they differ, it discards
// everything after the last successful comparison, has the watch opened again from there, and returns false. A
// revision that is compacted cannot be compared. This proves nothing either way, so it returns true.
//
// A key that was written and deleted between two comparisons can be missing without being noticed. This is
// unlikely: a watch that omits events omits runs of revisions, which also contain other keys.
func (r *Recorder) verifyAt(ctx context.Context, revision int64) (bool, error) {
	r.mu.Lock()
	before, events := r.verified, r.events
	r.mu.Unlock()

	if revision <= before.revision {
		return true, nil
	}

	// n is the number of events up to the revision.
	n := len(events)
	for n > before.events && events[n-1].Revision > revision {
		n--
	}

	live := liveAfter(before.live, events[before.events:n], revision)
	there, err := r.listRevisions(ctx, revision)
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return true, nil
	case err != nil:
		return false, err
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	// Both are maps from keys to mod revisions, so a missing write shows even if a later one of the same key was
	// recorded.
	if maps.Equal(live, there) {
		r.verified = verifiedPrefix{revision: revision, events: n, live: live}
		return true, nil
	}

	// Discard what is not verified, and wake the watch, which then continues after the verified revision.
	r.events = slices.Clone(r.events[:before.events]) // copied, because Events has handed out the old slice
	r.revision = before.revision
	close(r.reopen)
	r.reopen = make(chan struct{})

	return false, nil
}

// listRevisions returns the keys that existed at a revision, with their mod revisions.
func (r *Recorder) listRevisions(ctx context.Context, revision int64) (map[string]int64, error) {
	there := map[string]int64{}
	key, end := kv.Prefix(r.keys.Root())
	const page = 5000

	for {
		res, err := r.client.Get(ctx, key, clientv3.WithRange(end), clientv3.WithRev(revision), clientv3.WithLimit(page), clientv3.WithKeysOnly())
		if err != nil {
			return nil, err
		}

		for _, e := range res.Kvs {
			there[string(e.Key)] = e.ModRevision
		}

		if !res.More || len(res.Kvs) == 0 {
			return there, nil
		}

		key = string(res.Kvs[len(res.Kvs)-1].Key) + "\x00"
	}
}
