package check

import (
	"context"
	"errors"
	"maps"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
)

// verifiedPrefix is how much of a recording has been held against what was there.
type verifiedPrefix struct {
	revision int64
	events   int              // of the recording, up to there
	live     map[string]int64 // the keys that were there, and their mod revisions
}

// liveAfter is what is there after events up to a revision.
func liveAfter(before map[string]int64, events []Event, revision int64) map[string]int64 {
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

// verifyAt holds the recording up to a revision against the keys that were there
// then. If it does not lead to them, it takes back what came after the last
// comparison, and has the watch opened anew from there. A revision that is compacted
// away cannot be compared with, and proves nothing either way.
//
// A key that was written and deleted again between two comparisons could be missing
// unseen: watches leave out runs of revisions, which hardly hold nothing else.
func (r *Recorder) verifyAt(ctx context.Context, revision int64) (bool, error) {
	r.mu.Lock()
	before, events := r.verified, r.events
	r.mu.Unlock()

	if revision <= before.revision {
		return true, nil
	}

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

	if maps.Equal(live, there) {
		r.verified = verifiedPrefix{revision: revision, events: n, live: live}
		return true, nil
	}

	r.events = slices.Clone(r.events[:before.events]) // those handed out stay as they are
	r.revision = before.revision
	close(r.reopen)
	r.reopen = make(chan struct{})

	return false, nil
}

// listRevisions are the keys that were there at a revision, and their mod revisions.
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
