package record_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// BenchmarkDecodeNodes_OfAThousand measures what each node reads when one of a thousand nodes has announced itself.
func BenchmarkDecodeNodes_OfAThousand(b *testing.B) {
	keys, err := record.NewKeys(record.DefaultPrefix)
	if err != nil {
		b.Fatal(err)
	}

	load, free := 1.25, int64(4<<30)
	for _, facts := range []*task.Facts{nil, {CPUs: 8, Memory: 16 << 30, MemoryFree: &free, Disk: 1 << 40, DiskFree: &free, Load1: &load, Load5: &load, Load15: &load}} {
		var all []*mvccpb.KeyValue
		for i := range 1000 {
			name := fmt.Sprintf("node-%04d", i)
			n := task.Node{Name: name, Instance: task.NewUID(), Leases: []string{"70cc8e2a4b0d3f10"}, State: task.NodeReady, Host: "b6f1c9de-1-4026531840", Epoch: 1,
				Writes: 1, Format: 1, Address: "https://10.0.0.1:7070", Version: "v1.2.3", Labels: map[string]string{"node": name, "os": "linux", "arch": "amd64", "role": "db"},
				Roles: []string{"scheduler", "executor"}, Slots: 64, Weight: 1, Facts: facts}
			value, err := json.Marshal(n)
			if err != nil {
				b.Fatal(err)
			}

			all = append(all, &mvccpb.KeyValue{Key: []byte(keys.Node(name)), Value: value, CreateRevision: int64(i + 1), ModRevision: int64(i + 1)})
		}

		b.Run(fmt.Sprintf("facts_%v", facts != nil), func(b *testing.B) {
			for b.Loop() {
				if len(record.DecodeNodes(keys, all)) != 1000 {
					b.Fatal("not all can be read")
				}
			}

			b.ReportMetric(float64(len(all[0].Value)), "bytes/record")
		})

		b.Run(fmt.Sprintf("facts_%v_known", facts != nil), func(b *testing.B) {
			k := record.NewKnownNodes(keys)

			for i := 0; b.Loop(); i++ {
				was := all[i%1000]
				all[i%1000] = &mvccpb.KeyValue{Key: was.Key, Value: was.Value, CreateRevision: was.CreateRevision, ModRevision: was.ModRevision + 1000}
				if len(k.Decode(all)) != 1000 {
					b.Fatal("not all can be read")
				}
			}
		})
	}
}
