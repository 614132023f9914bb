package api_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

// A client that prints the output of a run reads the output and the record of each part. So the cost of each of these
// requests must not depend on the number of parts, or on the length of the task's history.
func TestLogs_OfAPartReadNoOtherParts(t *testing.T) {
	etcd := kvtest.Memory(t)
	var records atomic.Int32
	etcd.KV = etcdhook.KV(etcd.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		res, err := next(ctx, op)
		switch {
		case err != nil:
		case op.IsTxn():
			for _, r := range res.Txn().Responses {
				records.Add(int32(len(r.GetResponseRange().GetKvs())))
			}
		case op.IsGet():
			records.Add(int32(len(res.Get().Kvs)))
		}

		return res, err
	})

	w, ctx := newWorldOn(t, etcd), t.Context()
	w.create("a", "@daily")
	w.present("node-a", w.url)

	// The parts of the latest run have ended, are active, wait, and were not dispatched yet.
	const each = 20
	over, now := id(1, "aaaa"), id(59, "aaaa")
	fan := task.Fan{Count: 4 * each, Need: 4 * each}
	ended := fan
	for i := range 4 * each {
		part := task.PartID(now, i)
		switch i / each {
		case 0:
			w.ended("a", part, task.Failed, func(r *task.Run) { r.Node = "node-a" })
		case 1:
			w.active("node-a", "a", part)
		case 2:
			w.waiting("a", part, func(r *task.Run) { r.Attempts = []task.Attempt{{Attempt: 1, State: task.Failed, Node: "node-a"}} })
		case 3:
			fan.Left = append(fan.Left, i)
		}

		w.keep("a", part, "1", fmt.Sprint("now ", i))
		w.keep("a", task.PartID(over, i), "1", fmt.Sprint("over ", i))
		ended.Parts = append(ended.Parts, task.Part{Index: i, State: task.Failed, Node: "node-a", Attempt: 1})
		w.ended("a", id(i%40+2, fmt.Sprintf("%04d", i)), task.Succeeded, nil) // a long history
	}
	w.waiting("a", now, func(r *task.Run) { r.State, r.Reason, r.Fan = task.Running, "", &fan })
	w.ended("a", over, task.Failed, func(r *task.Run) { r.Node, r.Fan = "", &ended })

	cost := func(what string, most int32, do func() error) {
		t.Helper()
		records.Store(0)
		must(t, do())
		if n := records.Load(); n > most {
			t.Errorf("%s: %d records were read, want at most %d", what, n, most)
		}
	}

	for at, i := range map[string]int{"ended": 3, "active": each + 3, "waiting": 2*each + 3} {
		part := task.PartID(now, i)
		cost("output of a part that is "+at, 6, func() error {
			r, err := w.Logs.Open(ctx, "default", "a", part, client.LogOptions{Attempt: 1})
			if got := read(t, r, err); got != fmt.Sprint("now ", i) {
				t.Errorf("%s: %q", at, got)
			}
			return nil
		})
	}

	for i, want := range map[int]task.State{3: task.Failed, each + 3: task.Running, 2*each + 3: task.Queued, 3*each + 3: task.Queued} {
		cost(fmt.Sprint("record of part ", i), 6, func() error {
			r, err := w.Runs.Get(ctx, "default", "a", task.PartID(now, i))
			if r.State != want {
				t.Errorf("part %d is %s, want %s", i, r.State, want)
			}
			return err
		})
	}

	cost("output of a part of a run that has ended", 6, func() error {
		r, err := w.Logs.Open(ctx, "default", "a", task.PartID(over, 7), client.LogOptions{Attempt: 1})
		if got := read(t, r, err); got != "over 7" {
			t.Errorf("ended: %q", got)
		}
		return nil
	})
}
