package daemon

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// memberList is an etcd with these members.
type memberList []etcdadmin.Member

func (l memberList) Members(context.Context, time.Duration) []etcdadmin.Member { return l }

// shownLimit formats a limit; "none" if there is none.
func shownLimit(d *task.Duration) string {
	if d == nil {
		return "none"
	}

	return d.String()
}

func TestLimitLedgers_WithHysteresis(t *testing.T) {
	start := time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC)
	var c task.Cluster

	for i, step := range []struct {
		percent int64
		want    string
		since   int // the step with which the limit began
	}{
		{0, "none", 0},
		{55, "none", 0},
		{56, "168h", 2},
		{55, "168h", 2},
		{51, "168h", 2},
		{50, "none", 0},
		{54, "none", 0},
		{64, "168h", 7},
		{66, "24h", 7},
		{61, "24h", 7},
		{60, "168h", 7},
		{65, "168h", 7},
		{76, "0s", 7},
		{71, "0s", 7},
		{70, "24h", 7},
		{100, "0s", 7},
		{58, "168h", 7},
		{10, "none", 0},
		{90, "0s", 18},
	} {
		now := task.At(start.Add(time.Duration(i) * time.Minute))
		next, changed := limitLedgers(c, step.percent, now)
		if changed != (shownLimit(next.LedgerLimit) != shownLimit(c.LedgerLimit)) {
			t.Errorf("step %d: changed is %t", i, changed)
		}

		c = next
		since := task.Time{}
		if step.want != "none" {
			since = task.At(start.Add(time.Duration(step.since) * time.Minute))
		}
		if got := shownLimit(c.LedgerLimit); got != step.want || !c.LedgerLimitSince.Equal(since.Time) {
			t.Errorf("step %d, at %d %%: limit %s since %s, want %s since %s", i, step.percent, got, c.LedgerLimitSince, step.want, since)
		}
	}
}

// The fullest member decides. Space that is free inside a file does not count, because it can be used again.
func TestLedgerLimiter_MeasuresWhatIsInUse(t *testing.T) {
	for _, c := range []struct {
		name    string
		members memberList
		percent int64
		ok      bool
	}{
		{"no answer", memberList{{Err: errors.New("away")}}, 0, false},
		{"an etcd that does not tell its quota", memberList{{Size: 80, InUse: 70}}, 0, false},
		{"free space", memberList{{Size: 90, InUse: 40, Quota: 100}}, 40, true},
		{"the fullest", memberList{{InUse: 40, Quota: 100}, {InUse: 40, Quota: 60}, {Err: errors.New("away")}}, 66, true},
	} {
		l := ledgerLimiter{members: c.members}
		if percent, ok := l.usedPercent(t.Context()); percent != c.percent || ok != c.ok {
			t.Errorf("%s: %d %%, %t; want %d %%, %t", c.name, percent, ok, c.percent, c.ok)
		}
	}
}

// The limit is written with who set it and why. It neither changes the setting, nor is it written again every minute.
func TestLedgerLimiter_WritesALimitOnce(t *testing.T) {
	memory := kvmem.New(kvmem.Config{})
	t.Cleanup(memory.Close)
	etcd := kvtest.ClientOf(t, memory)
	keys, err := record.NewKeys("/t")
	if err != nil {
		t.Fatal(err)
	}

	now := time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC)
	members := memberList{{InUse: 66, Quota: 100}}
	l := ledgerLimiter{node: "n1", store: store.New(etcd, kv.Direct(etcd), keys), env: Environment{Now: func() time.Time { return now }}, log: zap.NewNop()}
	if _, err := etcd.Put(t.Context(), keys.Cluster(), record.Encode(task.Cluster{Shards: 4, Ledger: new(task.Duration(time.Hour))})); err != nil {
		t.Fatal(err)
	}

	var written int64
	for _, step := range []struct {
		inUse  int64
		want   string
		writes bool
	}{{40, "none", false}, {66, "24h", true}, {67, "24h", false}, {0, "24h", false}, {20, "none", true}} {
		members[0].InUse = step.inUse
		l.members = members
		if err := l.checkUse(t.Context()); err != nil {
			t.Fatal(err)
		}

		c, err := l.store.Cluster(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if wrote := written != 0 && c.Mod != written; shownLimit(c.LedgerLimit) != step.want || wrote != step.writes || *c.Ledger != task.Duration(time.Hour) {
			t.Errorf("at %d %%: limit %s, written: %t, setting %s", step.inUse, shownLimit(c.LedgerLimit), wrote, c.Ledger)
		}
		if want := fmt.Sprintf("etcd uses %d %% of its quota", step.inUse); step.writes && (c.Change != want || !c.ChangedBy.Is("node:n1") || !c.ChangedAt.Equal(now)) {
			t.Errorf("at %d %%: changed by %s at %s: %s", step.inUse, c.ChangedBy, c.ChangedAt, c.Change)
		}
		written = c.Mod
	}
}
