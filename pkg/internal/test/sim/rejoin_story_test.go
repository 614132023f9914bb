package sim

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/mutant"
)

// While the only scheduler is cut off, its namespace forbids a node. The scheduler joins again, but its watch of the access
// records delivers nothing for some time. It must not dispatch runs by the records that it knew before it was cut off.
//
// Verifies: G29
func TestStory_RejoinWithOldAccessRecords(t *testing.T) {
	t.Parallel()

	run := func() (Options, func(*story)) {
		var silent atomic.Bool
		o := Options{WrapClient: func(node string, c *clientv3.Client) {
			if node == "scheduler" {
				c.Watcher = silentAccessWatcher{c.Watcher, &silent}
			}
		}}

		return o, func(s *story) {
			s.apply("each-second", "* * * * * *", 10*time.Millisecond, nil)
			s.at(2)
			silent.Store(true)
			s.cutOff(s.scheduler)

			n1 := s.clientOf(s.n1)
			n, err := n1.Namespaces.Get(s.life, simNamespace)
			s.must(err)
			n.Nodes = poolLabel + " = " + poolOf(2) // that of n2
			_, err = n1.Namespaces.Put(s.life, n, client.Writing{})
			s.must(err)

			s.at(38)
			s.logLine("> story: the scheduler is connected again, except for its watch of the access records")
			s.scheduler.proc.link.setMode(modeOpen)
			s.net.setSilent(s.scheduler.address, false)
			s.at(75)
		}
	}

	t.Run("as it is", func(t *testing.T) {
		t.Parallel()
		o, tell := run()
		s, events := runStory(t, o, nil, tell)
		if got := s.outcomes(events, "each-second"); got[74] != outcomeRan {
			t.Errorf("a tick after the copy of the records is current came to %q", got[74])
		}
	})

	t.Run("an owner that trusts the copy from before it joined", func(t *testing.T) {
		t.Parallel()
		if is, _ := mutant.InProcess(t, "old-access"); is {
			o, tell := run()
			_, r := runStoryInBubble(t, o, nil, tell)
			requireBroken(t, r, "G29")
		}
	})
}

// silentAccessWatcher has watches of the access records that deliver nothing while silent is set.
type silentAccessWatcher struct {
	clientv3.Watcher
	silent *atomic.Bool
}

func (w silentAccessWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in := w.Watcher.Watch(ctx, key, opts...)
	if !strings.HasSuffix(key, "/access/") {
		return in
	}

	out := make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		for r := range in {
			if w.silent.Load() {
				continue
			}

			select {
			case out <- r:
			case <-ctx.Done():
			}
		}
	}()

	return out
}
