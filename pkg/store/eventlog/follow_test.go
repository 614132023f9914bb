package eventlog_test

import (
	"errors"
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/store/eventlog"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// perRevision is how many events each revision of many has.
const perRevision = 8

// many writes revisions with perRevision events each.
func (c *cluster) many(revisions int) {
	c.Helper()

	for i := range revisions {
		var ops []clientv3.Op
		for j := range perRevision {
			ops = append(ops, clientv3.OpPut(c.keys.Spec(record.Ref{Namespace: "many", Name: fmt.Sprintf("t%d-%d", i, j)}), `{"generation":1}`))
		}

		_, err := c.etcd.Txn(c.Context()).Then(ops...).Commit()
		ok(c, err)
	}
}

// The number of events that wait for a slow reader is limited. The reader misses only what etcd has compacted
// meanwhile, and a gap reports that.
func TestFollowEvents_OfASlowReaderWaitInEtcd(t *testing.T) {
	// The buffer holds 4096 events and the response that exceeds that. A response of etcd to
	// a busy client has the events of up to a thousand revisions.
	const revisions = 4000

	for _, compacted := range []bool{false, true} {
		t.Run(fmt.Sprint("compacted ", compacted), func(t *testing.T) {
			c := newCluster(t)
			begun, slow, waited := make(chan struct{}), make(chan struct{}), 0
			var events []*eventlog.Event
			done := make(chan error, 1)
			var end int64
			go func() {
				first := true
				done <- c.log.FollowEvents(t.Context(), eventlog.Query{Wants: task.EventFilter{Namespace: "many"}.Wants}, func(b eventlog.Batch) error {
					if first {
						first = false
						close(begun)
						<-slow
					}

					if waited == 0 {
						waited = len(b.Events)
					}

					if events = append(events, b.Events...); b.Told.Revision >= end {
						return errEnough
					}

					return nil
				})
			}()

			<-begun
			c.many(revisions)

			if end = c.revision(); compacted {
				_, err := c.etcd.Compact(t.Context(), end-5)
				ok(t, err)
			}

			close(slow)

			if err := <-done; !errors.Is(err, errEnough) {
				t.Fatal(err)
			}

			if waited > 4096+1000*perRevision {
				t.Errorf("%d events have waited", waited)
			}

			told, gaps := map[string]bool{}, int64(0)
			for _, e := range events {
				if e.Kind == task.EventGap {
					gaps += e.To - e.From + 1
					continue
				}

				if told[e.ID] {
					t.Fatalf("%s twice", e.ID)
				}

				told[e.ID] = true
			}

			if len(told)+perRevision*int(gaps) != revisions*perRevision || (gaps > 0) != compacted {
				t.Errorf("%d events, and %d revisions are said to be lost", len(told), gaps)
			}
		})
	}
}
