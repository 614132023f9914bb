package store_test

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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
