package record_test

import (
	"fmt"
	"reflect"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// Whatever appears, disappears and changes, Known returns the same as DecodeNodes and DecodeOwners.
func TestKnown_DecodesTheSnapshot(t *testing.T) {
	t.Parallel()
	keys, err := record.NewKeys("/x")
	if err != nil {
		t.Fatal(err)
	}

	for name, c := range map[string]struct {
		key    func(i int) string
		value  string
		known  func() func([]*mvccpb.KeyValue) any
		decode func([]*mvccpb.KeyValue) any
	}{
		"nodes": {
			func(i int) string { return keys.Node(fmt.Sprintf("n%d", i)) }, `{"slots": %d, "state": "ready"}`,
			func() func([]*mvccpb.KeyValue) any {
				k := record.NewKnownNodes(keys)
				return func(all []*mvccpb.KeyValue) any { return k.Decode(all) }
			},
			func(all []*mvccpb.KeyValue) any { return record.DecodeNodes(keys, all) },
		},
		"owners": {
			func(i int) string {
				if i == 5 {
					return keys.Owners() + "x" // not a shard
				}
				return keys.Owner(i)
			}, `{"node": "n1", "term": %d}`,
			func() func([]*mvccpb.KeyValue) any {
				k := record.NewKnownOwners(keys)
				return func(all []*mvccpb.KeyValue) any { return k.Decode(all) }
			},
			func(all []*mvccpb.KeyValue) any { return record.DecodeOwners(keys, all) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				known, records, rev := c.known(), map[int]*mvccpb.KeyValue{}, int64(0)
				for range rapid.IntRange(1, 20).Draw(t, "snapshots") {
					for range rapid.IntRange(0, 3).Draw(t, "changes") {
						i := rapid.IntRange(0, 5).Draw(t, "record")

						if rapid.Bool().Draw(t, "goes") {
							delete(records, i)
							continue
						}

						rev++
						value := fmt.Sprintf(c.value, rev)
						if rapid.IntRange(0, 5).Draw(t, "odd") == 0 {
							value = "{"
						}

						records[i] = &mvccpb.KeyValue{Key: []byte(c.key(i)), Value: []byte(value), CreateRevision: rev, ModRevision: rev}
					}

					var all []*mvccpb.KeyValue
					for i := range 6 {
						if records[i] != nil {
							all = append(all, records[i])
						}
					}

					if got, want := known(all), c.decode(all); !reflect.DeepEqual(got, want) {
						t.Fatalf("got  %v\nwant %v", got, want)
					}
				}
			})
		})
	}
}
