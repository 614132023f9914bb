package store

import (
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// fenceWriter writes a fence as often as it may.
type fenceWriter struct {
	testing.TB
	value *mvccpb.KeyValue
}

func (f *fenceWriter) write(by fenceCaller, now time.Time) error {
	next, _, err := nextFence(f.value, by, now)
	if err == nil {
		f.value = &mvccpb.KeyValue{Value: []byte(record.Encode(next)), ModRevision: 1}
	}

	return err
}

// count writes the fence until it is refused, and returns how often it was not.
func (f *fenceWriter) count(by fenceCaller, now time.Time) int {
	for n := 0; ; n++ {
		err := f.write(by, now)
		if err == nil && n < 100 {
			continue
		}
		if !errors.Is(err, task.ErrTooMany) {
			f.Fatal(err)
		}

		return n
	}
}

func TestFence_CannotBeUsedUpByOneSubject(t *testing.T) {
	f, now := &fenceWriter{TB: t}, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

	for _, c := range []struct {
		by    fenceCaller
		after time.Duration
		want  int
	}{
		{fenceCaller{subject: "user:ann"}, 0, 3},
		{fenceCaller{subject: "user:bob"}, 100 * time.Millisecond, 3},
		{fenceCaller{subject: "user:cid"}, 200 * time.Millisecond, 2}, // the last two are reserved
		{fenceCaller{subject: "user:dan"}, 300 * time.Millisecond, 0},
		{fenceCaller{subject: "user:ann"}, 300 * time.Millisecond, 0},
		{fenceCaller{subject: "user:root", grants: true}, 400 * time.Millisecond, 2},
		{fenceCaller{subject: "user:ann"}, time.Second, 1},                             // its own have ended, and 8 are in force with this one
		{fenceCaller{subject: "user:root", grants: true}, time.Second, 2},              //
		{fenceCaller{subject: "user:root", grants: true}, 3 * time.Second, 10},         // administrators may use all
		{fenceCaller{subject: "user:root2", grants: true}, 3900 * time.Millisecond, 0}, //
		{fenceCaller{}, 5 * time.Second, 10},                                           // the node itself
	} {
		if got := f.count(c.by, now.Add(c.after)); got != c.want {
			t.Errorf("%+v after %v: %d writes, want %d", c.by, c.after, got, c.want)
		}
	}
}

func TestFence_WithAValueThatCannotBeReadLimitsNothing(t *testing.T) {
	f := &fenceWriter{TB: t, value: &mvccpb.KeyValue{Value: []byte("nonsense"), ModRevision: 1}}
	if err := f.write(fenceCaller{subject: "user:ann"}, time.Now()); err != nil {
		t.Error(err)
	}
}
