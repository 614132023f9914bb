package backup_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/internal/backup/restore"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// BenchmarkBackup makes a backup of an etcd with BENCH_TASKS tasks (default: 20,000), each with an entry and an ended run, and reads it.
// Meanwhile another client writes to the same member. At the end, it prepares a restore. Run it with -benchtime 1x.
//
// BENCH_ENDPOINTS are those of an empty etcd to use instead of an own one, separated by commas. The backup is that of the last endpoint, and
// the other client uses the first.
func BenchmarkBackup(b *testing.B) {
	tasks := 20_000
	if n, err := strconv.Atoi(os.Getenv("BENCH_TASKS")); err == nil {
		tasks = n
	}

	etcd, source := benchmarkedEtcd(b)
	fillForBenchmark(b, etcd, tasks)
	usual := putsWhile(b, etcd, func() { time.Sleep(5 * time.Second) })

	for b.Loop() {
		dir := b.TempDir()
		timed := func(what string, do func()) {
			began, used := time.Now(), processorTime(b)
			do()
			b.ReportMetric(time.Since(began).Seconds(), "s/"+what)
			b.ReportMetric((processorTime(b) - used).Seconds(), "cpu-s/"+what)
		}

		var p *backup.Packed
		var s *backup.Stored
		during := putsWhile(b, etcd, func() {
			timed("pack", func() {
				r, err := source.Snapshot(b.Context())
				ok(b, err)

				defer r.Close()

				p, err = backup.Pack(b.Context(), r, filepath.Join(dir, "backup.tmp"), backup.Origin{Time: noon, Source: backup.SourceAPI, Prefix: prefix, Carillon: "v1"})
				ok(b, err)
			})
		})

		timed("store", func() { s = stored(b, dir, p) })
		timed("verify", func() {
			v, err := s.Verify(b.Context(), dir, prefix)
			ok(b, err)
			if v.BadRecords > 0 || p.Manifest.Tasks() != int64(tasks) {
				b.Fatalf("%+v", v)
			}
		})
		timed("extract", func() {
			d, err := s.OpenUnpacked(b.Context(), dir)
			ok(b, err)

			n := 0
			ok(b, d.EachTask(b.Context(), prefix, "ns-7", func(task.Task) error {
				n++
				return nil
			}, func(_, _ string, err error) error { return err }))
			ok(b, d.Close())
			if n != tasks/100 {
				b.Fatal(n)
			}
		})

		o := &restore.Options{Work: filepath.Join(dir, "work"), Node: "n1", Prefix: prefix, Now: time.Now(), Logger: zap.NewNop()}
		timed("prepare", func() {
			from, err := restore.Unpack(b.Context(), s, o)
			ok(b, err)
			keys, err := record.NewKeys(prefix)
			ok(b, err)
			content, err := restore.ReadContent(b.Context(), from.Path, keys)
			ok(b, err)
			_, err = restore.Prepare(b.Context(), from, content, o)
			ok(b, err)
		})

		b.ReportMetric(float64(p.Manifest.Size>>20), "MiB")
		b.ReportMetric(float64(p.Manifest.PackedSize>>20), "MiB-packed")
		b.ReportMetric(p99(usual), "ms-p99-usual")
		b.ReportMetric(p99(during), "ms-p99-pack")
	}
}

// benchmarkedEtcd returns a client of the etcd that is backed up, and one of the member from which the backup is made.
func benchmarkedEtcd(b *testing.B) (etcd, source *kv.Client) {
	b.Helper()
	all := strings.Split(os.Getenv("BENCH_ENDPOINTS"), ",")
	if all[0] == "" {
		etcd = kvtest.Start(b)
		return etcd, etcd
	}

	dial := func(endpoint string) *kv.Client {
		c, err := kv.Dial(b.Context(), kv.Config{Endpoints: []string{endpoint}})
		ok(b, err)
		b.Cleanup(func() { ok(b, c.Close()) })

		return c
	}

	return dial(all[0]), dial(all[len(all)-1])
}

// fillForBenchmark puts a cluster with tasks in 100 namespaces.
func fillForBenchmark(b *testing.B, etcd *kv.Client, tasks int) {
	b.Helper()
	keys := fill(b, etcd, 0)

	const inTxn = 40 // tasks
	g, ctx := errgroup.WithContext(b.Context())
	g.SetLimit(8)

	for from := 0; from < tasks; from += inTxn {
		g.Go(func() error {
			var ops []clientv3.Op
			for i := from; i < min(from+inTxn, tasks); i++ {
				spec := task.Defaults()
				spec.Namespace, spec.Name, spec.Schedule = fmt.Sprint("ns-", i%100), fmt.Sprintf("task-%07d", i), []string{fmt.Sprintf("%d %d * * *", i%60, i%24)}
				spec.Labels = map[string]string{"team": fmt.Sprint("team-", i%50)}
				spec.Action = task.Action{Process: &task.Process{Command: []string{"/usr/local/bin/report", "--number", strconv.Itoa(i)}}}

				r, uid := record.Ref{Namespace: spec.Namespace, Name: spec.Name, Shard: record.ShardOf(spec.Namespace, spec.Name, 4)}, task.NewUID()
				run := task.Run{UID: uid, State: task.Succeeded, Trigger: task.TriggerSchedule, Attempt: 1, Node: "n1", CreatedAt: task.At(noon), EndedAt: task.At(noon)}
				ops = append(ops, clientv3.OpPut(keys.Spec(r), record.Encode(task.Task{Spec: spec, UID: uid})),
					clientv3.OpPut(keys.Entry(r), record.Encode(task.Entry{UID: uid})), clientv3.OpPut(keys.Ended(r, task.RunID(noon, uid)), record.Encode(run)))
			}

			_, err := etcd.Txn(ctx).Then(ops...).Commit()
			return err
		})
	}

	ok(b, g.Wait())
}

// putsWhile returns how long puts of another client take, in order, while do runs.
func putsWhile(b *testing.B, etcd *kv.Client, do func()) (took []time.Duration) {
	b.Helper()
	ctx, stop := context.WithCancel(b.Context())
	done := make(chan struct{})

	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			began := time.Now()
			if _, err := etcd.Put(context.WithoutCancel(ctx), fmt.Sprint(prefix, "/graph/", i%100), ""); err == nil {
				took = append(took, time.Since(began))
			}
			time.Sleep(2 * time.Millisecond)
		}
	}()

	do()
	stop()
	<-done
	slices.Sort(took)

	return took
}

// processorTime returns the processor time that this process has used, without that of etcd.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	ok(b, unix.Getrusage(unix.RUSAGE_SELF, &u))

	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func p99(sorted []time.Duration) float64 {
	return float64(sorted[len(sorted)*99/100].Microseconds()) / 1000
}
