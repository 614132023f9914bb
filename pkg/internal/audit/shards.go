package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// shardJudge reads the shards, judges their watermarks, and passes their other records to the other judges.
type shardJudge struct {
	judge
	entries *entryJudge
	queue   *queueJudge
	history *historyJudge
	ledgers *ledgerJudge
	links   *linkJudge
	data    *runDataJudge
}

// checkShards reads the shards one after another: watermark, entries, queue, parts, history, dead-letter runs, subscribers, ledgers, and the data of
// runs of workflows.
// Each of them is compared with those before it.
func (j *shardJudge) checkShards(ctx context.Context) error {
	for id := range j.cluster.shards {
		s := &shardState{id: id, entries: map[string]entryState{}}
		if err := j.readWatermark(ctx, s); err != nil {
			return err
		}

		for _, directory := range []struct {
			prefix string
			check  checkShardFunc
		}{
			{j.keys.Entries(id), j.entries.checkEntry},
			{j.keys.Queue(id), j.queue.checkQueued},
			{j.keys.PartsIn(id), j.history.checkPart},
			{j.keys.History(id), j.history.checkEnded},
			{j.keys.Shard(id) + "dead/", j.history.checkDeadLetter},
			{j.keys.Shard(id) + string(record.KindSubscriber) + "/", j.links.checkSubscriber},
		} {
			if err := j.eachOf(ctx, s, directory.prefix, directory.check); err != nil {
				return err
			}

			// These two judge the records of one task together. The directory ends here, and with it its last task.
			j.queue.finishTask(s)
			j.history.finishTask(s)
		}

		if err := j.ledgers.checkLedgers(ctx, s); err != nil {
			return err
		}
		if err := j.data.checkRunData(ctx, s); err != nil {
			return err
		}

		j.entries.ticks.finishShard(s)
	}

	j.links.finish()

	return nil
}

// checkShardFunc judges one record of a shard.
type checkShardFunc func(context.Context, *shardState, *mvccpb.KeyValue, record.ShardKey)

// eachOf calls check with every record of a directory of a shard.
func (j *shardJudge) eachOf(ctx context.Context, s *shardState, prefix string, check checkShardFunc) error {
	return j.reader.eachRecord(ctx, prefix, func(ctx context.Context, e *mvccpb.KeyValue) error {
		k, ok := j.keys.ParseShard(string(e.Key))
		if !ok {
			j.suspectUnknownKey(e)
			return nil
		}

		check(ctx, s, e, k)

		return nil
	})
}

// readWatermark reads and judges a shard's watermark.
func (j *shardJudge) readWatermark(ctx context.Context, s *shardState) error {
	key := j.keys.Watermark(s.id)
	found, err := j.reader.readKeys(ctx, key)
	if err != nil {
		return err
	}

	j.reader.progress.addRecords(len(found))

	e := found[key]
	if e == nil {
		j.addSuspect(kindWatermarkMissing.newFinding(fmt.Sprintf("shard %d has no watermark", s.id), key), store.Seen{Key: key})
		return nil
	}

	j.checkNoLease(e)

	w, err := record.DecodeWatermark(e.Value)
	if err != nil {
		j.addSuspect(kindWatermarkDamaged.newFinding(fmt.Sprintf("the watermark of shard %d cannot be read: %v", s.id, err), key), seenRecord(e))
		return nil
	}

	s.watermark, s.watermarkMod = w, e.ModRevision

	// A watermark follows the owner's clock, so it is ahead only if that clock was.
	if ahead := w.Time.Sub(j.reader.at); ahead > timeTolerance {
		j.suspectWith(kindWatermarkAhead.newFinding(fmt.Sprintf("the watermark of shard %d is at %s, %s from now", s.id, timeText(w.Time.Time),
			ahead.Round(time.Second)), key), watermarkStillAhead{j.reader, key})
	}

	return nil
}

// watermarkStillAhead reads a watermark again. Its revision is not a fact, because it may have moved and still be
// ahead.
type watermarkStillAhead struct {
	reader *reader
	key    string
}

// stillHolds compares the watermark with the current time.
func (s watermarkStillAhead) stillHolds(ctx context.Context) (bool, error) {
	ahead := false
	err := s.reader.getAt(ctx, 0, []string{s.key}, func(e *mvccpb.KeyValue) {
		w, err := record.DecodeWatermark(e.Value)
		ahead = err == nil && w.Time.Sub(s.reader.now()) > timeTolerance
	})

	return ahead, err
}

// checkStray suspects records of shards that the cluster does not have. It reports one key for each such shard.
func (j *shardJudge) checkStray(ctx context.Context) error {
	directories := map[string]bool{}
	key, end := j.keys.Shard(j.cluster.shards), clientv3.GetPrefixRangeEnd(j.keys.Shards())
	return j.reader.eachInRange(ctx, key, end, func(_ context.Context, e *mvccpb.KeyValue) error {
		directory, _, _ := strings.Cut(strings.TrimPrefix(string(e.Key), j.keys.Shards()), "/")
		if !directories[directory] && len(directories) < maxPerKind {
			directories[directory] = true
			j.addSuspect(kindStrayShard.newFinding(fmt.Sprintf("records of shard %s, but the cluster has %d shards", directory, j.cluster.shards), string(e.Key)), seenRecord(e))
		}

		return nil
	})
}

// timeText formats a time for messages.
func timeText(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// watermarkText formats a watermark for messages.
func watermarkText(w record.Watermark) string {
	if w.Last == "" {
		return timeText(w.Time.Time)
	}
	return timeText(w.Time.Time) + " up to " + w.Last
}

// ownerJudge judges who owns the shards, and that no other node decides their ticks (G1).
type ownerJudge struct{ judge }

// checkOwner judges an owner key.
func (j *ownerJudge) checkOwner(_ context.Context, e *mvccpb.KeyValue) error {
	id, ok := j.keys.ParseOwner(string(e.Key))
	if !ok {
		j.suspectUnknownKey(e)
		return nil
	}

	j.checkNoLease(e)

	o := record.Owner{}
	if err := json.Unmarshal(e.Value, &o); err != nil {
		j.suspectUnreadable(e, fmt.Sprintf("the owner of shard %d", id), err)
	}

	o.Shard, o.Fence = id, e.ModRevision
	j.cluster.owners[id] = o

	if id >= j.cluster.shards {
		j.addSuspect(kindStrayShard.newFinding(fmt.Sprintf("an owner of shard %d, but the cluster has %d shards", id, j.cluster.shards), string(e.Key)), seenRecord(e))
	}

	return nil
}

// checkAllOwned checks that every shard has an owner that is present.
func (j *ownerJudge) checkAllOwned() {
	for id := range j.cluster.shards {
		key := j.keys.Owner(id)
		o, owned := j.cluster.owners[id]
		_, present := j.cluster.nodes[o.Node]

		switch {
		case !owned:
			j.addSuspect(kindNoOwner.newFinding(fmt.Sprintf("shard %d has no owner", id), key), store.Seen{Key: key})
		case o.Node == "": // checkOwner has reported it as unreadable
		case !present:
			j.addSuspect(kindOwnerAbsent.newFinding(fmt.Sprintf("the owner of shard %d, node %s, is not present", id, o.Node), key, j.keys.Node(o.Node)),
				store.Seen{Key: key, Mod: o.Fence}, store.Seen{Key: j.keys.Node(o.Node)})
		}
	}
}

// movesFor is how long a handover may take. The leader forces one that is not answered after 30 s.
const movesFor = 2 * time.Minute

// checkMove judges the record of a handover.
func (j *ownerJudge) checkMove(_ context.Context, e *mvccpb.KeyValue) error {
	var m struct {
		To    string    `json:"to"`
		Since task.Time `json:"since"`
	}
	if err := json.Unmarshal(e.Value, &m); err != nil {
		j.suspectUnreadable(e, "a handover", err)
		return nil
	}

	if j.reader.timeSince(m.Since.Time) > movesFor {
		shard := strings.TrimPrefix(string(e.Key), movesPrefix(j.keys))
		j.addSuspect(kindMoveStalled.newFinding(fmt.Sprintf("shard %s is being handed over to node %s, begun %s", shard, m.To, j.reader.formatAgo(m.Since.Time)),
			string(e.Key)), seenRecord(e))
	}

	return nil
}

// checkDecidedByOwner suspects a record of a decision that a node wrote when it did not own the shard (G1): it was
// written under the present fence, and names another node than the owner. Only a record that is as the deciding
// commit wrote it is evidence. A retry, for example, keeps the name of an earlier owner.
func (j *ownerJudge) checkDecidedByOwner(e *mvccpb.KeyValue, ref record.Ref, r task.Run) {
	o := j.cluster.owners[ref.Shard]
	if r.Owner == "" || o.Node == "" || r.Owner == o.Node || e.CreateRevision <= o.Fence || r.Attempt > 1 || len(r.Attempts) > 0 {
		return
	}

	asDecided := r.State == task.Missed || r.State == task.Skipped || r.State.Active() && r.DispatchedAt.Equal(r.CreatedAt.Time)
	if !asDecided || !r.HasTick() {
		return
	}

	f := kindTwoOwners.newFinding(fmt.Sprintf("node %s decided a tick of shard %d at revision %d, although node %s has owned it since revision %d",
		r.Owner, ref.Shard, e.CreateRevision, o.Node, o.Fence), string(e.Key), j.keys.Owner(ref.Shard))
	f.Revision = e.ModRevision

	// The record itself is not a fact that must still hold: it is evidence even if it is deleted meanwhile.
	j.addSuspect(f, store.Seen{Key: j.keys.Owner(ref.Shard), Mod: o.Fence})
}

// tickJudge judges whether the due ticks of a shard's tasks are decided (G16).
type tickJudge struct {
	judge

	// For the shard that is being read:
	overdue    int64      // tasks with an undecided tick
	oldest     int64      // the oldest of these ticks, in ms; 0: none
	oldestTask record.Ref // the task of that tick
}

// checkTicks finds a tick that has been due for longer than the task's grace for missed ticks and is not decided.
// created is the create revision of the entry.
func (j *tickJudge) checkTicks(s *shardState, ref record.Ref, e task.Entry, created int64) {
	if s.watermarkMod == 0 {
		return // the missing watermark is a separate finding
	}

	sched, err := schedule.Parse(e.Timing(), e.Anchor.Time)
	if err != nil {
		return
	}

	// after is the time up to which the task's ticks are decided or do not exist.
	after := e.From.Time
	if created <= s.watermark.Seen {
		if last, any := sched.LastDue(decidedUpTo(s.watermark, ref), e.UID); any && last.After(after) {
			after = last
		}
	}

	if until, paused := e.Silence(); paused && until.After(after) {
		after = until.Time
	}

	// The next tick is overdue when its grace and the tolerance for clocks have passed.
	tick, ok := sched.Next(after)
	late := j.reader.at.Add(-max(e.Missed.Grace.Std(), 0) - maxClockSkew)
	if !ok || sched.Due(tick, e.UID).After(late) {
		return
	}

	j.overdue++
	if at := tick.UnixMilli(); j.oldest == 0 || at < j.oldest {
		j.oldest, j.oldestTask = at, ref
	}
}

// finishShard suspects the watermark of a shard that does not move although ticks are due. The task's ticks are
// only evidence: the finding is confirmed if watermark and owner have not changed at the second read.
func (j *tickJudge) finishShard(s *shardState) {
	overdue, oldest, oldestTask := j.overdue, j.oldest, j.oldestTask // tasks with a due tick that is not decided
	j.overdue, j.oldest, j.oldestTask = 0, 0, record.Ref{}
	if overdue == 0 {
		return
	}

	o := j.cluster.owners[s.id]
	watermarkKey, ownerKey := j.keys.Watermark(s.id), j.keys.Owner(s.id)
	f := kindWatermarkStalled.newFinding(fmt.Sprintf("%s of shard %d (owner %q) have undecided ticks: the oldest, of %s, was due %s; the watermark is at %s",
		countOf(overdue, "task"), s.id, o.Node, oldestTask, j.reader.formatAgo(time.UnixMilli(oldest)), watermarkText(s.watermark)),
		watermarkKey, ownerKey, j.keys.Entry(oldestTask))
	f.Count = overdue
	j.addSuspect(f, store.Seen{Key: watermarkKey, Mod: s.watermarkMod}, store.Seen{Key: ownerKey, Mod: o.Fence})
}

// decidedUpTo returns the time up to which a watermark decides the ticks of a covered task. Tasks that sort after
// its last task are decided only up to the millisecond before.
func decidedUpTo(w record.Watermark, ref record.Ref) time.Time {
	if w.Last != "" && ref.String() > w.Last {
		return w.Time.Add(-time.Millisecond)
	}
	return w.Time.Time
}

// countOf formats a number of things.
func countOf(n int64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
