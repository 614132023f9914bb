package audit

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// shardJudge reads the shards, judges their watermarks, and passes their other records to the other judges.
type shardJudge struct {
	judge
	entries *entryJudge
	queue   *queueJudge
	history *historyJudge
	ledgers *ledgerJudge
}

// checkShards reads the shards one after another: watermark, entries, queue, parts, history, dead-letter runs, and ledgers.
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

		j.entries.ticks.finishShard(s)
	}

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
func (r watermarkStillAhead) stillHolds(ctx context.Context) (bool, error) {
	ahead := false
	err := r.reader.getAt(ctx, 0, []string{r.key}, func(e *mvccpb.KeyValue) {
		w, err := record.DecodeWatermark(e.Value)
		ahead = err == nil && w.Time.Sub(r.reader.now()) > timeTolerance
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
