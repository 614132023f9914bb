package store_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// An account contains the runs around the period and the number of newer ones. Its size does not grow with the
// history.
func TestAccount_IsOfOneTimeAndBounded(t *testing.T) {
	w := newWorld(t)
	st := w.create(ref)
	start := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	tick := func(i int) time.Time { return start.Add(time.Duration(i) * time.Minute) }
	const all = 3000
	var ops []clientv3.Op
	for i := range all {
		key := w.keys.Ended(ref, task.RunID(tick(i), st.Task.UID))
		if ops = append(ops, clientv3.OpPut(key, `{"uid":"`+st.Task.UID+`","scheduled_time":"`+tick(i).Format("2006-01-02T15:04:05.000Z")+`","state":"succeeded"}`)); len(ops) == 100 {
			_, err := w.etcd.Txn(t.Context()).Then(ops...).Commit()
			ok(t, err)
			ops = nil
		}
	}

	w.put(w.keys.Ended(ref, task.RunID(tick(1500), st.Task.UID)), "{")
	w.put(w.keys.Late(ref, task.RunID(tick(1501), st.Task.UID), 7), `{"state":"succeeded"}`)

	a, err := w.Account(t.Context(), ref, tick(1500), tick(1502))
	ok(t, err)

	if n := len(a.Runs); n < 10 || n > 400 || a.Newer < 1000 || !a.CutAt.IsZero() {
		t.Errorf("%d runs, %d newer, cut at %s", n, a.Newer, a.CutAt)
	}

	has := map[string]bool{}
	for _, r := range a.Runs {
		has[r.ID] = true
	}

	for i := 1490; i < 1510; i++ {
		if has[task.RunID(tick(i), st.Task.UID)] != (i != 1500) {
			t.Errorf("the run of tick %d: %t", i, has[task.RunID(tick(i), st.Task.UID)])
		}
	}

	if newest := a.Runs[0].ScheduledTime; all-1-int(newest.Sub(start)/time.Minute) != int(a.Newer) {
		t.Errorf("%d are newer than %s", a.Newer, newest)
	}

	if len(a.Broken) != 1 || a.Broken[0] != w.keys.Ended(ref, task.RunID(tick(1500), st.Task.UID)) || len(a.Late) != 1 || a.Late[0].ID != task.RunID(tick(1501), st.Task.UID) {
		t.Errorf("broken %v, late %v", a.Broken, a.Late)
	}

	if a.Task == nil || a.Entry == nil || a.EntryMade == 0 || a.Revision == 0 {
		t.Errorf("%+v", a.Task)
	}

	a, err = w.Account(t.Context(), ref, start, tick(all))
	ok(t, err)

	if len(a.Runs) > 2400 || a.Newer != 1001 || !a.CutAt.Equal(tick(1998)) {
		t.Errorf("of all: %d runs, %d newer, cut at %s", len(a.Runs), a.Newer, a.CutAt)
	}
}

// putAll writes records, as many in a transaction as fit.
func (w *world) putAll(records map[string]string) {
	w.Helper()
	var ops []clientv3.Op
	for key, value := range records {
		ops = append(ops, clientv3.OpPut(key, value))
	}

	for some := range slices.Chunk(ops, 100) {
		if _, err := w.etcd.Txn(w.Context()).Then(some...).Commit(); err != nil {
			w.Fatal(err)
		}
	}
}

// A tick is found among thousands of requested runs. Where it may not have been, the account says so.
func TestAccount_FindsTicksAmongManyRequests(t *testing.T) {
	w := newWorld(t)
	st := w.create(ref)
	start := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	at := func(second int) time.Time { return start.Add(time.Duration(second) * time.Second) }
	value := func(second int, rest string) string {
		return `{"uid":"` + st.Task.UID + `","scheduled_time":"` + at(second).Format("2006-01-02T15:04:05.000Z") + `",` + rest + `}`
	}

	// A requested run each second waits, or has ended. Ticks that wait follow each 100 seconds, and 4,000 ticks were skipped.
	const waiting = 4000
	records := map[string]string{w.keys.Ended(ref, task.RunID(at(-1), st.Task.UID)): value(-1, `"trigger":"schedule","state":"skipped","count":4002,"last":"`+at(4000).Format("2006-01-02T15:04:05.000Z")+`"`)}
	for i := range waiting {
		records[w.keys.Queued(ref, task.RunID(at(i), st.Task.UID)+"-abcd")] = value(i, `"trigger":"manual","state":"queued"`)
		records[w.keys.Ended(ref, task.RunID(at(i), st.Task.UID)+"-efgh")] = value(i, `"trigger":"manual","state":"succeeded"`)
		if i%100 == 50 {
			records[w.keys.Queued(ref, task.RunID(at(i), st.Task.UID))] = value(i, `"trigger":"schedule","state":"queued"`)
		}
	}
	w.putAll(records)

	for _, c := range []struct {
		from, to int
		unread   bool // there are waiting ticks that were not read
	}{{2050, 2050, false}, {1950, 2250, false}, {300, 3800, true}, {5000, 5000, false}} {
		a, err := w.Account(t.Context(), ref, at(c.from), at(c.to))
		ok(t, err)
		has := func(id string) bool { return slices.ContainsFunc(a.Runs, func(r task.Run) bool { return r.ID == id }) }
		if !has(task.RunID(at(-1), st.Task.UID)) {
			t.Errorf("from %d: the record of the skipped ticks is missing", c.from)
		}

		unread := 0
		for i := 50; i < waiting; i += 100 {
			isUnread := slices.ContainsFunc(a.Unread, func(p record.Period) bool { return !at(i).Before(p.From.Time) && !at(i).After(p.To.Time) })
			isAsked := c.from <= i && i <= c.to
			if isAsked && isUnread {
				unread++
			}
			if !isUnread && !has(task.RunID(at(i), st.Task.UID)) {
				t.Errorf("from %d: the tick of %d is missing, and the account does not say so", c.from, i)
			}
		}

		if (unread > 0) != c.unread {
			t.Errorf("from %d to %d, %d ticks were not read", c.from, c.to, unread)
		}
	}
}

func TestLedger_ReadsWhatBelongsToOneTask(t *testing.T) {
	w := newWorld(t)
	if _, err := w.Ledger(t.Context(), ref); !errors.Is(err, task.ErrNotFound) {
		t.Errorf("of a task that does not exist: %v", err)
	}

	w.create(ref)
	neighbour := record.Ref{Namespace: ref.Namespace, Name: ref.Name + "-1", Shard: ref.Shard}
	w.put(w.keys.LedgerChunk(neighbour, "20261101T000000.000Z"), "another")
	if l, err := w.Ledger(t.Context(), ref); err != nil || len(l.Chunks) != 0 {
		t.Errorf("of a task without runs: %+v, %v", l, err)
	}

	w.put(w.keys.LedgerChunk(ref, "20261102T000000.000Z"), "second")
	w.put(w.keys.LedgerChunk(ref, "20261101T000000.000Z"), "first")
	first := w.putEnded(ref, 0, task.Succeeded)
	w.putEnded(ref, 1, task.Failed)

	l, err := w.Ledger(t.Context(), ref)
	ok(t, err)
	if !slices.EqualFunc(l.Chunks, []string{"first", "second"}, func(b []byte, s string) bool { return string(b) == s }) || l.Task.Name != ref.Name {
		t.Errorf("%q, task %q", l.Chunks, l.Task.Name)
	}

	// A trim after the ledger was read does not hide what it has moved.
	w.del(w.keys.Ended(ref, first))
	var ids []string
	if _, _, err := w.EachEnded(t.Context(), ref, l.Revision, time.Time{}, func(r *task.Run) { ids = append(ids, r.ID) }); err != nil || len(ids) != 2 || ids[0] != first {
		t.Errorf("at the revision of the ledger: %q, %v", ids, err)
	}
}
