package kv_test

import (
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
)

// BenchmarkList reads 100,000 keys of the size of attempts.
func BenchmarkList(b *testing.B) {
	s, err := embedded.Start(b.Context(), embedded.Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()

	c, value := s.Client(), string(make([]byte, 300))
	const keys = 100_000
	for i := 0; i < keys; i += 100 {
		var ops []clientv3.Op
		for j := i; j < i+100; j++ {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("runs/node-%03d/%04d/team/job-%06d/20261120T220500.000Z-k3f9", j%100, j%256, j), value))
		}
		if _, err := c.Txn(b.Context()).Then(ops...).Commit(); err != nil {
			b.Fatal(err)
		}
	}

	key, end := kv.Prefix("runs/")
	cpu := cpuTime()
	n := 0
	for b.Loop() {
		kvs, _, err := kv.List(b.Context(), c, key, end, 0)
		if err != nil || len(kvs) != keys {
			b.Fatal(len(kvs), err)
		}
		n++
	}
	b.ReportMetric((cpuTime()-cpu).Seconds()*1000/float64(n), "cpu-ms/op")
}
