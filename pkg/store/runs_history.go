package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// historyEnd finds the newest records of a history without reading the older ones.
//
// etcd applies the limit of a range only if the answer is in ascending order. In any other order it reads the whole range
// with its values: of a history of 10,000 records some 4 MB, for the last three. So a historyEnd reads limited ranges in
// ascending order, each from a guessed time to the end, until such a range is short enough. Each answer contains the number of
// keys in its range, which determines the next guess. Runs can be distributed unevenly, so the guesses alternate between three
// methods: by the distance between the first records of the range, in proportion to the numbers of keys, and the middle.
//
//	low            probe            high     end
//	 ├───────────────┼────────────────┼───────┤
//	 more than       ?                fewer than wanted
//	 limit records                    records from here
type historyEnd struct {
	ref    record.Ref
	end    string // the key behind the last one
	wanted int

	low, high           time.Time
	lowKey              string        // where the range from low begins
	lowStep             time.Duration // the mean distance of the first records from low
	lowCount, highCount int64         // the numbers of records from there to the end
	probe               time.Time
	rounds              int

	records []*mvccpb.KeyValue // the newest ones, in ascending order; complete if isFound
	isFound bool
}

// maxProbes is how many ranges a historyEnd reads before it reads everything from low.
const maxProbes = 16

// limit is the number of records that one range returns at most.
func (h *historyEnd) limit() int { return endLimit(h.wanted) }

// endLimit is the limit of the reads of a historyEnd that wants n records. A range with at least n and at most endLimit(n)
// records is found in few reads.
func endLimit(n int) int { return 2*n + 4 }

// next returns the next read. keys must be those of the history.
func (h *historyEnd) next(keys record.Keys, rev int64) clientv3.Op {
	opts := []clientv3.OpOption{clientv3.WithRange(h.end), clientv3.WithRev(rev)}
	if h.rounds >= maxProbes || h.high.Sub(h.low) < 2*time.Millisecond {
		h.rounds = maxProbes + 1
		return newestIn(h.lowKey, h.end, h.wanted, clientv3.WithRev(rev))
	}

	// Between the number wanted and the limit, so that both too few and too many are unlikely.
	target := int64(h.wanted+h.limit()) / 2
	h.probe = h.low.Add(h.high.Sub(h.low) / 2)

	guess := h.probe
	switch h.rounds % 3 {
	case 0:
		guess = h.low.Add(time.Duration(h.lowCount-target) * h.lowStep)
	case 1:
		share := float64(target-h.highCount) / float64(h.lowCount-h.highCount)
		guess = h.high.Add(-time.Duration(share * float64(h.high.Sub(h.low))))
	}

	if guess = guess.Truncate(time.Millisecond); guess.After(h.low) && guess.Before(h.high) {
		h.probe = guess
	}
	h.rounds++

	return clientv3.OpGet(keys.HistoryOf(h.ref)+idBound(h.probe), append(opts, clientv3.WithLimit(int64(h.limit())))...)
}

// add takes the answer to a read from a key on.
func (h *historyEnd) add(history, from string, at time.Time, r *etcdserverpb.RangeResponse) {
	switch {
	case h.rounds > maxProbes: // the newest ones, the newest first
		h.records, h.isFound = slices.Clone(r.Kvs), true
		slices.Reverse(h.records)
	case !r.More && (len(r.Kvs) >= h.wanted || h.lowKey == ""):
		h.records, h.isFound = r.Kvs[max(0, len(r.Kvs)-h.wanted):], true
	case r.More:
		h.low, h.lowKey, h.lowCount = at, from, r.Count
		first, last := runTime(history, string(r.Kvs[0].Key)), runTime(history, string(r.Kvs[len(r.Kvs)-1].Key))
		h.lowStep = last.Sub(first) / time.Duration(len(r.Kvs))
		if !first.IsZero() {
			h.low = first
		}
	default:
		h.high, h.highCount = at, r.Count
	}
}

// runTime returns the time at the beginning of the run id in a key of a history. It returns zero if there is none.
func runTime(history, key string) time.Time {
	at, _ := task.TimeOfRunID(strings.TrimPrefix(key, history))
	return at
}

// newestFirst returns the records that were found, the newest first.
func (h *historyEnd) newestFirst() []*mvccpb.KeyValue {
	list := slices.Clone(h.records)
	slices.Reverse(list)

	return list
}

// beginHistoryEnd returns the search for the n newest records of a history before the key end. Their times are about before
// high; a wrong time only costs more reads. first is the answer to a read from the key from until end, in ascending order
// and limited to endLimit(n) records.
func (s *conn) beginHistoryEnd(ref record.Ref, from, end string, high time.Time, n int, first *etcdserverpb.RangeResponse) *historyEnd {
	history := s.keys.HistoryOf(ref)
	h := &historyEnd{ref: ref, end: end, wanted: n, high: high}

	at := time.Time{}
	if len(first.Kvs) > 0 {
		at = runTime(history, string(first.Kvs[0].Key))
	}
	h.add(history, from, at, first)

	// An id without a time, or one in the future: nothing can be guessed.
	if at.IsZero() || !at.Before(h.high) {
		h.rounds = maxProbes
	}

	return h
}

// finishHistoryEnds reads until all searches have found their records.
func (s *conn) finishHistoryEnds(ctx context.Context, searches []*historyEnd, rev int64) error {
	for {
		pending := slices.DeleteFunc(slices.Clone(searches), func(h *historyEnd) bool { return h.isFound })
		if len(pending) == 0 {
			return nil
		}

		ops := make([]clientv3.Op, len(pending))
		for i, h := range pending {
			ops[i] = h.next(s.keys, rev)
		}

		err := s.eachResponse(ctx, ops, func(i int, r *etcdserverpb.RangeResponse) {
			pending[i].add(s.keys.HistoryOf(pending[i].ref), string(ops[i].KeyBytes()), pending[i].probe, r)
		})
		if err != nil {
			return err
		}
	}
}

// EachEnded calls visit with the records in a task's history that begin at since or later, in the order of their ticks.
// A zero time means all of them. It returns how many records the history has in total, and the tick of the oldest one.
// All is read at revision rev, or at the current one if rev is 0, in pages, so that a long history needs little memory. It
// omits late results, and records that cannot be read.
func (s Runs) EachEnded(ctx context.Context, ref record.Ref, rev int64, since time.Time, visit func(*task.Run)) (kept int, oldest task.Time, err error) {
	const page = 500 // records of at most some KB each

	prefix := s.keys.HistoryOf(ref)
	end := clientv3.GetPrefixRangeEnd(prefix)

	all, err := s.readKey(ctx, prefix, clientv3.WithRange(end), clientv3.WithLimit(1), clientv3.WithKeysOnly(), clientv3.WithRev(rev))
	if err != nil {
		return 0, oldest, fmt.Errorf("read the history of %s: %w", ref, err)
	}
	if rev == 0 {
		rev = all.Header.Revision
	}
	if len(all.Kvs) == 0 {
		return 0, oldest, nil
	}

	if at, ok := task.TimeOfRunID(strings.TrimPrefix(string(all.Kvs[0].Key), prefix)); ok {
		oldest = task.At(at)
	}

	for from := prefix + idBound(since); ; {
		res, err := s.readKey(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(rev))
		if err != nil {
			return 0, oldest, fmt.Errorf("read the history of %s: %w", ref, err)
		}

		for _, e := range res.Kvs {
			if run, ok := record.DecodeRun(s.keys, e); ok {
				visit(&run)
			}
		}

		if !res.More || len(res.Kvs) == 0 {
			return int(all.Count), oldest, nil
		}

		from = string(res.Kvs[len(res.Kvs)-1].Key) + "\x00"
	}
}
