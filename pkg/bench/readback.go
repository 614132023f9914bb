package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/check"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// tally is the sum of what the revisions of a run show.
type tally struct {
	Claimed  int64 // runs that ticks caused
	Finished int64 // those of them that have ended
	Skipped  int64 // ticks
	Missed   int64 // ticks
	Faults   []string
}

// mostFaults limits the list of faults.
const mostFaults = 5

// addFault adds a fault, up to mostFaults.
func (t *tally) addFault(format string, args ...any) {
	if len(t.Faults) < mostFaults {
		t.Faults = append(t.Faults, fmt.Sprintf(format, args...))
	}
}

// faultsAsError returns nil if there are no faults.
func (t *tally) faultsAsError() error {
	if len(t.Faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(t.Faults, "; "))
}

// shardsPerReader is how many shards one client reads back. etcd reads all revisions for each thousand that it
// passes to a watch, but does so for many watches at once. So each shard has two watches, and all are open at the
// same time. They end together, and a stream on which dozens of watches end can stall. So each stream has only a
// few.
const shardsPerReader = 8

// readBack reads every revision since the node joined, and judges it: every tick up to the watermarks has one
// outcome, and every run was dispatched once. If ends is set, every run also ended once, in the revision that
// deleted its attempt. Trimmed records count, because readBack has seen them.
func (r *rig) readBack(ctx context.Context, period time.Duration, ends bool) (tally, error) {
	upTo, err := r.currentRevision(ctx)
	if err != nil {
		return tally{}, err
	}
	if err := r.markEnds(ctx); err != nil {
		return tally{}, err
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	// Read all shards in parallel, with one client for every shardsPerReader of them.
	ledgers := make([]ledger, r.cluster.Shards)
	var wg sync.WaitGroup

	var client *kv.Client

	// Its two watches fill the ledger of a shard.
	for id := range ledgers {
		if id%shardsPerReader == 0 {
			if client, err = r.dialClient(ctx); err != nil {
				cancel(err)
				break
			}
			defer client.Close()
		}

		l, client := &ledgers[id], client
		*l = ledger{keys: r.keys, period: period.Milliseconds(), entries: map[string]*entry{}, runs: map[string]*run{}}

		for _, prefix := range r.shardPrefixes(id) {
			wg.Go(func() {
				if err := r.replayRange(ctx, client, prefix, r.joinedAt, upTo, l.addEvent); err != nil {
					cancel(fmt.Errorf("read back %s: %w", prefix, err))
				}
			})
		}
	}

	wg.Wait()
	var all tally

	if err := context.Cause(ctx); err != nil {
		return all, err
	}

	// Judge each shard when all of its revisions are in.
	for id := range ledgers {
		ledgers[id].addToTally(&all, ends)
	}

	return all, nil
}

// shardPrefixes returns where a shard's records are: its directory, and its part of the inbox.
func (r *rig) shardPrefixes(shard int) []string {
	inbox := strings.TrimRight(r.keys.InboxOf(nodeName, record.Ref{Shard: shard}), "/") + "/"
	return []string{r.keys.Shard(shard), inbox}
}

// markEnds writes a key into every range that is read back, after all revisions of interest, so that the reader of
// that range can detect the end.
func (r *rig) markEnds(ctx context.Context) error {
	var ops []clientv3.Op
	for id := range r.cluster.Shards {
		for _, prefix := range r.shardPrefixes(id) {
			ops = append(ops, clientv3.OpPut(prefix+"~", ""))
		}
	}

	for chunk := range slices.Chunk(ops, 100) {
		if _, err := r.client.Txn(ctx).Then(chunk...).Commit(); err != nil {
			return fmt.Errorf("mark the ends: %w", err)
		}
	}

	return nil
}

// errRead ends a watch that has read everything.
var errRead = errors.New("all is read")

// replayRange calls take with the content of a range at one revision, and then with each change up to another
// revision. A later change of the range must exist (markEnds), by which it detects the end.
func (r *rig) replayRange(ctx context.Context, client *kv.Client, prefix string, from, upTo int64, take func(check.Event)) error {
	key, end := kv.Prefix(prefix)
	first := true
	cfg := kv.FollowConfig{Key: key, End: end, Revision: from, StallAfter: settleFor, Name: "read back", Logger: r.log}
	err := kv.Follow(ctx, client, cfg, func(b kv.Batch) error {
		// A second list, or one at another revision, means that revisions are missing.
		if b.Reset && (!first || b.Revision != from) {
			return fmt.Errorf("revisions behind %d are missing (compacted?)", from)
		}

		first = false

		for _, e := range b.KVs {
			take(check.Event{Revision: from, Key: string(e.Key), Value: e.Value, Listed: true,
				ModRevision: e.ModRevision, CreateRevision: e.CreateRevision, Lease: e.Lease})
		}

		for _, e := range b.Events {
			if e.Kv.ModRevision > upTo {
				return errRead
			}
			take(check.Event{Revision: e.Kv.ModRevision, Key: string(e.Kv.Key), Value: e.Kv.Value,
				Deleted: e.Type == clientv3.EventTypeDelete, ModRevision: e.Kv.ModRevision, CreateRevision: e.Kv.CreateRevision, Lease: e.Kv.Lease})
		}

		return nil
	})

	if errors.Is(err, errRead) {
		return nil
	}

	return err
}

// auditRange passes the same revisions to package check, which judges them independently and by all guarantees. It
// holds every revision in memory.
func (r *rig) auditRange(ctx context.Context, from, upTo int64, ends bool) (check.Report, error) {
	client, err := r.dialClient(ctx)
	if err != nil {
		return check.Report{}, err
	}

	defer client.Close()

	var events []check.Event
	err = r.replayRange(ctx, client, r.keys.Root(), from, upTo, func(e check.Event) { events = append(events, e) })

	return check.Check(r.keys, events, check.Options{Ended: ends}), err
}
