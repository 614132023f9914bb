package kv_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
)

// BenchmarkBatcher measures 256 callers that each dispatch ticks: a commit compares and puts the state of the caller,
// and puts a new run.
func BenchmarkBatcher(b *testing.B) {
	for _, via := range []string{"inprocess", "grpc"} {
		for _, how := range []string{"direct", "batcher"} {
			b.Run(via+"/"+how, func(b *testing.B) { benchmarkFires(b, via, how == "batcher", kv.BatcherConfig{}) })
		}
	}
}

// BenchmarkGroupCommitSettings measures the same load with other settings.
func BenchmarkGroupCommitSettings(b *testing.B) {
	for _, via := range []string{"inprocess", "grpc"} {
		for _, inFlight := range []int{1, 2, 4, 8} {
			for _, siblings := range []int{60, 96, 125} {
				b.Run(fmt.Sprintf("%s/inflight=%d/siblings=%d", via, inFlight, siblings), func(b *testing.B) {
					benchmarkFires(b, via, true, kv.BatcherConfig{InFlight: inFlight, MaxSiblings: siblings})
				})
			}
		}
	}
}

// BenchmarkBatcherMix measures 256 callers that dispatch ticks while 32 others send commits of 120 operations. It
// counts the ticks.
func BenchmarkBatcherMix(b *testing.B) {
	s, err := embedded.Start(b.Context(), embedded.Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}

	defer s.Close()

	reg := prometheus.NewRegistry()
	batcher := kv.NewBatcher(s.Client(), kv.BatcherConfig{Registerer: reg})
	ctx, cancel := context.WithCancel(b.Context())
	var run, callers sync.WaitGroup
	run.Go(func() { _ = batcher.Run(ctx) })
	defer run.Wait()
	defer cancel()

	value := strings.Repeat("v", 250)
	var left, deep atomic.Int64
	left.Store(int64(b.N))
	b.ReportAllocs()
	b.ResetTimer()
	spent := cpuTime()

	for caller := range 256 + 32 {
		ops := 2
		if caller >= 256 {
			ops = 120
		}

		callers.Go(func() {
			for left.Load() > 0 {
				var txn kv.Txn
				for i := range ops {
					key := fmt.Sprintf("/carillon/shards/%04d/%03d", caller, i)
					txn.If = append(txn.If, clientv3.Compare(clientv3.ModRevision(key), "=", 0))
					txn.Then, txn.Else = append(txn.Then, clientv3.OpPut(key, value)), append(txn.Else, clientv3.OpDelete(key))
				}

				if _, err := batcher.Commit(b.Context(), txn); err != nil {
					b.Error(err)
					return
				}

				if ops == 2 {
					left.Add(-1)
				} else {
					deep.Add(1)
				}
			}
		})
	}

	callers.Wait()
	all := float64(b.N)*2 + float64(deep.Load())*120
	b.ReportMetric((cpuTime()-spent).Seconds()*1e6/all, "cpu-us/op")
	b.ReportMetric(all/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "fires/s")
	b.ReportMetric(float64(deep.Load())/b.Elapsed().Seconds(), "deep/s")
	b.ReportMetric(float64(int64(b.N)+deep.Load())/counted(b, reg, "carillon_batch_requests_total"), "txn/request")
}

func benchmarkFires(b *testing.B, via string, batched bool, cfg kv.BatcherConfig) {
	s, err := embedded.Start(b.Context(), embedded.Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}

	defer s.Close()

	c := s.Client()
	if via == "grpc" {
		if c, err = kv.Dial(b.Context(), kv.Config{Endpoints: []string{s.Endpoint()}}); err != nil {
			b.Fatal(err)
		}
		defer c.Close()
	}

	reg := prometheus.NewRegistry()
	commits := kv.Direct(c)
	if batched {
		cfg.Registerer = reg
		batcher := kv.NewBatcher(c, cfg)
		ctx, cancel := context.WithCancel(b.Context())
		var ended sync.WaitGroup
		ended.Go(func() { _ = batcher.Run(ctx) })
		defer ended.Wait()
		defer cancel()

		commits = batcher
	}

	value := strings.Repeat("v", 250)
	var left atomic.Int64
	left.Store(int64(b.N))
	var callers sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	spent := cpuTime()

	for caller := range 256 {
		callers.Go(func() {
			state := fmt.Sprintf("/carillon/shards/%04d/watermark", caller)
			rev := int64(0)
			for n := left.Add(-1); n >= 0; n = left.Add(-1) {
				run := fmt.Sprintf("/carillon/runs/node-1/%04d/default/backup/20261120T220500.%09d", caller, n)
				res, err := commits.Commit(b.Context(), kv.Txn{
					If:   []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(state), "=", rev)},
					Then: []clientv3.Op{clientv3.OpPut(state, value), clientv3.OpPut(run, value)},
				})
				if err != nil || !res.Succeeded {
					b.Errorf("succeeded %v, %v", res.Succeeded, err)
					return
				}

				rev = res.Revision
			}
		})
	}

	callers.Wait()
	b.ReportMetric((cpuTime()-spent).Seconds()*1e6/float64(b.N), "cpu-us/txn")

	if batched {
		b.ReportMetric(float64(b.N)/counted(b, reg, "carillon_batch_requests_total"), "txn/request")
	}

	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "txn/s")
}

// cpuTime returns the processor time of this process, which includes etcd. On a machine with other work, it is more
// meaningful than the rate.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// counted returns the value of a counter or gauge, or the count of a histogram.
func counted(t testing.TB, g prometheus.Gatherer, name string) float64 {
	t.Helper()
	all, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}

	for _, f := range all {
		if m := f.GetMetric(); f.GetName() == name && len(m) == 1 {
			return m[0].GetCounter().GetValue() + m[0].GetGauge().GetValue() + float64(m[0].GetHistogram().GetSampleCount())
		}
	}

	t.Fatalf("no metric %s", name)

	return 0
}
