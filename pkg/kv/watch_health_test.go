package kv_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// counters returns a function that returns the sum of a client's counters with a name.
func counters(t *testing.T, c *kv.Client) func(name string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	c.Register(r)

	return func(name string) (sum float64) {
		t.Helper()
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}

		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == name {
					sum += m.GetCounter().GetValue()
				}
			}
		}

		return sum
	}
}

// A put and a deletion that the watch drops silently are in the mirror after the next list, and are counted after the
// list that follows. There are no other changes in the range.
func TestMirror_CountsWhatItsWatchHasLost(t *testing.T) {
	t.Parallel()
	c := kvtest.Memory(t)
	count := counters(t, c)
	deaf := kvtest.Deafen(c)

	// A change that a resumed watch skips is not certainly lost and is not counted. That can happen if the machine is paused
	// for two seconds, but not each time.
	const most = 5
	for i := range most {
		before, resumed := count(kv.RepairsMetric), count("carillon_watch_resumptions_total")
		deaf.Drop(nil)
		prefix := fmt.Sprintf("p%d/", i)
		put(t, c, prefix+"gone", "1")
		cfg := prefixed(prefix)
		cfg.Relist, cfg.StallAfter = 500*time.Millisecond, 2*time.Second
		m, stop := startMirror(t.Context(), c, cfg)
		defer stop()

		<-m.Ready()
		deaf.Drop(func(string) bool { return true })
		put(t, c, prefix+"new", "1")

		if _, err := c.Delete(t.Context(), prefix+"gone"); err != nil {
			t.Fatal(err)
		}

		eventually(t, "the repair", func() bool { s := m.Snapshot(); return s.Get(prefix+"new") != nil && s.Get(prefix+"gone") == nil })
		eventually(t, "the count", func() bool {
			return count(kv.RepairsMetric) == before+2 || count("carillon_watch_resumptions_total") > resumed && i < most-1
		})

		if count(kv.RepairsMetric) == before+2 {
			return
		}

		stop()
	}
}

// Lists in the middle of many writes find changes that are in flight, and none that are lost.
func TestMirror_CountsNothingWhileItsWatchIsWell(t *testing.T) {
	t.Parallel()
	c := kvtest.Memory(t)
	count := counters(t, c)
	cfg := prefixed("p/")
	cfg.Relist = 200 * time.Millisecond
	m, stop := startMirror(t.Context(), c, cfg)
	defer stop()

	<-m.Ready()

	for until, i := time.Now().Add(2*time.Second), 0; time.Now().Before(until); i++ {
		put(t, c, fmt.Sprint("p/", i%7), "v")
		if _, err := c.Delete(t.Context(), fmt.Sprint("p/", (i+3)%7)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond) // without it, the test measures the speed of etcd
	}

	if n := count(kv.RepairsMetric); n != 0 {
		t.Errorf("%v repairs", n)
	}
}

func TestFollow_CountsResumptionsAndForcedLists(t *testing.T) {
	s := kvtest.StartServer(t)
	p := s.Proxy()
	core, logs := observer.New(zap.InfoLevel)
	c := p.Client(kv.Config{})
	count := counters(t, c)

	var all []*follower
	for i := range 20 {
		cfg := prefixed(fmt.Sprintf("p/%02d/", i))
		cfg.StallAfter, cfg.Logger, cfg.Relist = time.Minute, zap.New(core), 400*time.Millisecond // watches are lost only because the connection is cut
		f := follow(t, c, cfg)
		listed(t, f)
		all = append(all, f)
	}

	if n := count("carillon_watch_relists_total"); n != 0 {
		t.Errorf("%v forced lists while all is well", n)
	}

	p.Cut()
	eventually(t, "the loss", func() bool { return logs.FilterLevelExact(zap.WarnLevel).Len() > 0 })
	rev := put(t, s.Client(), "p/00/a", "1")
	rev = put(t, s.Client(), "p/00/a", fmt.Sprint(rev))
	if _, err := s.Client().Compact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}

	p.Mend()
	eventually(t, "all ranges", func() bool { return logs.FilterMessage("the watch of etcd recovered").Len() > 0 })
	// If the connection is cut during a list, the list ends or starts again. Then there is nothing to resume, or nothing that
	// has been compacted. Lists are rare, so such followers are few.
	eventually(t, "lists of what is compacted away", func() bool { return count("carillon_watch_relists_total") >= float64(len(all)/2) })

	if n := count("carillon_watch_resumptions_total"); n < float64(len(all)/2) {
		t.Errorf("%v resumptions of %d ranges", n, len(all))
	}

	if n := logs.FilterLevelExact(zap.WarnLevel).Len(); n > 2 {
		t.Errorf("%d losses were logged of %d ranges that were lost together", n, len(all))
	}
}
