package eventlog_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/store/eventlog"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestPlaceOf_FindsWhatHappenedAfterAnInstant(t *testing.T) {
	c := newCluster(t)
	at := func(minute int) time.Time { return noon.Add(time.Duration(minute) * time.Minute) }
	place := func(minute int) task.Place {
		p, err := c.log.PlaceOf(t.Context(), at(minute))
		ok(t, err)
		return p
	}

	announced, wrote := map[int]int64{}, map[int]int64{}
	for m := range 40 {
		if m < 20 || m >= 30 { // for ten minutes no node is present
			announced[m] = c.put(c.keys.Node("n9"), fmt.Sprintf(`{"state":"ready","clock":%q}`, at(m).Format(time.RFC3339)))
		} else if m == 20 {
			c.del(c.keys.Node("n9"))
		}

		wrote[m] = c.put(c.keys.Spec(ref), fmt.Sprintf(`{"generation":%d}`, m+1))
	}

	for m := range 40 {
		p := place(m)
		if p.Revision >= wrote[m] || p.Index != task.Whole {
			t.Errorf("of minute %d: %s leaves out what was written at %d", m, p, wrote[m])
		}

		// Where no node is present, the search takes large steps, and may find an earlier place.
		if prior := announced[m-2]; announced[m-1] > 0 && prior > p.Revision {
			t.Errorf("of minute %d: %s, although the time was recorded at %d", m, p, prior)
		}
	}

	if p := place(-60); p.Revision >= announced[0] {
		t.Errorf("of an hour before: %s", p)
	}

	_, err := c.etcd.Compact(t.Context(), wrote[10])
	ok(t, err)

	if p := place(5); p != (task.Place{}) {
		t.Errorf("of what is compacted: %s", p)
	}

	if p := place(14); p.Revision >= wrote[14] || p.Revision < wrote[10] {
		t.Errorf("of what is not: %s", p)
	}
}

// A page of events asks for a place each time, so that must not cost a search through all revisions.
func TestPlaceOf_NeedsFewReads(t *testing.T) {
	c := newCluster(t)
	wrote := map[int]int64{} // by the second
	for second := range 3000 {
		if second%5 == 0 {
			c.put(c.keys.Node("n9"), fmt.Sprintf(`{"state":"ready","clock":%q}`, noon.Add(time.Duration(second)*time.Second).Format(time.RFC3339)))
		}
		// The rate of writes changes.
		for range 1 + second/1000 {
			wrote[second] = c.put(c.keys.Spec(ref), "{}")
		}
	}
	_, err := c.etcd.Compact(t.Context(), wrote[300])
	ok(t, err)

	reads := 0
	c.etcd.KV = etcdhook.KV(c.etcd.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		reads++
		return next(ctx, op)
	})
	_, err = c.log.PlaceOf(t.Context(), noon.Add(time.Hour))
	ok(t, err)

	for _, second := range []int{2995, 2940, 2100, 1500, 400} {
		reads = 0
		p, err := c.log.PlaceOf(t.Context(), noon.Add(time.Duration(second)*time.Second))
		ok(t, err)
		if p.Revision >= wrote[second-1] || p.Revision < wrote[second-15] {
			t.Errorf("second %d: %s, but that is at %d", second, p, wrote[second])
		}
		if reads > 12 {
			t.Errorf("second %d: %d reads", second, reads)
		}
	}

	if r, err := c.log.Readable(t.Context()); err != nil || r.Oldest != wrote[300] {
		t.Errorf("%+v, %v; compacted at %d", r, err, wrote[300])
	}
}

// A restore may make readable what was compacted.
func TestReadable_AfterARestore(t *testing.T) {
	c := newCluster(t)
	other := newCluster(t)
	for i := range 40 {
		c.put("/junk", "")
		if i < 35 {
			other.put("/junk", "")
		}
	}
	_, err := c.etcd.Compact(t.Context(), 30)
	ok(t, err)
	if r, err := c.log.Readable(t.Context()); err != nil || r.Oldest != 30 {
		t.Errorf("%+v, %v", r, err)
	}

	c.etcd.KV = other.etcd.KV
	if r, err := c.log.Readable(t.Context()); err != nil || r != (eventlog.Readable{Oldest: 1, Newest: 36}) {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestReadable_FindsTheOldestRevision(t *testing.T) {
	c := newCluster(t)

	r, err := c.log.Readable(t.Context())
	if err != nil || r != (eventlog.Readable{Oldest: 1, Newest: 1}) {
		t.Errorf("of an empty etcd %+v, %v", r, err)
	}

	for range 30 {
		c.put("/junk", "")
	}

	for _, compact := range []int64{0, 2, 17, 31} {
		if compact > 0 {
			_, err := c.etcd.Compact(t.Context(), compact)
			ok(t, err)
		}

		r, err := c.log.Readable(t.Context())
		if err != nil || r != (eventlog.Readable{Oldest: max(compact, 1), Newest: 31}) {
			t.Errorf("compacted at %d: %+v, %v", compact, r, err)
		}
	}
}
