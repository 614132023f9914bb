package notifier

import (
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// BenchmarkPass measures what the leader does for 10,000 open alerts: the first time, when all of them are decoded, and every five
// seconds after that.
func BenchmarkPass(b *testing.B) {
	keys, err := record.NewKeys("/t")
	if err != nil {
		b.Fatal(err)
	}

	now := time.Now()
	snapshot := kv.Snapshot{Revision: 20_000}
	for i := range 10_000 {
		ref := record.Ref{Namespace: fmt.Sprintf("ns%02d", i%50), Name: fmt.Sprintf("task%05d", i), Shard: i % 1024}
		a := task.Alert{UID: task.NewUID(), Since: task.At(now), OpenedAt: task.At(now.Add(-time.Hour)), Notify: []string{slack}, Labels: map[string]string{"owner": "team-data"}}
		snapshot.KVs = append(snapshot.KVs, &mvccpb.KeyValue{Key: []byte(keys.Alert(ref, task.AlertFailures)), Value: []byte(record.EncodeAlert(a)), CreateRevision: int64(i + 1), ModRevision: int64(i + 1)})
	}

	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			newKnown(keys, "c").update(snapshot)
		}
	})

	known := newKnown(keys, "c")
	known.update(snapshot)
	sent := task.AlertsSent{UID: "u", Horizon: 20_000, HorizonAt: task.At(now)}
	b.Run("next", func(b *testing.B) {
		for b.Loop() {
			known.update(snapshot)
			in := alert.Input{Limits: alert.DefaultLimits(), Now: now, Revision: snapshot.Revision, Receiver: alert.Receiver{UID: "u", Repeat: 24 * time.Hour}, Sent: sent}
			for _, a := range known.byReceiver()[slack] {
				in.Alerts = append(in.Alerts, alert.Addressed{Key: a.key, Alert: &a.Alert})
			}
			if d := alert.Diff(&in); d.Write {
				b.Fatal("something is due")
			}
		}
	})
}
