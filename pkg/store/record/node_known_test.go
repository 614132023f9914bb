package record_test

import (
	"fmt"
	"reflect"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// Whatever appears, disappears and changes, KnownNodes returns the same as DecodeNodes.
func TestKnownNodes_AreThoseOfTheSnapshot(t *testing.T) {
	t.Parallel()
	keys, err := record.NewKeys("/x")
	if err != nil {
		t.Fatal(err)
	}

	rapid.Check(t, func(t *rapid.T) {
		k, records, rev := record.NewKnownNodes(keys), map[int]*mvccpb.KeyValue{}, int64(0)
		for range rapid.IntRange(1, 20).Draw(t, "snapshots") {
			for range rapid.IntRange(0, 3).Draw(t, "changes") {
				i := rapid.IntRange(0, 5).Draw(t, "node")

				if rapid.Bool().Draw(t, "goes") {
					delete(records, i)
					continue
				}

				rev++
				value := fmt.Sprintf(`{"slots": %d, "state": "ready"}`, rev)
				if rapid.IntRange(0, 5).Draw(t, "odd") == 0 {
					value = "{"
				}

				records[i] = &mvccpb.KeyValue{Key: []byte(keys.Node(fmt.Sprintf("n%d", i))), Value: []byte(value), CreateRevision: rev, ModRevision: rev}
			}

			var all []*mvccpb.KeyValue
			for i := range 6 {
				if records[i] != nil {
					all = append(all, records[i])
				}
			}

			if got, want := k.Decode(all), record.DecodeNodes(keys, all); !reflect.DeepEqual(got, want) {
				t.Fatalf("got  %v\nwant %v", got, want)
			}
		}
	})
}
