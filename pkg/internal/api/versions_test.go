package api_test

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestVersions_TellWhoChangedWhatAndWhen(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	w.clock.advance(time.Hour)
	_, err := w.Tasks.Patch(ctx, "default", "a", []byte(`{"timeout": "10m"}`), 0)
	must(t, err)
	_, err = w.Tasks.PauseWith(ctx, "default", "a", client.PauseRequest{Reason: "x"}, 0)
	must(t, err)
	_, err = w.Tasks.Resume(ctx, "default", "a", 0)
	must(t, err)
	list, err := w.Tasks.ListVersions(ctx, "default", "a")
	must(t, err)

	var told []string
	for _, v := range list {
		told = append(told, v.Change+" by "+strings.Replace(v.UpdatedBy.String(), w.actor(), "ann", 1)+": "+strings.Join(v.Changed, "; "))
	}

	want := []string{
		"resumed by ann: pause_reason: x → none; paused: true → none", "paused by ann: pause_reason: none → x; paused: none → true",
		"updated by ann: timeout: none → 10m", "created by ann: ",
	}
	if !slices.Equal(told, want) || list[0].Generation != 4 || !list[3].UpdatedAt.Equal(w.clock.now().Add(-time.Hour)) || list[0].Revision == 0 {
		t.Errorf("got\n%s", strings.Join(told, "\n"))
	}

	must(t, w.Tasks.Delete(ctx, "default", "a", 0))
	_, err = w.Tasks.ListVersions(ctx, "default", "a")
	if e := wantError(t, err, task.ErrNotFound, client.CodeDeleted); !strings.Contains(e.Message, "it was deleted at 2026-11-20T23:05:00Z by "+w.actor()) {
		t.Errorf("after the delete: %s", e.Message)
	}

	_, gone, err := w.store.Versions(ctx, ref("default", "a"))
	if !errors.Is(err, task.ErrNotFound) || gone == nil || gone.UID != list[0].UID || gone.Generation != 4 {
		t.Errorf("tombstone: %+v", gone)
	}

	w.batch("", line("a", "@daily")) // created again

	if res, err := w.etcd.Get(ctx, w.store.Keys().Tombstone(ref("default", "a"))); err != nil || len(res.Kvs) != 0 {
		t.Errorf("tombstone of an existing task: %+v, %v", res, err)
	}

	if list, err = w.Tasks.ListVersions(ctx, "default", "a"); err != nil || len(list) != 1 {
		t.Errorf("%d versions of the new one, %v", len(list), err)
	}
}

func TestRollback(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily") // 1
	back := func(r client.RollbackRequest, revision int64) (client.RolledBack, error) {
		return w.Tasks.Rollback(ctx, "default", "a", r, revision)
	}

	_, err := back(client.RollbackRequest{}, 0)
	wantError(t, err, task.ErrConflict, client.CodeConflict)

	for _, patch := range []string{`{"timeout": "1m"}`, `{"timeout": "2m", "schedule": "@hourly"}`} { // 2, 3
		w.clock.advance(time.Minute)
		_, err := w.Tasks.Patch(ctx, "default", "a", []byte(patch), 0)
		must(t, err)
	}

	_, err = w.Tasks.PauseWith(ctx, "default", "a", client.PauseRequest{Reason: "x"}, 0) // 4
	must(t, err)

	before := w.dump()
	got, err := back(client.RollbackRequest{DryRun: true}, 0)
	must(t, err)

	if want := []string{"schedule: @hourly → @daily", "timeout: 2m → 1m"}; got.To != 2 || !slices.Equal(got.Changed, want) || !maps.Equal(before, w.dump()) {
		t.Errorf("dry: to %d, %q", got.To, got.Changed)
	}

	_, err = back(client.RollbackRequest{}, 1)
	wantError(t, err, task.ErrStale, client.CodeStale)

	_, err = back(client.RollbackRequest{To: 3}, 0)
	if e := wantError(t, err, task.ErrConflict, client.CodeConflict); !strings.Contains(e.Message, "is the same as") {
		t.Errorf("to what differs by a pause alone: %s", e.Message)
	}

	_, err = back(client.RollbackRequest{To: 9}, 0)
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)

	w.clock.advance(time.Hour)
	got, err = back(client.RollbackRequest{}, w.get("a").Revision)
	must(t, err)

	e := w.entry(ref("default", "a"))
	if got.Generation != 5 || got.Schedule[0] != "@daily" || got.Timeout != task.Duration(time.Minute) || !got.Paused || got.PauseReason != "x" || got.Change != task.ChangeRolledBack ||
		e.Schedule[0] != "@daily" || !e.Paused || !e.From.Equal(w.clock.now()) {
		t.Errorf("rolled back: %+v, entry %+v", got.Task, e)
	}

	got, err = back(client.RollbackRequest{To: 1}, 0)
	if must(t, err); got.Timeout != 0 || got.Generation != 6 {
		t.Errorf("to the first: %+v", got.Task)
	}

	list, err := w.Tasks.ListVersions(ctx, "default", "a")
	if must(t, err); len(list) != 6 || list[0].Change != task.ChangeRolledBack {
		t.Errorf("versions: %+v", list)
	}

	_, err = w.Tasks.Rollback(ctx, "default", "none", client.RollbackRequest{}, 0)
	wantError(t, err, task.ErrNotFound, client.CodeNotFound)

	// A version that this release would reject cannot be restored.
	old := list[len(list)-1].Task
	old.Schedule = task.Schedules{"61 * * * *"}
	w.put(w.store.Keys().Version(ref("default", "a"), 1), old)
	_, err = back(client.RollbackRequest{To: 1}, 0)
	wantError(t, err, task.ErrInvalid, task.CodeBadSchedule)
}

func TestSetCluster_LostAfter(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	shown := func() time.Duration {
		st, err := w.Cluster.Status(ctx)
		must(t, err)
		return st.LostAfter.Std()
	}

	if shown() != 2*time.Minute {
		t.Errorf("by default %s", shown())
	}

	for _, c := range []struct{ set, want time.Duration }{
		{30 * time.Second, 30 * time.Second}, {12 * time.Second, 12 * time.Second}, {24 * time.Hour, 24 * time.Hour}, {0, 2 * time.Minute},
	} {
		now, err := w.Cluster.UpdateSettings(ctx, client.ClusterSettings{LostAfter: new(task.Duration(c.set))})
		must(t, err)
		record, err := w.store.Cluster(ctx)
		must(t, err)

		if now.LostAfter.Std() != c.want || shown() != c.want || record.EffectiveLostAfter().Std() != c.want {
			t.Errorf("set to %s it is %s, shown as %s, on record %s", c.set, *now.LostAfter, shown(), record.EffectiveLostAfter())
		}

		if *now.CatchUpRate != task.DefaultCatchUpRate {
			t.Errorf("the other setting is %d now", *now.CatchUpRate)
		}
	}

	for _, d := range []time.Duration{-time.Second, time.Millisecond, 12*time.Second - 1, 24*time.Hour + 1} {
		_, err := w.Cluster.UpdateSettings(ctx, client.ClusterSettings{LostAfter: new(task.Duration(d))})
		wantError(t, err, task.ErrInvalid, task.CodeOutOfRange)
	}
}

func TestSetCluster_Ledger(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	const day = task.Duration(24 * time.Hour)

	if st, err := w.Cluster.Status(ctx); err != nil || st.Ledger != 30*day || st.LedgerLimit != nil {
		t.Errorf("by default %s, limit %v, %v", st.Ledger, st.LedgerLimit, err)
	}

	before := w.dump()
	if now, err := w.Cluster.UpdateSettings(ctx, client.ClusterSettings{Ledger: new(30 * day)}); err != nil || *now.Ledger != 30*day || !maps.Equal(before, w.dump()) {
		t.Errorf("the default: %+v, %v", now, err)
	}

	for _, d := range []task.Duration{0, 90 * day, 7 * day} {
		now, err := w.Cluster.UpdateSettings(ctx, client.ClusterSettings{Ledger: &d})
		must(t, err)
		st, err := w.Cluster.Status(ctx)
		must(t, err)

		if *now.Ledger != d || st.Ledger != d {
			t.Errorf("set to %s it is %s, shown as %s", d, now.Ledger, st.Ledger)
		}
	}
}

// A limit of the leader is shown with its time and its reason, and survives a change of the setting.
func TestCluster_ShowsTheLimitOfLedgers(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("dump", "0 * * * *")

	for _, c := range []struct {
		limit task.Duration
		want  string
	}{
		{task.Duration(24 * time.Hour), "ledgers remember for 1d at most, because etcd is filling up (since 2026-11-26T10:00:00Z)"},
		{0, "ledgers remember nothing, because etcd is filling up (since 2026-11-26T10:00:00Z)"},
	} {
		old, err := w.store.Cluster(ctx)
		must(t, err)
		limited := old.Cluster
		limited.LedgerLimit, limited.LedgerLimitSince = &c.limit, task.At(time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC))
		must(t, w.store.ChangeCluster(ctx, old, limited))
		_, err = w.Cluster.UpdateSettings(ctx, client.ClusterSettings{Ledger: new(task.Duration(c.limit + 1))})
		must(t, err)

		st, err := w.Cluster.Status(ctx)
		must(t, err)
		if st.LedgerLimit == nil || *st.LedgerLimit != c.limit || !slices.ContainsFunc(st.WarningDetails, func(x task.Warning) bool {
			return x.Code == task.WarnLedgerLimited && strings.HasPrefix(x.Text, c.want)
		}) {
			t.Errorf("limit %v, warnings %q", st.LedgerLimit, st.Warnings)
		}

		l, err := w.Tasks.Ledger(ctx, "default", "dump", client.LedgerOptions{})
		if err != nil || l.Remembers != c.limit || l.Limit == nil {
			t.Errorf("the task's ledger remembers %s, %v", l.Remembers, err)
		}
	}
}

func TestSetCluster_CatchUpRate(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	rate := func() int {
		st, err := w.Cluster.Status(ctx)
		must(t, err)
		return st.CatchUpRate
	}

	if rate() != task.DefaultCatchUpRate {
		t.Errorf("by default %d", rate())
	}

	for _, c := range []struct{ set, want int }{{25, 25}, {25, 25}, {0, task.DefaultCatchUpRate}} {
		now, err := w.Cluster.UpdateSettings(ctx, client.ClusterSettings{CatchUpRate: &c.set})
		must(t, err)
		if *now.CatchUpRate != c.want || rate() != c.want {
			t.Errorf("set to %d it is %d, %d", c.set, *now.CatchUpRate, rate())
		}
	}

	before := w.dump()
	if _, err := w.Cluster.UpdateSettings(ctx, client.ClusterSettings{}); err != nil || !maps.Equal(before, w.dump()) {
		t.Errorf("nothing to set: %v", err)
	}

	if r := w.do(request{method: http.MethodPatch, path: "/v1/cluster"}); r.status != 400 && r.status != 415 {
		t.Errorf("without a body: %d", r.status)
	}
}
