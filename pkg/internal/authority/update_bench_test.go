package authority_test

import (
	"fmt"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// BenchmarkUpdateView is the cost of one new token for each node that serves the API.
func BenchmarkUpdateView(b *testing.B) {
	keys, err := record.NewKeys("/test")
	if err != nil {
		b.Fatal(err)
	}
	k := authority.New(nil, keys, nil)

	for _, n := range []int{100, 4000, 100_000} {
		s := kv.Snapshot{KVs: []*mvccpb.KeyValue{{Key: []byte(keys.Fence()), Value: []byte("{}"), ModRevision: 1}}, Revision: 1}
		for i := range n {
			id := fmt.Sprintf("t%07d", i)
			s.KVs = append(s.KVs, &mvccpb.KeyValue{Key: []byte(keys.Token(id)), Value: []byte(record.Encode(tokenOf(id))), ModRevision: 2, CreateRevision: 2})
		}

		before := k.CompileView(s)
		after := kv.Snapshot{KVs: changed(slices.Clone(s.KVs), keys.Token("t0000000a"), record.Encode(tokenOf("new")), 3), Revision: 3}

		b.Run(fmt.Sprint("tokens=", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				k.UpdateView(before, after)
			}
		})
	}
}
