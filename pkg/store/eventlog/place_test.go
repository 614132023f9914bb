package eventlog_test

import (
	"fmt"
	"testing"
	"time"

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
