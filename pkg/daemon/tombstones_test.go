package daemon_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// The leader removes the tombstones of tasks that were deleted a week ago, and the records of requests that were served an
// hour ago, and no others.
func TestLeader_ForgetsDeletedTasks(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t)
	etcd := c.etcd.Dial()
	ref := func(name string) record.Ref { return record.Ref{Namespace: "default", Name: name} }
	for name, age := range map[string]time.Duration{"old": 7*24*time.Hour + time.Minute, "young": 7*24*time.Hour - time.Hour} {
		b, err := json.Marshal(record.Tombstone{DeletedAt: task.At(time.Now().Add(-age))})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := etcd.Put(t.Context(), c.keys.Tombstone(ref(name)), string(b)); err != nil {
			t.Fatal(err)
		}
	}
	for name, age := range map[string]time.Duration{"old": time.Hour + time.Minute, "young": 50 * time.Minute} {
		b, err := json.Marshal(record.Idempotency{Run: task.ManualRunID(time.Now().Add(-age), "abcdefgh"), Request: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := etcd.Put(t.Context(), c.keys.IdempotencyRecord(name), string(b)); err != nil {
			t.Fatal(err)
		}
	}
	c.start("n1")
	for _, key := range []string{c.keys.Tombstone(ref("old")), c.keys.IdempotencyRecord("old")} {
		eventually(t, func() error {
			res, err := etcd.Get(t.Context(), key)
			if err == nil && len(res.Kvs) > 0 {
				err = errors.New("the old one is remembered")
			}
			return err
		})
	}
	for _, key := range []string{c.keys.Tombstone(ref("young")), c.keys.IdempotencyRecord("young")} {
		if res, err := etcd.Get(t.Context(), key); err != nil || len(res.Kvs) != 1 {
			t.Errorf("the young one is forgotten: %v", err)
		}
	}
}
