package eventlog_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv/embedded/embeddedtest"
	"github.com/carillonhq/carillon/pkg/store/eventlog"
	"github.com/carillonhq/carillon/pkg/task"
)

// BenchmarkFollowEvents measures what one reader costs for each run that is dispatched and ends. All of them are in
// the past. The result includes the cost of etcd, which is in the same process.
func BenchmarkFollowEvents(b *testing.B) {
	etcd := embeddedtest.StartServer(b).InProcess()
	c := clusterOf(b, etcd)
	keys, begin := c.keys, c.revision()

	commit := func(ops ...clientv3.Op) {
		ops = append(ops, clientv3.OpPut(keys.Watermark(3), fmt.Sprintf(`{"time":"2026-11-20T12:00:00Z","seen":1,"nonce":%q}`, time.Now())))
		if _, err := etcd.Txn(b.Context()).Then(ops...).Commit(); err != nil {
			b.Fatal(err)
		}
	}

	const each = 20 // runs in each commit
	n := 0
	for ; n < b.N; n += each {
		var sent, ended []clientv3.Op
		for i := range each {
			id := task.RunID(noon.Add(time.Duration(n+i)*time.Minute), "k3f9")
			in, out := keys.Run("n1", ref, id), keys.Ended(ref, id)
			sent = append(sent, clientv3.OpPut(in, `{"uid":"k3f9aaaaaaaaaaaa","scheduled_time":"2026-11-20T12:00:00.000Z","state":"dispatched","trigger":"schedule","owner":"n1","attempt":1,"created_at":"2026-11-20T12:00:00.001Z","instance":"i1","generation":1,"action":{"noop":{}}}`))
			ended = append(ended, clientv3.OpDelete(in), clientv3.OpPut(out, `{"uid":"k3f9aaaaaaaaaaaa","scheduled_time":"2026-11-20T12:00:00.000Z","state":"succeeded","trigger":"schedule","node":"n1","owner":"n1","attempt":1,"token":77,"created_at":"2026-11-20T12:00:00.001Z","started_at":"2026-11-20T12:00:00.002Z","ended_at":"2026-11-20T12:00:00.003Z","exit_code":0,"lateness_ms":2}`))
		}

		commit(sent...)
		commit(ended...)
	}

	b.ReportAllocs()
	b.ResetTimer()
	after, told := task.After(begin), 0
	err := c.log.FollowEvents(b.Context(), eventlog.Query{After: &after}, func(batch eventlog.Batch) error {
		if told += len(batch.Events); told >= 2*n {
			return errEnough
		}
		return nil
	})

	if !errors.Is(err, errEnough) || told != 2*n {
		b.Fatalf("%d events of %d runs: %v", told, n, err)
	}
}
