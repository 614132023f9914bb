package daemon

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
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
