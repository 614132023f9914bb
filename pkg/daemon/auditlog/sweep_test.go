package auditlog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// left returns the operations of the records in etcd.
func (s *site) left() string {
	s.Helper()
	list, _, err := s.store.AuditRecords(s.Context(), "", 10_000)
	if err != nil {
		s.Fatal(err)
	}

	var operations []string
	for _, r := range list {
		operations = append(operations, r.Operation)
	}

	return strings.Join(operations, " ")
}

// write stores a record of a subject; about an access record if kind says so.
func (s *site) write(subject, operation, kind string, at time.Time) {
	s.Helper()
	r := task.AuditRecord{ID: record.NewAuditID(at), Time: task.At(at), Subject: subject, Operation: operation, Objects: []task.AuditObject{{Kind: kind, Name: "x", Change: "put"}}}
	if err := s.store.RecordAudit(s.Context(), r); err != nil {
		s.Fatal(err)
	}
}

func (s *site) sweeper(quota int64, clock func() error) *Sweeper {
	return &Sweeper{store: quotaStore{s.store, quota}, clock: clock, now: func() time.Time { return testNow }, log: zap.NewNop()}
}

func (s *site) gaps() []task.AuditGap {
	s.Helper()
	list, err := s.store.AuditGaps(s.Context())
	if err != nil {
		s.Fatal(err)
	}

	gaps := make([]task.AuditGap, len(list))
	for i, g := range list {
		gaps[i] = g.AuditGap
	}

	return gaps
}

// size returns how many bytes the records take.
func (s *site) size() int64 {
	s.Helper()
	page, err := s.store.AuditEntries(s.Context(), "", 100_000)
	if err != nil {
		s.Fatal(err)
	}

	var size int64
	for _, e := range page.Entries {
		size += e.Bytes
	}

	return size
}

func trustedClock() error { return nil }
func wrongClock() error   { return errors.New("the clock is wrong") }

func TestAuditSweeper_RemovesWhatIsOld(t *testing.T) {
	s := newSite(t)
	for i := range 5 {
		s.put(fmt.Sprint(i), testNow.Add(time.Duration(i-2)*24*time.Hour-maxAge))
	}

	if n, err := s.sweeper(1<<30, wrongClock).sweepRecords(t.Context()); n != 0 || err != nil || len(s.gaps()) != 0 {
		t.Errorf("with a wrong clock it removes %d, %v", n, err)
	}
	if n, err := s.sweeper(1<<30, trustedClock).sweepRecords(t.Context()); n != 2 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
	if left := s.left(); left != "2 3 4" {
		t.Errorf("left %s", left)
	}

	// One gap says so. It grows with the next sweep.
	a := s.sweeper(1<<30, trustedClock)
	a.now = func() time.Time { return testNow.Add(36 * time.Hour) }
	if n, err := a.sweepRecords(t.Context()); n != 2 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}

	gaps := s.gaps()
	want := task.AuditGap{Why: task.GapAge, From: task.At(testNow.Add(-48*time.Hour - maxAge)), To: task.At(testNow.Add(24*time.Hour - maxAge)), Records: 4, Removed: 2}
	if len(gaps) != 1 || gaps[0].LastRevision <= gaps[0].FirstRevision {
		t.Fatalf("gaps %+v", gaps)
	}
	want.FirstRevision, want.LastRevision = gaps[0].FirstRevision, gaps[0].LastRevision
	if gaps[0] != want {
		t.Errorf("gap %+v, want %+v", gaps[0], want)
	}
}

// A subject that writes many records loses its own oldest ones, and no others lose theirs. Records of changes of access stay.
//
// Verifies: G28
func TestAuditSweeper_RemovesThoseOfTheNoisiestSubject(t *testing.T) {
	s := newSite(t)
	s.write("user:ann", "set-binding", "binding", testNow.Add(-time.Hour))
	s.write("user:ann", "create-task", "task", testNow.Add(-time.Hour))
	s.write("user:mallory", "evil", "token", testNow.Add(-time.Hour))
	for i := range 300 {
		s.write("user:mallory", "pause-task", "task", testNow.Add(time.Duration(i)*time.Second))
		if i%100 == 50 {
			s.write("user:bob", "resume-task", "task", testNow.Add(time.Duration(i)*time.Second))
		}
	}

	limit := s.size() / 2
	n, err := s.sweeper(limit*100/quotaShare, wrongClock).sweepRecords(t.Context())
	if err != nil || n < 150 || n > 180 {
		t.Fatalf("removed %d, %v", n, err)
	}

	if size := s.size(); size > limit || size < limit*8/10 {
		t.Errorf("%d bytes are left, limit %d", size, limit)
	}
	left := strings.Fields(s.left())
	for operation, want := range map[string]int{"set-binding": 1, "create-task": 1, "evil": 1, "resume-task": 3, "pause-task": 300 - n} {
		got := len(slices.DeleteFunc(slices.Clone(left), func(o string) bool { return o != operation }))
		if got != want {
			t.Errorf("%d of %s are left, want %d", got, operation, want)
		}
	}

	gaps := s.gaps()
	if len(gaps) != 1 || gaps[0].Why != task.GapSize || gaps[0].Subject != "user:mallory" || gaps[0].Access || gaps[0].Records != int64(n) || !gaps[0].From.Equal(testNow) {
		t.Errorf("gaps %+v", gaps)
	}

	// There is room again, so nothing more goes.
	if n, err := s.sweeper(limit*100/quotaShare, wrongClock).sweepRecords(t.Context()); n != 0 || err != nil {
		t.Errorf("then it removes %d more, %v", n, err)
	}
}

// A gap whose records would be too old by now becomes a part of the gap of age, so that gaps do not accumulate.
func TestAuditSweeper_MergesOldGaps(t *testing.T) {
	s := newSite(t)
	for i := range 3 {
		for range 20 {
			s.write(fmt.Sprint("user:", i), "pause-task", "task", testNow)
		}
	}
	if n, err := s.sweeper(s.size()/2*100/quotaShare, wrongClock).sweepRecords(t.Context()); n == 0 || err != nil || len(s.gaps()) != 3 {
		t.Fatalf("removed %d, %v; gaps %+v", n, err, s.gaps())
	}
	removed := int64(0)
	for _, g := range s.gaps() {
		removed += g.Records
	}

	a := s.sweeper(1<<30, trustedClock)
	a.now = func() time.Time { return testNow.Add(maxAge + time.Hour) }
	if _, err := a.sweepRecords(t.Context()); err != nil {
		t.Fatal(err)
	}

	gaps := s.gaps()
	if len(gaps) != 1 || gaps[0].Why != task.GapAge || gaps[0].Records != 60 || s.left() != "" || removed >= 60 {
		t.Errorf("gaps %+v", gaps)
	}
}

// There is a limit on the number of gaps. The records of further subjects are in one that names none.
func TestGapSet_IsBounded(t *testing.T) {
	gaps := gapSet{}
	for i := range maxGaps + 5 {
		g := gaps.gapOf(owner{subject: fmt.Sprint("user:", i)})
		g.Records++
		gaps[keyOfGap(&g.AuditGap)] = g
	}

	shared := gaps[gapKey{why: task.GapSize}]
	if len(gaps) != maxGaps+1 || shared.Records != 5 || shared.Subject != "" {
		t.Errorf("%d gaps, the shared one is %+v", len(gaps), shared)
	}
}

// A record that arrives while others are removed is not removed with them.
func TestRemoveAudit_KeepsWhatCameMeanwhile(t *testing.T) {
	s := newSite(t)
	for i := range 3 {
		s.put(fmt.Sprint(i), testNow.Add(time.Duration(i)*time.Minute))
	}
	page, err := s.store.AuditEntries(t.Context(), "", 10)
	if err != nil {
		t.Fatal(err)
	}
	s.put("late", testNow.Add(90*time.Second))

	all := store.AuditRange{First: page.Entries[0].ID, Last: page.Entries[2].ID, Revision: page.Revision}
	gap := store.AuditGap{AuditGap: task.AuditGap{Why: task.GapAge}}
	if _, err := s.store.RemoveAudit(t.Context(), gap, []store.AuditRange{all}); !errors.Is(err, task.ErrConflict) {
		t.Errorf("with a new record in between: %v", err)
	}
	if left := s.left(); left != "0 1 late 2" || len(s.gaps()) != 0 {
		t.Errorf("left %s, gaps %v", left, s.gaps())
	}
}

// What a plan leaves fits; nobody with less loses anything while somebody with more keeps more; and access records lose
// nothing as long as they fit into half of the limit.
func TestPlanRemoval(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := map[owner]int64{}
		for range rapid.IntRange(0, 12).Draw(t, "owners") {
			o := owner{rapid.Bool().Draw(t, "access"), fmt.Sprint("user:", rapid.IntRange(0, 5).Draw(t, "subject"))}
			sizes[o] = rapid.Int64Range(1, 1000).Draw(t, "size")
		}
		limit := rapid.Int64Range(1, 6000).Draw(t, "limit")
		excess := planRemoval(sizes, limit)

		var before, after, accessSize int64
		for o, size := range sizes {
			before += size
			after += size - excess[o]
			if o.access {
				accessSize += size
			}
			if excess[o] < 0 || excess[o] > size {
				t.Fatalf("%v loses %d of %d", o, excess[o], size)
			}
			if o.access && excess[o] > 0 && sumOfAccess(sizes) <= limit/2 {
				t.Fatalf("%v loses %d, although access has %d of %d", o, excess[o], sumOfAccess(sizes), limit)
			}
			for other, size := range sizes {
				if other.access == o.access && excess[other] > 0 && size-excess[other] > max(sizes[o]-excess[o], size-excess[other]) {
					t.Fatalf("%v keeps more than %v", other, o)
				}
				if other.access == o.access && excess[o] > 0 && size-excess[other] > sizes[o]-excess[o]+1 {
					t.Fatalf("%v loses %d and keeps less than %v", o, excess[o], other)
				}
			}
		}

		if before <= limit && len(excess) > 0 || after > limit {
			t.Fatalf("%v of %d: removes %v", sizes, limit, excess)
		}
	})
}

func sumOfAccess(sizes map[owner]int64) (sum int64) {
	for o, size := range sizes {
		if o.access {
			sum += size
		}
	}
	return sum
}

// The records of a page that go are those of the owners with an excess, the oldest first, and each range contains no others.
func TestChooseRemovals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var page store.AuditPage
		page.Revision = 7
		size := map[owner]int64{}
		for i := range rapid.IntRange(0, 600).Draw(t, "records") {
			e := store.AuditEntry{ID: fmt.Sprintf("%04d", i), Subject: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "subject"), Access: rapid.Bool().Draw(t, "access"), Bytes: 10}
			page.Entries = append(page.Entries, e)
			size[ownerOf(e)] += 10
		}
		excess, want := map[owner]int64{}, map[owner]int64{}
		for o, n := range size {
			if rapid.Bool().Draw(t, "has") {
				excess[o] = rapid.Int64Range(1, n).Draw(t, "excess")
				want[o] = (excess[o] + 9) / 10
			}
		}

		removed := map[string]owner{}
		for _, r := range chooseRemovals(page, excess) {
			inRanges := 0
			for _, span := range r.ranges {
				for _, e := range page.Entries {
					if e.ID >= span.First && e.ID <= span.Last {
						inRanges++
						if ownerOf(e) != r.owner {
							t.Fatalf("a range of %v has a record of %v", r.owner, ownerOf(e))
						}
					}
				}
			}
			if inRanges != len(r.entries) || len(r.ranges) > store.MaxAuditRanges {
				t.Fatalf("%d ranges with %d records, want %d", len(r.ranges), inRanges, len(r.entries))
			}
			for _, e := range r.entries {
				removed[e.ID] = r.owner
			}
		}

		for _, e := range page.Entries { // the oldest ones
			o := ownerOf(e)
			_, gone := removed[e.ID]
			if gone != (want[o] > 0) {
				t.Fatalf("record %s of %v: removed %v", e.ID, o, gone)
			}
			want[o] = max(want[o]-1, 0)
		}
	})
}

// A sink reports records that disappear without a gap that says so, and records that were rewritten. It says nothing of what
// a sweep removes, and shows the gap.
func TestAuditSink_ReportsTampering(t *testing.T) {
	s := newSite(t)
	path := s.dir + "/audit.log"
	for i := range 4 {
		s.put(fmt.Sprint(i), testNow.Add(time.Duration(i)*time.Hour-maxAge))
	}
	stop := s.startSink(fileTarget(path), 1)
	defer stop()
	if got := s.written(path, 4); got != "0 1 2 3" {
		t.Fatalf("wrote %q", got)
	}

	a := s.sweeper(1<<30, trustedClock)
	a.now = func() time.Time { return testNow.Add(30 * time.Minute) }
	if n, err := a.sweepRecords(t.Context()); n != 1 || err != nil {
		t.Fatalf("removed %d, %v", n, err)
	}
	if got := s.written(path, 5); got != "0 1 2 3 audit-gap" {
		t.Fatalf("after a sweep: %q", got)
	}

	page, err := s.store.AuditEntries(t.Context(), "", 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.etcd.Delete(t.Context(), s.store.Keys().AuditRecord(page.Entries[0].ID)); err != nil {
		t.Fatal(err)
	}
	if got := s.written(path, 6); got != "0 1 2 3 audit-gap audit-records-deleted" {
		t.Fatalf("after a deletion: %q", got)
	}
	if _, err := s.etcd.Put(t.Context(), s.store.Keys().AuditRecord(page.Entries[1].ID), `{"operation":"forged"}`); err != nil {
		t.Fatal(err)
	}
	if got := s.written(path, 8); got != "0 1 2 3 audit-gap audit-records-deleted forged audit-records-rewritten" {
		t.Fatalf("after a change: %q", got)
	}
}
