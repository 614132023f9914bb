package check

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// busyHistory is some n events of a cluster that runs a hundred tasks.
func busyHistory(b *testing.B, n int) *sim {
	s := newSim(b, 8, "a", "b")
	for i := range 100 {
		s.create(fmt.Sprintf("t%d", i), i%8, 1, nil)
	}
	for len(s.events) < n {
		s.work(1)
	}
	return s
}

func BenchmarkCheck_AllThatCanBeAsked(b *testing.B) {
	s := busyHistory(b, 200_000)
	opts := s.demanding()
	b.ReportAllocs()
	for b.Loop() {
		if r := s.check(opts); !r.OK() {
			b.Fatal(r)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(s.events)), "ns/event")
}

func BenchmarkCheckProbeLog(b *testing.B) {
	s := busyHistory(b, 200_000)
	var log strings.Builder
	for _, ev := range s.events {
		if k, ok := s.keys.ParseRun(ev.Key); ok && !ev.Deleted {
			for _, word := range []string{"START", "END"} {
				fmt.Fprintf(&log, "%s %s 1 %d %s 1\n", word, k.Run, ev.CreateRevision, time.UnixMilli(s.now).Format(time.RFC3339))
			}
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if v := CheckProbeLog(io.Reader(strings.NewReader(log.String())), s.keys, s.events); len(v) > 0 {
			b.Fatal(v[0])
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(s.events)), "ns/event")
}

// BenchmarkAudit reads 20,000 tasks with three records of history each.
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
		s.put(s.keys.Watermark(id), store.Watermark{Time: task.At(s.now), Seen: rev, Nonce: "n"})
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
