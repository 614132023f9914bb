package audit

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// BenchmarkAudit reads 20,000 tasks with three history records each.
func BenchmarkAudit(b *testing.B) {
	s := newSite(b, kvtest.Memory(b))
	e := s.newEntry()
	var ops []clientv3.Op
	add := func(key string, v any) {
		text, err := json.Marshal(v)
		s.ok(err)

		if ops = append(ops, clientv3.OpPut(key, string(text))); len(ops) == 120 {
			_, err := s.etcd.Txn(b.Context()).Then(ops...).Commit()
			s.ok(err)
			ops = ops[:0]
		}
	}

	const tasks = 20_000
	for i := range tasks {
		ref := s.ref(fmt.Sprintf("task-%d", i))
		add(s.keys.Spec(ref), task.Task{Spec: task.Defaults(), UID: e.UID})
		add(s.keys.Entry(ref), e)

		for n := range 3 {
			add(s.keys.Ended(ref, task.RunID(s.now.Add(time.Duration(-n)*time.Minute), e.UID)), task.Run{UID: e.UID, State: task.Succeeded, Trigger: task.TriggerSchedule})
		}
	}

	rev := s.put(s.keys.Watermark(0), "{}")

	for id := range auditShards {
		s.put(s.keys.Watermark(id), record.Watermark{Time: task.At(s.now), Seen: rev, Nonce: "n"})
	}

	au := s.auditor()
	au.Page = 0
	b.ReportAllocs()

	for b.Loop() {
		found, err := au.Run(b.Context())
		if err != nil || len(found.Findings) > 0 || found.Keys < 4*tasks {
			b.Fatalf("%+v, %v", found, err)
		}
	}

	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(5*tasks), "ns/record")
}
