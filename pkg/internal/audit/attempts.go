package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// attemptJudge judges the attempts in the nodes' inboxes.
type attemptJudge struct {
	judge
	owners *ownerJudge
}

// inboxRecord is an attempt with the key and revision at which it was read.
type inboxRecord struct {
	task.Assigned
	key record.RunKey
	store.Seen
}

// checkAttempts reads all inboxes, a page at a time, together with the entries of their tasks.
func (j *attemptJudge) checkAttempts(ctx context.Context) error {
	var page []inboxRecord
	err := j.reader.eachRecord(ctx, j.keys.Runs(), func(ctx context.Context, e *mvccpb.KeyValue) error {
		attempt, ok := j.checkAttempt(e)
		if !ok {
			return nil
		}
		if page = append(page, attempt); len(page) < j.reader.page {
			return nil
		}

		err := j.checkHaveTasks(ctx, page)
		page = page[:0]

		return err
	})

	if err != nil {
		return err
	}

	return j.checkHaveTasks(ctx, page)
}

// checkAttempt judges one attempt by itself. It returns false if nothing else needs to be checked.
func (j *attemptJudge) checkAttempt(e *mvccpb.KeyValue) (inboxRecord, bool) {
	k, ok := j.keys.ParseRun(string(e.Key))
	if !ok {
		j.suspectUnknownKey(e)
		return inboxRecord{}, false
	}

	j.checkNoLease(e)

	// Even an unreadable attempt keeps its task's queue from being reported as stuck.
	j.cluster.active[hashOf(k.Ref)] = true

	r, err := record.DecodeAssigned(k, e.CreateRevision, e.Value)
	if err != nil {
		j.suspectUnreadable(e, fmt.Sprintf("an attempt of %s on node %s", k.Ref, k.Node), err)
		return inboxRecord{}, false
	}

	j.owners.checkDecidedByOwner(e, k.Ref, r.Run)

	if j.suspectOrphan(k, r, e) {
		return inboxRecord{}, false
	}

	return inboxRecord{r, k, seenRecord(e)}, true
}

// suspectOrphan suspects an attempt whose instance has been gone for longer than the attempt's lost_after: its
// owner should have declared it lost (G17). It reports whether the instance is gone at all.
//
// There are three cases. Another instance of the node is present: then the attempt's instance has been gone since
// that one started. No instance is present, but the attempt's instance is proved dead: then nobody has to wait for
// lost_after. Otherwise only etcd's past shows how long the node has been absent.
func (j *attemptJudge) suspectOrphan(k record.RunKey, r task.Assigned, e *mvccpb.KeyValue) bool {
	lostAfter := r.EffectiveLostAfter().Std()

	// Another instance of the node has taken over.
	if n, present := j.cluster.nodes[k.Node]; present {
		if n.Instance == r.Instance {
			return false
		}

		if j.reader.timeSince(n.StartedAt.Time) > lostAfter+timeTolerance {
			j.addSuspect(kindOrphan.newFinding(fmt.Sprintf("run %s of %s is assigned to instance %s of node %s, whose instance has been %s since %s", k.Run, k.Ref,
				r.Instance, k.Node, n.Instance, j.reader.formatAgo(n.StartedAt.Time)), string(e.Key)), seenRecord(e))
		}

		return true
	}

	node := store.Seen{Key: j.keys.Node(k.Node)}

	// The instance is proved dead. The absent node key is a fact, so that a node that joins again clears the
	// suspicion.
	if at, dead := j.cluster.cleared[r.Instance]; dead && j.reader.timeSince(at) > timeTolerance {
		j.addSuspect(kindOrphan.newFinding(fmt.Sprintf("run %s of %s is on node %s, whose instance has been proved dead since %s", k.Run, k.Ref, k.Node, j.reader.formatAgo(at)),
			string(e.Key), clearedPrefix(j.keys)+r.Instance), seenRecord(e), node)
		return true
	}

	// The node is absent. nodeLongAbsent determines for how long.
	f := kindOrphan.newFinding(fmt.Sprintf("run %s of %s is on node %s, which has been absent for longer than %s", k.Run, k.Ref, k.Node, r.EffectiveLostAfter()),
		string(e.Key), node.Key)
	j.suspectWith(f, nodeLongAbsent{
		reader: j.reader, node: k.Node, lostAfter: r.EffectiveLostAfter(), attemptMod: e.ModRevision,
	}, seenRecord(e), node)

	return true
}

// checkHaveTasks suspects attempts whose tasks are gone, unless a cancel was requested.
func (j *attemptJudge) checkHaveTasks(ctx context.Context, page []inboxRecord) error {
	keys := make([]string, 0, len(page))
	for _, attempt := range page {
		keys = append(keys, j.keys.Entry(attempt.key.Ref))
	}

	entries, err := j.reader.readKeys(ctx, keys...)
	if err != nil {
		return err
	}

	// An attempt is in order if its cancel was requested, or if an entry with its uid, or one that cannot be read,
	// exists.
	for _, attempt := range page {
		key := attempt.key
		entry := store.Seen{Key: j.keys.Entry(key.Ref)}

		e := entries[entry.Key]
		if attempt.CancelRequested || e != nil && (uidOf(e.Value) == attempt.UID || uidOf(e.Value) == "") {
			continue
		}

		if e != nil {
			entry.Mod = e.ModRevision
		}

		j.addSuspect(kindNoTask.newFinding(fmt.Sprintf("run %s on node %s belongs to task %s (uid %s), which was deleted", key.Run, key.Node, key.Ref, attempt.UID),
			attempt.Key), attempt.Seen, entry)
	}

	return nil
}

// nodeLongAbsent checks in etcd's past that a node has been absent for longer than the attempt's lost_after, and
// that the attempt has not changed since.
type nodeLongAbsent struct {
	reader     *reader
	node       string
	lostAfter  task.Duration // of the attempt's record
	attemptMod int64         // the mod revision of the attempt's record, which must not have changed since the node left
}

// stillHolds returns false if etcd's past does not reach far enough. It then adds a note instead of a finding.
func (l nodeLongAbsent) stillHolds(ctx context.Context) (bool, error) {
	gone, known, err := l.absentBefore(ctx, l.reader.at.Add(-l.lostAfter.Std()-timeTolerance))
	if err == nil && !known {
		l.reader.notes.addNote("node %s has attempts and is absent; etcd does not keep enough revisions to tell for how long: run the audit again in %s", l.node, l.lostAfter)
	}
	return gone, err
}

// absentBefore reports whether, at a time in the past, the node's key was already absent and the attempt's record
// was as it is now. known is false if etcd's past does not reach that far.
//
// etcd does not store when a revision was written. The only clock is the time that nodes announced in their
// records. The newest revision at which no node had announced a time later than the given one is not later than it.
// A binary search finds that revision.
func (l nodeLongAbsent) absentBefore(ctx context.Context, before time.Time) (gone, known bool, err error) {
	past, err := l.reader.store.Readable(ctx)
	if err != nil {
		return false, false, err
	}

	// In the loop, no node had announced a time after before at low. high is a revision at which one had, or the
	// current one.
	low, high := past.Oldest, l.reader.revision
	at, err := l.clockAt(ctx, low)
	for err == nil && !at.After(before) && low+1 < high {
		var then time.Time
		middle := low + (high-low)/2
		if then, err = l.clockAt(ctx, middle); then.After(before) {
			high = middle
		} else {
			low, at = middle, then
		}
	}

	// Without a node, no time was announced.
	reaches := !at.IsZero() && !at.After(before)
	key := l.reader.keys.Node(l.node)

	var res *clientv3.GetResponse
	if err == nil && reaches {
		res, err = l.reader.store.Client().Get(ctx, key, clientv3.WithRev(low), clientv3.WithCountOnly())
	}

	switch {
	case errors.Is(err, rpctypes.ErrCompacted): // compacted since Readable
		return false, false, nil
	case err != nil:
		return false, false, unavailableError("read the history of "+key, err)
	case !reaches:
		return false, false, nil
	}

	return res.Count == 0 && l.attemptMod <= low, true, nil
}

// clockAt returns the latest time that a node had announced at a revision, or zero if no node was present.
func (l nodeLongAbsent) clockAt(ctx context.Context, revision int64) (time.Time, error) {
	key, end := kv.Prefix(l.reader.keys.Nodes())
	res, err := l.reader.store.Client().Get(ctx, key, clientv3.WithRange(end), clientv3.WithRev(revision))
	if err != nil {
		return time.Time{}, unavailableError("read the history of the nodes", err)
	}

	var latest time.Time
	for _, e := range res.Kvs {
		var n task.Node
		if json.Unmarshal(e.Value, &n) == nil && n.Clock.After(latest) {
			latest = n.Clock.Time
		}
	}

	return latest, nil
}
