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

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ledger collects what the revisions of one shard show. Two readers fill it concurrently: one for the shard's
// directory, one for its part of the inbox.
type ledger struct {
	keys   record.Keys
	period int64 // of the tasks of the load, in ms

	mu      sync.Mutex
	mark    record.Watermark  // the latest watermark
	entries map[string]*entry // by task
	runs    map[string]*run   // by task and id
	faults  tally             // changes that must not happen, found while the revisions are read
}

// entry is a task: where its ticks begin, up to where its entry decides them, and how many have an outcome.
type entry struct {
	uid                string
	anchor, from, last int64              // in ms; last is the latest from
	create             int64              // the entry's create revision
	decided            int64              // ticks with an outcome
	rule               *schedule.Schedule // nil: the ledger's period
}

// run is what happened to a tick, by the key of its record.
type run struct {
	claims, ends    int   // how often it was dispatched, and how often it ended
	gone, ended     int64 // revisions: the attempt was deleted, the end was recorded
	skipped, missed int64 // ticks that the record contains
}

// addEvent adds one change.
func (l *ledger) addEvent(e check.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()

	// A new inbox record is a dispatch, a deleted one the end of the attempt. Rewrites do not count.
	if k, ok := l.keys.ParseRun(e.Key); ok {
		r := l.findOrAddRun(k.Ref.Name, k.Run)

		switch {
		case e.Deleted:
			r.gone = e.Revision
		case e.CreateRevision == e.ModRevision:
			r.claims++
		}

		return
	}

	k, ok := l.keys.ParseShard(e.Key)
	if !ok {
		l.faults.addFault("%s is not a key of this benchmark", e.Key)
		return
	}

	// Nothing but history may be deleted, by trims.
	if e.Deleted {
		if k.Kind != record.KindEnded {
			l.faults.addFault("%s was deleted", e.Key)
		}
		return
	}

	if err := l.putRecord(k, e); err != nil {
		l.faults.addFault("%s: %v", e.Key, err)
	}
}

// putRecord adds a record of the shard's directory.
func (l *ledger) putRecord(k record.ShardKey, e check.Event) (err error) {
	switch k.Kind {
	case record.KindWatermark:
		l.mark, err = record.DecodeWatermark(e.Value)
	case record.KindEntry:
		var d task.Entry
		if d, err = record.DecodeEntry(e.Value); err != nil {
			return err
		}

		if known := l.entries[k.Ref.Name]; known != nil {
			known.last = d.From.UnixMilli()
			return nil
		}

		rule, err := l.scheduleOf(d)
		if err != nil {
			return err
		}

		l.entries[k.Ref.Name] = &entry{uid: d.UID, rule: rule, anchor: d.Anchor.UnixMilli(), from: d.From.UnixMilli(), last: d.From.UnixMilli(), create: e.CreateRevision}
	case record.KindEnded:
		d, err := record.DecodeEnded(k, e.Value)
		if err != nil {
			return err
		}

		r := l.findOrAddRun(k.Ref.Name, k.Run)

		switch d.State {
		case task.Skipped:
			r.skipped = d.Ticks() // a later skip of the task may rewrite the record with more ticks
		case task.Missed:
			r.missed = d.Ticks()
		default:
			if r.ends++; d.State != task.Succeeded || k.Late {
				l.faults.addFault("run %s of %s ended as %q %s", k.Run, k.Ref, d.State, d.Message)
			}
			r.ended = e.Revision
		}
	}

	return err
}

// scheduleOf returns the schedule of an entry whose period is not the ledger's, or whose ticks end, or nil. Such a task
// has few ticks, so that each can be computed.
func (l *ledger) scheduleOf(e task.Entry) (*schedule.Schedule, error) {
	if e.End.IsZero() && len(e.Schedule) == 1 && e.Schedule[0] == "@every "+(time.Duration(l.period)*time.Millisecond).String() {
		return nil, nil
	}
	return schedule.Parse(e.Timing(), e.Anchor.Time)
}

// findOrAddRun returns a run, and creates it if it is new.
func (l *ledger) findOrAddRun(name, id string) *run {
	key := name + "/" + id
	r := l.runs[key]
	if r == nil {
		r = &run{}
		l.runs[key] = r
	}

	return r
}

// addToTally judges the shard's runs and ticks, and adds them to the tally. ends states that runs are executed, so
// that each must end.
func (l *ledger) addToTally(t *tally, ends bool) {
	for _, f := range l.faults.Faults {
		t.addFault("%s", f)
	}

	for key, r := range l.runs {
		name, id, _ := strings.Cut(key, "/")
		l.judgeRun(t, name, id, r)

		// A dispatched run must be dispatched once and, if runs are executed, end once in the revision that deletes
		// its attempt.
		switch {
		case r.claims == 0:
		case r.claims > 1:
			t.addFault("run %s was dispatched %d times", key, r.claims)
		case ends && r.ends != 1:
			t.addFault("run %s was dispatched, but its end was recorded %d times", key, r.ends)
		case ends && r.ended != r.gone:
			t.addFault("run %s ended at revision %d, but its attempt was deleted at %d", key, r.ended, r.gone)
		case !ends && r.ends+int(r.gone) > 0:
			t.addFault("run %s has ended, but nothing should run", key)
		}

		t.Claimed += int64(min(r.claims, 1))
		t.Finished += int64(min(r.ends, 1))
		t.Skipped += r.skipped
		t.Missed += r.missed
	}

	// Every tick that is decided must have an outcome, and no other tick may have one.
	for name, e := range l.entries {
		if want := l.decidedTicks(name, e); e.decided != want {
			t.addFault("task %s had %d ticks, but %d have an outcome", name, want, e.decided)
		}
	}
}

// judgeRun checks that a run is a tick of its task, and counts its outcomes.
func (l *ledger) judgeRun(t *tally, name, id string, r *run) {
	e := l.entries[name]
	at, ok := task.TimeOfRunID(id)
	if e == nil || !ok || id != task.RunID(at, e.uid) || at.UnixMilli() <= e.from || !e.ticksAt(at, l.period) {
		t.addFault("run %s of %s is not a tick of a task of this benchmark", id, name)
		return
	}

	ran := int64(0)
	if r.claims > 0 || r.ends > 0 {
		ran = 1
	}

	if ran+min(r.skipped, 1)+min(r.missed, 1) > 1 {
		t.addFault("tick %s of %s has several outcomes", id, name)
	}

	e.decided += ran + r.skipped + r.missed
}

// decidedTicks returns how many ticks of a task are decided, by the watermark and by the entry.
func (l *ledger) decidedTicks(name string, e *entry) int64 {
	until := e.last
	if e.create <= l.mark.Seen {
		mark := l.mark.Time.UnixMilli()
		if !l.mark.Decided(l.mark.Time, benchNamespace+"/"+name) {
			mark--
		}
		until = max(until, mark)
	}

	if e.rule != nil {
		n := int64(0)
		for at, ok := e.rule.Next(time.UnixMilli(e.from)); ok && at.UnixMilli() <= until; at, ok = e.rule.Next(at) {
			n++
		}
		return n
	}

	upTo := func(ms int64) int64 { return max(ms-e.anchor, 0) / l.period }

	return upTo(until) - upTo(e.from)
}

// ticksAt reports whether at is a tick of the task.
func (e *entry) ticksAt(at time.Time, period int64) bool {
	if e.rule != nil {
		next, ok := e.rule.Next(at.Add(-time.Millisecond))
		return ok && next.Equal(at)
	}
	return (at.UnixMilli()-e.anchor)%period == 0
}

// tally is the sum of what the revisions of a run show.
type tally struct {
	Claimed  int64 // runs that ticks caused
	Finished int64 // those of them that have ended
	Skipped  int64 // ticks
	Missed   int64 // ticks
	Faults   []string
}

// maxFaults limits the list of faults.
const maxFaults = 5

// addFault adds a fault, up to maxFaults.
func (t *tally) addFault(format string, args ...any) {
	if len(t.Faults) < maxFaults {
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

// readBack reads every revision since from, and judges it: every tick up to the watermarks has one
// outcome, and every run was dispatched once. If ends is set, every run also ended once, in the revision that
// deleted its attempt. Trimmed records count, because readBack has seen them.
func (c *cluster) readBack(ctx context.Context, period time.Duration, ends bool) (tally, error) {
	upTo, err := c.currentRevision(ctx)
	if err != nil {
		return tally{}, err
	}
	if err := c.markEnds(ctx); err != nil {
		return tally{}, err
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	// Read all shards in parallel, with one client for every shardsPerReader of them.
	ledgers := make([]ledger, c.shards)
	var wg sync.WaitGroup

	var client *kv.Client

	// Its two watches fill the ledger of a shard.
	for id := range ledgers {
		if id%shardsPerReader == 0 {
			if client, err = c.dialClient(ctx); err != nil {
				cancel(err)
				break
			}
			defer client.Close()
		}

		l, client := &ledgers[id], client
		*l = ledger{keys: c.keys, period: period.Milliseconds(), entries: map[string]*entry{}, runs: map[string]*run{}}

		for _, prefix := range c.shardPrefixes(id) {
			wg.Go(func() {
				if err := c.replayRange(ctx, client, prefix, c.from, upTo, l.addEvent); err != nil {
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
func (c *cluster) shardPrefixes(shard int) []string {
	inbox := strings.TrimRight(c.keys.InboxOf(c.inbox, record.Ref{Shard: shard}), "/") + "/"
	return []string{c.keys.Shard(shard), inbox}
}

// markEnds writes a key into every range that is read back, after all revisions of interest, so that the reader of
// that range can detect the end.
func (c *cluster) markEnds(ctx context.Context) error {
	var ops []clientv3.Op
	for id := range c.shards {
		for _, prefix := range c.shardPrefixes(id) {
			ops = append(ops, clientv3.OpPut(prefix+"~", ""))
		}
	}

	for chunk := range slices.Chunk(ops, 100) {
		if _, err := c.client.Txn(ctx).Then(chunk...).Commit(); err != nil {
			return fmt.Errorf("mark the ends: %w", err)
		}
	}

	return nil
}

// errRead ends a watch that has read everything.
var errRead = errors.New("all is read")

// replayRange calls take with the content of a range at one revision, and then with each change up to another
// revision. A later change of the range must exist (markEnds), by which it detects the end.
func (c *cluster) replayRange(ctx context.Context, client *kv.Client, prefix string, from, upTo int64, take func(check.Event)) error {
	key, end := kv.Prefix(prefix)
	first := true
	cfg := kv.FollowConfig{Key: key, End: end, Revision: from, StallAfter: settleFor, Name: "read back", Logger: c.log}
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
func (c *cluster) auditRange(ctx context.Context, from, upTo int64, ends bool) (check.Report, error) {
	client, err := c.dialClient(ctx)
	if err != nil {
		return check.Report{}, err
	}

	defer client.Close()

	var events []check.Event
	err = c.replayRange(ctx, client, c.keys.Root(), from, upTo, func(e check.Event) { events = append(events, e) })

	return check.Check(c.keys, events, check.Options{Ended: ends}), err
}
